//! The relay is killed, or told to stop, in the middle of its work.

use std::time::Duration;

use tokio::time::sleep;

use crate::soak;
use crate::support::checker::Report;
use crate::support::proxy::{Fault, Proxy, Way};
use crate::support::queues::repetitions;
use crate::support::relay::{Relay, Settings};
use crate::support::scene::{QUEUE, Scene, port, through};
use crate::support::writers::Load;

/// The window: published and not confirmed.
const IN_FLIGHT: usize = 100;

/// What a kill may make the next relay repeat: one window that is not confirmed, and one that
/// is confirmed and not yet marked.
const REPEATED: usize = 2 * IN_FLIGHT;

/// Pseudo-random, from a seed that is printed.
struct Dice(u64);

impl Dice {
    fn new() -> Self {
        let seed = std::env::var("OUTBOX_RELAY_TEST_SEED").ok();
        let seed = seed.and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0) | 1;
        println!("OUTBOX_RELAY_TEST_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// F40, at any moment: reading, publishing, confirming, marking.
#[tokio::test]
async fn killed_at_random_moments_under_load_it_loses_nothing() {
    let mut scene = Scene::new().await;
    scene.set("RELAY__MAX_IN_FLIGHT", &IN_FLIGHT.to_string());
    scene.set("RELAY__LEASE", "1s");
    let kills = soak(20, 500);
    let mut dice = Dice::new();
    let load = Load {
        rows: 40,
        pause: Duration::from_millis(5),
        ..Load::to(QUEUE)
    };
    let mut writers = scene.writers(&load);
    for _ in 0..kills {
        let mut relay = scene.ready_relay().await;
        writers.write(200).await;
        // A kill has no signal to wait for: any moment will do, and another one each time.
        sleep(Duration::from_micros(dice.below(300_000))).await;
        relay.kill();
    }
    writers.stop().await;
    let relay = scene.ready_relay().await;
    scene.drained().await;
    relay.stop().await;
    let report = scene.judge().await;
    println!("{report}");
    assert!(report.duplicates <= kills * REPEATED, "{report}");
}

/// A scene whose relays reach both servers through proxies.
struct Wires {
    scene: Scene,
    to_database: Proxy,
    to_broker: Proxy,
}

impl Wires {
    async fn lay() -> Self {
        let mut scene = Scene::new().await;
        let to_database = Proxy::start(port(&scene.database)).await;
        let to_broker = Proxy::start(port(&scene.vhost.url)).await;
        scene.settings = Settings::new(
            &through(&scene.database, &to_database),
            &through(&scene.vhost.url, &to_broker),
        );
        scene.set("RELAY__MAX_IN_FLIGHT", &IN_FLIGHT.to_string());
        Self {
            scene,
            to_database,
            to_broker,
        }
    }

    /// Kills the relay, mends the wires, lets another one finish, and judges.
    async fn kill_and_finish(self, mut relay: Relay) -> Report {
        relay.kill();
        self.to_database.reset_all();
        self.to_broker.reset_all();
        self.to_database.set(Fault::None);
        self.to_broker.set(Fault::None);
        let relay = self.scene.ready_relay().await;
        self.scene.drained().await;
        relay.stop().await;
        let report = self.scene.judge().await;
        println!("{report}");
        report
    }
}

/// F40, after publish: the broker has a whole window of messages, the relay no confirm.
#[tokio::test]
async fn killed_between_publish_and_confirm_it_repeats_one_window() {
    let wires = Wires::lay().await;
    let relay = wires.scene.ready_relay().await;
    wires.to_broker.set_way(Way::ToClient, Fault::Stall);
    wires.scene.write_many(1000, 1000).await;
    wires.scene.queues.reaches(QUEUE, IN_FLIGHT).await;
    let report = wires.kill_and_finish(relay).await;
    assert_eq!(report.duplicates, IN_FLIGHT, "no more was under way");
}

/// F40, after confirm and before mark: the database hears nothing any more.
#[tokio::test]
async fn killed_between_confirm_and_mark_it_repeats_at_most_two_windows() {
    let wires = Wires::lay().await;
    let relay = wires.scene.ready_relay().await;
    wires.to_broker.set_way(Way::ToClient, Fault::Stall);
    wires.scene.write_many(1000, 1000).await;
    wires.scene.queues.reaches(QUEUE, IN_FLIGHT).await;
    wires.to_database.set_way(Way::ToServer, Fault::Swallow);
    wires.to_broker.set(Fault::None);
    settled_down(&wires.scene).await;
    let report = wires.kill_and_finish(relay).await;
    assert!(
        report.duplicates >= IN_FLIGHT,
        "they were confirmed: {report}"
    );
    assert!(report.duplicates <= REPEATED, "{report}");
}

/// F40, during mark: the marking statement waits inside the database.
#[tokio::test]
async fn killed_while_it_marks_it_repeats_at_most_two_windows() {
    let wires = Wires::lay().await;
    let relay = wires.scene.ready_relay().await;
    let lock = "BEGIN; LOCK TABLE outbox.message IN SHARE ROW EXCLUSIVE MODE";
    let locker = wires.scene.second_client().await;
    wires.scene.write_many(1000, 1000).await;
    locker.batch_execute(lock).await.expect(lock);
    wires.scene.until(SETTLER_WAITS).await;
    settled_down(&wires.scene).await;
    wires.to_database.reset_all();
    locker.batch_execute("COMMIT").await.expect("unlocked");
    let report = wires.kill_and_finish(relay).await;
    assert!(report.duplicates <= REPEATED, "{report}");
}

/// F40, during quarantine: a row is in exactly one place afterwards, and was published by nobody.
#[tokio::test]
async fn killed_while_it_quarantines_it_leaves_the_row_in_one_place() {
    let wires = Wires::lay().await;
    let relay = wires.scene.ready_relay().await;
    let locker = wires.scene.second_client().await;
    let lock = "BEGIN; LOCK TABLE outbox.quarantine IN EXCLUSIVE MODE";
    locker.batch_execute(lock).await.expect(lock);
    let bad = "INSERT INTO outbox.message (routing_key, ordering_key, payload, properties)
        VALUES ('q', 'key-0', '{}', '{\"expiration\": \"soon\"}')";
    wires.scene.run(bad).await;
    wires.scene.write_many(100, 10).await;
    wires.scene.until(SETTLER_WAITS).await;
    wires.to_database.reset_all();
    locker.batch_execute("ROLLBACK").await.expect("unlocked");
    wires.kill_and_finish(relay).await;
}

const SETTLER_WAITS: &str = "SELECT EXISTS (SELECT FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'outbox-relay/settler/%'
      AND wait_event_type = 'Lock')";

/// Waits until nothing more arrives in the queue.
async fn settled_down(scene: &Scene) {
    let mut length = scene.queues.length(QUEUE).await;
    let mut still = 0;
    while still < 25 {
        // That nothing more comes has no signal.
        sleep(Duration::from_millis(20)).await;
        let now = scene.queues.length(QUEUE).await;
        still = if now == length { still + 1 } else { 0 };
        length = now;
    }
}

/// F41.
#[tokio::test]
async fn told_to_stop_at_full_rate_it_makes_no_duplicate() {
    let scene = Scene::new().await;
    let load = Load {
        writers: 4,
        rows: 40,
        pause: Duration::ZERO,
        ..Load::to(QUEUE)
    };
    let mut writers = scene.writers(&load);
    let relay = scene.ready_relay().await;
    let mut relay = relay;
    for _ in 0..soak(5, 60) {
        writers.write(3000).await;
        relay.stop().await;
        relay = scene.ready_relay().await;
    }
    writers.write(1000).await;
    writers.stop().await;
    scene.drained().await;
    relay.stop().await;
    let letters = scene.collect(QUEUE).await;
    let report = scene.ledger.report();
    println!("{report}");
    report.assert_clean();
    assert_eq!(repetitions(&letters), 0);
}
