//! The hunt for lost wake-ups. The poll interval is out of reach, so that a row which nobody was
//! woken for stays where it is: writers commit at every moment of a relay's falling asleep, in
//! all the ways there are, while listeners are killed.

use std::pin::pin;
use std::time::Duration;

use futures_util::SinkExt;
use futures_util::future::join_all;
use outbox_relay::store::postgres::schema::wake_key;
use tokio::time::{sleep, timeout};
use tokio_postgres::Client;

use crate::soak;
use crate::support::postgres::connect;
use crate::support::relay::{Relay, Settings, run};
use crate::support::scene::{Draft, QUEUE, Scene};

/// The longest that can be set: nothing is sent because of a poll.
const POLL: &str = "10m";

/// Half of what passes between two sweeps, which find what was missed as well. Beyond any delay of
/// a loaded machine.
const WOKEN: Duration = Duration::from_secs(30);

/// About as long as a relay takes to fall asleep after its last row.
const FALLING_ASLEEP: u64 = 150;

/// A small generator: the hunt can be repeated with its seed.
struct Dice(u64);

impl Dice {
    /// A number below `sides` (xorshift64*, Vigna 2016).
    fn below(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % sides
    }

    async fn pause(&mut self, most: u64) {
        // Hunts for a moment between two steps of somebody else, of which no signal tells.
        sleep(Duration::from_millis(self.below(most))).await;
    }
}

/// One transaction of some kind, begun at some moment. Rows are counted by the database.
async fn transaction(client: &mut Client, dice: &mut Dice) {
    dice.pause(FALLING_ASLEEP).await;
    let insert =
        format!("INSERT INTO outbox.message (routing_key, payload) VALUES ('{QUEUE}', '{{}}')");
    let run = async |sql: &str| client.batch_execute(sql).await.expect("the database is up");
    match dice.below(7) {
        0 | 1 => run(&insert).await,
        // A long one, and one that decides late.
        2 => {
            run(&format!("BEGIN; {insert}")).await;
            dice.pause(2 * FALLING_ASLEEP).await;
            run("COMMIT").await;
        }
        3 => {
            run(&format!("BEGIN; {insert}")).await;
            dice.pause(FALLING_ASLEEP).await;
            run("ROLLBACK").await;
        }
        4 => {
            let undone = format!("BEGIN; SAVEPOINT s; {insert}; ROLLBACK TO s");
            run(&undone).await;
            dice.pause(FALLING_ASLEEP).await;
            run(&format!("{insert}; COMMIT")).await;
        }
        5 => {
            let copy = "COPY outbox.message (routing_key, payload) FROM STDIN";
            let mut rows = pin!(client.copy_in(copy).await.expect("COPY"));
            let line = bytes::Bytes::from(format!("{QUEUE}\t{{}}\n"));
            for _ in 0..=dice.below(3) {
                rows.send(line.clone()).await.expect("COPY");
            }
            rows.finish().await.expect("COPY");
        }
        _ => {
            let many = "INSERT INTO outbox.message (routing_key, payload)
                 SELECT 'q', '{}' FROM generate_series(1, 50)";
            run(many).await;
        }
    }
}

/// Ends one of the relays' reading sessions, the one that listens.
async fn kill_a_listener(scene: &Scene, dice: &mut Dice) {
    dice.pause(FALLING_ASLEEP).await;
    scene
        .run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name LIKE 'outbox-relay/reader/%'
             ORDER BY random() LIMIT 1",
        )
        .await;
}

/// Locks at the gate that readers hold: a sleeper holds one.
const HELD: &str = "pg_locks JOIN pg_stat_activity USING (pid)
     WHERE locktype = 'advisory' AND granted AND application_name LIKE 'outbox-relay/reader/%'
     AND datname = current_database()";

/// Do so many sleep, one of them as the keeper?
fn sleepers(count: u32) -> String {
    format!("SELECT count(*) = {count} FROM {HELD}")
}

/// Which process keeps the gate?
async fn keeper(scene: &Scene) -> String {
    let sql = format!("SELECT application_name FROM {HELD} AND mode = 'ExclusiveLock'");
    scene.ask(&sql).await
}

/// Does a relay sleep at the gate?
async fn asleep(scene: &Scene) -> bool {
    let key = wake_key("outbox", "message");
    let held = format!(
        "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1
         AND mode = 'ExclusiveLock' AND granted
         AND (classid::int8 << 32 | objid::int8) = {key}
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
    );
    scene.ask(&held).await
}

