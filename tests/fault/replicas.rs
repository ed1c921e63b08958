//! Several relays on one outbox share its partitions, and hand them over.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::sleep;

use crate::soak;
use crate::support::checker::Report;
use crate::support::proxy::Proxy;
use crate::support::relay::{Relay, Settings};
use crate::support::scene::{QUEUE, Scene, port, through};
use crate::support::writers::{Load, Writers};

const IN_FLIGHT: usize = 100;
/// One window that was not confirmed, one that was confirmed and not yet marked.
const REPEATED: usize = 2 * IN_FLIGHT;

/// All partitions are owned, and each of so many relays has its share.
fn shared_by(relays: usize) -> String {
    format!(
        "SELECT count(owner) = 256 AND count(DISTINCT owner) = {relays} \
           AND (SELECT max(n) - min(n) <= 1 FROM \
             (SELECT count(*) AS n FROM outbox.lease GROUP BY owner) AS shares) \
         FROM outbox.lease"
    )
}

async fn scene(lease: &str) -> Scene {
    let mut scene = Scene::new().await;
    scene.set("RELAY__MAX_IN_FLIGHT", &IN_FLIGHT.to_string());
    scene.set("RELAY__LEASE", lease);
    scene
}

fn load() -> Load {
    Load {
        rows: 4,
        pause: Duration::from_millis(15),
        ..Load::to(QUEUE)
    }
}

async fn judged(scene: &Scene, writers: Writers, relays: Vec<Relay>) -> Report {
    writers.stop().await;
    scene.drained().await;
    for relay in relays {
        relay.stop().await;
    }
    let report = scene.judge().await;
    println!("{report}");
    report
}

#[tokio::test]
async fn relays_that_come_and_go_have_fair_shares() {
    let scene = scene("15s").await;
    let mut relays = Vec::new();
    for count in 1..=4 {
        relays.push(scene.ready_relay().await);
        scene.until(&shared_by(count)).await;
    }
    for left in (1..=3).rev() {
        relays.remove(0).stop().await;
        scene.until(&shared_by(left)).await;
    }
    relays.remove(0).stop().await;
    scene
        .until("SELECT count(*) = 0 FROM outbox.lease WHERE owner IS NOT NULL")
        .await;
}

/// P6: while rows are locked their partitions cannot be handed over, and are not held back for it.
#[tokio::test]
async fn rows_that_cannot_be_marked_stop_no_partition_when_another_relay_joins() {
    let scene = scene("15s").await;
    scene.write_many(200, 200).await;
    let locker = scene.second_client().await;
    let lock = "BEGIN; SELECT FROM outbox.message FOR UPDATE";
    locker.batch_execute(lock).await.expect("locked");
    let first = scene.ready_relay().await;
    scene.queues.reaches(QUEUE, 200).await;
    scene
        .until("SELECT EXISTS (SELECT FROM outbox.instance WHERE held_back IS NOT NULL)")
        .await;
    let second = scene.relay();
    scene
        .until("SELECT count(DISTINCT owner) = 2 FROM outbox.lease WHERE owner IS NOT NULL")
        .await;
    for _ in 0..3 {
        scene.write_many(300, 300).await;
        scene
            .until("SELECT bool_and(sent_at IS NOT NULL OR id <= 200) FROM outbox.message")
            .await;
    }
    locker.batch_execute("COMMIT").await.expect("unlocked");
    scene.drained().await;
    first.stop().await;
    second.stop().await;
    assert_eq!(scene.judge().await.duplicates, 0);
}

/// F40 of one of two, again and again: the other takes its share over.
#[tokio::test]
async fn when_one_of_two_is_killed_the_other_takes_its_share_over() {
    let scene = scene("1s").await;
    let mut writers = scene.writers(&load());
    let mut relays = vec![scene.ready_relay().await, scene.ready_relay().await];
    let kills = soak(4, 100);
    for _ in 0..kills {
        scene.until(&shared_by(2)).await;
        writers.write(200).await;
        relays.remove(0).kill();
        scene.until(&shared_by(1)).await;
        relays.push(scene.ready_relay().await);
    }
    let report = judged(&scene, writers, relays).await;
    assert!(report.duplicates <= kills * REPEATED, "{report}");
}

/// F44: it publishes nothing after its lease, and overwrites nothing.
#[tokio::test]
async fn a_relay_that_stood_still_past_its_lease_goes_on_harmlessly() {
    let scene = scene("1s").await;
    let mut writers = scene.writers(&load());
    let relays = vec![scene.ready_relay().await, scene.ready_relay().await];
    let stops = soak(4, 60);
    for round in 0..stops {
        scene.until(&shared_by(2)).await;
        writers.write(100).await;
        let stopped = &relays[round % 2];
        stopped.pause();
        scene.until(&shared_by(1)).await;
        writers.write(100).await;
        stopped.resume();
    }
    scene.until(&shared_by(2)).await;
    let report = judged(&scene, writers, relays).await;
    assert!(report.duplicates <= stops * REPEATED, "{report}");
}