async fn hunt(relays: usize, writers: usize, rounds: usize) {
    let mut scene = Scene::new().await;
    scene.set("RELAY__POLL_INTERVAL", POLL);
    let relays: Vec<Relay> = (0..relays).map(|_| scene.relay()).collect();
    for relay in &relays {
        relay.ready().await;
    }
    let mut clients = Vec::new();
    for number in 0..writers {
        let seed = u64::try_from(1 + number + 100 * rounds).expect("small");
        clients.push((connect(&scene.database).await, Dice(seed)));
    }
    let (mut dice, mut slept) = (Dice(7), 0);
    for round in 0..rounds {
        slept += usize::from(asleep(&scene).await);
        let writing = join_all(
            clients
                .iter_mut()
                .map(|(client, dice)| transaction(client, dice)),
        );
        if round % 10 == 9 {
            tokio::join!(writing, kill_a_listener(&scene, &mut dice));
        } else {
            writing.await;
        }
        let sent = async {
            while scene.count("sent_at IS NULL").await > 0 {
                // The database is asked: nobody signals a mark.
                sleep(Duration::from_millis(5)).await;
            }
        };
        let woken = timeout(WOKEN, sent).await.is_ok();
        assert!(
            woken,
            "round {round}: {} rows lie there",
            scene.count("sent_at IS NULL").await
        );
        dice.pause(2 * FALLING_ASLEEP).await;
    }
    println!(
        "{} relays, {writers} writers: {slept} of {rounds} rounds began asleep",
        relays.len()
    );
    assert!(slept > 0, "no relay ever slept: nothing was hunted");
    for relay in relays {
        relay.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_operator_sends_again_is_not_slept_through() {
    let mut scene = Scene::new().await;
    scene.set("RELAY__POLL_INTERVAL", POLL);
    let relay = scene.ready_relay().await;
    let sent = scene.write(&[Draft::to(QUEUE)]).await;
    scene.sent(sent[0]).await;
    let unfit = "INSERT INTO outbox.message (routing_key, payload) VALUES (repeat('r', 256), '{}')";
    scene.run(unfit).await;
    let entry = "SELECT EXISTS (SELECT FROM outbox.quarantine)";
    scene.until(entry).await;
    for (act, done) in [
        (
            &["resend", "--since", "1h"][..],
            "SELECT NOT EXISTS (SELECT FROM outbox.message WHERE sent_at IS NULL)",
        ),
        // It comes back as a new entry.
        (
            &["quarantine", "replay"][..],
            "SELECT EXISTS (SELECT FROM outbox.quarantine WHERE quarantine_id > 1)",
        ),
    ] {
        while !asleep(&scene).await {
            // The database is asked: nobody signals that he sleeps.
            sleep(Duration::from_millis(20)).await;
        }
        let settings = Settings::new(&scene.database, &scene.vhost.url);
        let arguments = [act, &["--by", "a test", "--reason", "again"]].concat();
        let (status, output) = run(&settings, &arguments).await;
        assert!(status.success(), "{}", output.join("\n"));
        timeout(WOKEN, scene.until(done)).await.expect(act[0]);
    }
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_wait_are_tried_again_in_their_time_however_seldom_is_polled() {
    let mut scene = Scene::new().await;
    scene.set("RELAY__POLL_INTERVAL", POLL);
    scene.set("RETRY__MAX_DELAY", "2s");
    let relay = scene.ready_relay().await;
    let drafts = [1, 2, 3].map(|no| Draft::to(&format!("late {no}")));
    scene.write(&drafts).await;
    let tried = "SELECT count(*) = 3 FROM outbox.message WHERE attempts > 1 OR last_error <> ''";
    timeout(WOKEN, scene.until(tried)).await.expect("tried");
    for no in 1..=3 {
        scene.queues.quorum(&format!("late {no}")).await;
    }
    timeout(WOKEN, scene.drained()).await.expect("sent");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_sleeps_beside_a_relay_that_is_killed_is_woken_by_the_next_rows() {
    let mut scene = Scene::new().await;
    scene.set("RELAY__POLL_INTERVAL", POLL);
    // Nobody takes over meanwhile: what is sent is the survivor's own.
    scene.set("RELAY__LEASE", "10m");
    let mut relays = [scene.relay(), scene.relay()];
    for relay in &relays {
        relay.ready().await;
    }
    scene
        .until("SELECT count(*) = 2 AND min(partitions) > 100 FROM (SELECT count(*) AS partitions FROM outbox.lease GROUP BY owner) AS each")
        .await;
    scene.until(&sleepers(2)).await;
    let keeper = keeper(&scene).await;
    let is_keeper = |relay: &&mut Relay| keeper.ends_with(&relay.pid().to_string());
    let killed = relays.iter_mut().find(is_keeper);
    killed
        .unwrap_or_else(|| panic!("none of ours: {keeper}"))
        .kill();
    scene.until(&sleepers(1)).await;
    for key in 0..20 {
        scene
            .write(&[Draft::to(QUEUE).of(format!("key {key}"))])
            .await;
    }
    let some = "SELECT EXISTS (SELECT FROM outbox.message WHERE sent_at IS NOT NULL)";
    timeout(WOKEN, scene.until(some)).await.expect("in time");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_commit_is_slept_through_by_one_relay() {
    for writers in [1, 3, 12] {
        hunt(1, writers, soak(30, 1000)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_commit_is_slept_through_by_several_relays() {
    for writers in [1, 12] {
        hunt(3, writers, soak(30, 1000)).await;
    }
}

/// F27. The relay hears nothing while its listener is dead, and looks as soon as it is back.
#[tokio::test]
async fn a_row_written_while_no_listener_lives_is_found_on_the_way_back() {
    let mut scene = Scene::new().await;
    scene.set("RELAY__POLL_INTERVAL", POLL);
    let relay = scene.ready_relay().await;
    scene.flows(Draft::to(QUEUE)).await;
    let gap = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name LIKE 'outbox-relay/reader/%';
         INSERT INTO outbox.message (routing_key, payload) VALUES ('q', '{}')";
    for _ in 0..soak(3, 100) {
        scene.run(gap).await;
        let sent = scene.drained();
        timeout(WOKEN, sent).await.expect("found without a poll");
    }
    relay.stop().await;
}