/// A rolling restart: the old one drains, and what it had goes to the others at once.
#[tokio::test]
async fn a_rolling_restart_makes_no_duplicate_and_keeps_order() {
    let scene = scene("15s").await;
    let mut writers = scene.writers(&load());
    let mut relays = vec![scene.ready_relay().await, scene.ready_relay().await];
    for _ in 0..soak(3, 100) {
        for place in 0..relays.len() {
            writers.write(300).await;
            let old: Relay = relays.remove(place);
            old.stop().await;
            relays.insert(place, scene.ready_relay().await);
        }
    }
    let report = judged(&scene, writers, relays).await;
    assert_eq!(report.duplicates, 0);
}

/// F45: three relays join and leave under load, sometimes in the middle of a hand-over.
#[tokio::test]
async fn relays_join_and_leave_all_the_time_and_nothing_is_sent_twice() {
    let scene = scene("15s").await;
    let mut writers = scene.writers(&load());
    let mut relays: Vec<Relay> = Vec::new();
    for round in 0..soak(8_u64, 400) {
        while relays.len() < 3 {
            relays.push(scene.relay());
        }
        writers.write(100).await;
        // Any moment will do, and another one each time.
        sleep(Duration::from_millis(round * 397 % 1500)).await;
        relays.remove(0).stop().await;
    }
    let report = judged(&scene, writers, relays).await;
    assert_eq!(report.duplicates, 0);
}

/// As after a restore that left the table of leases out, or by somebody's hand.
#[tokio::test]
async fn rows_of_leases_that_are_missing_are_made_anew_while_relays_run() {
    let scene = scene("1s").await;
    let relays = vec![scene.ready_relay().await, scene.ready_relay().await];
    scene.until(&shared_by(2)).await;
    let mut writers = scene.writers(&load());
    for removed in ["partition % 2 = 0", "true"] {
        let remove = format!("DELETE FROM outbox.lease WHERE {removed}");
        scene.run(&remove).await;
        writers.write(50).await;
        scene.until(&shared_by(2)).await;
    }
    judged(&scene, writers, relays).await;
}

/// One of two loses its way to the broker; the other has one and takes its share.
#[tokio::test]
async fn who_is_cut_off_from_the_broker_leaves_its_share_to_the_other() {
    let scene = scene("1s").await;
    let proxy = Proxy::start(port(&scene.vhost.url)).await;
    let cut_off = Settings::new(&scene.database, &through(&scene.vhost.url, &proxy));
    let cut_off = Relay::start(&cut_off.with("OUTBOX_RELAY__RELAY__LEASE", "1s"));
    cut_off.printed("owns partitions").await;
    let other = scene.ready_relay().await;
    scene.until(&shared_by(2)).await;
    let mut writers = scene.writers(&load());
    writers.write(50).await;
    proxy.refuse(true);
    proxy.reset_all();
    scene.until(&shared_by(1)).await;
    cut_off.answers("/readyz", 503).await;
    writers.write(50).await;
    proxy.refuse(false);
    scene.until(&shared_by(2)).await;
    cut_off.ready().await;
    judged(&scene, writers, vec![cut_off, other]).await;
}

/// One that comes without a way to the broker takes nothing from one that has one, until it has one.
#[tokio::test]
async fn who_never_reached_the_broker_takes_no_share() {
    let scene = scene("15s").await;
    let relay = scene.ready_relay().await;
    scene.until(&shared_by(1)).await;
    let proxy = Proxy::start(port(&scene.vhost.url)).await;
    proxy.refuse(true);
    let cut_off = Relay::start(&Settings::new(
        &scene.database,
        &through(&scene.vhost.url, &proxy),
    ));
    cut_off.printed("other relays own everything").await;
    // A regular sign of life later than that it would have a share by the old relay's next look.
    let known = "SELECT count(*) = 2 AND bool_and(heartbeat_at - started_at > interval '10 seconds') \
                 FROM outbox.instance";
    scene.until(known).await;
    assert!(scene.ask::<bool>(&shared_by(1)).await);
    proxy.refuse(false);
    scene.until(&shared_by(2)).await;
    relay.stop().await;
    cut_off.stop().await;
}

/// Whoever is told to stop while it waits for the broker gives its share back all the same.
#[tokio::test]
async fn a_relay_that_stops_in_an_outage_leaves_its_share_to_others() {
    let scene = scene("15s").await;
    let proxy = Proxy::start(port(&scene.vhost.url)).await;
    let relay = Relay::start(&Settings::new(
        &scene.database,
        &through(&scene.vhost.url, &proxy),
    ));
    relay.printed("owns partitions").await;
    proxy.refuse(true);
    proxy.reset_all();
    relay.signal(Signal::TERM);
    assert!(relay.ended().await.success());
    let other = scene.ready_relay().await;
    scene.until(&shared_by(1)).await;
    other.stop().await;
}

/// One that is run for once beside one that stays takes nothing for long, and says who has the rest.
#[tokio::test]
async fn a_run_until_empty_beside_another_relay_ends_and_says_so() {
    let scene = scene("2s").await;
    let relay = scene.ready_relay().await;
    scene.write_many(500, 50).await;
    let once = Relay::start_with(&scene.settings, &["run", "--until-empty"]);
    let status = once.ended().await;
    let output = once.output().join("\n");
    assert!(status.success(), "{output}");
    assert!(output.contains("held by other relays: "), "{output}");
    scene.drained().await;
    scene.until(&shared_by(1)).await;
    relay.stop().await;
    let report = scene.judge().await;
    assert_eq!(report.duplicates, 0);
}
