//! A row that the broker itself refuses, among rows that are fine, and keys and destinations
//! with very many rows behind one that is stuck.

use tokio::time::Instant;

use crate::soak;
use crate::support::postgres::database;
use crate::support::rabbit::Rabbit;
use crate::support::scene::{Draft, QUEUE, Scene};

/// The broker's own limit in these tests; the relay knows nothing of it.
const BROKERS_LIMIT: usize = 100_000;

/// A broker that takes nothing above its own limit.
async fn small_minded(rabbit: &Rabbit) -> Scene {
    let limit = format!("application:set_env(rabbit, max_message_size, {BROKERS_LIMIT})");
    rabbit.eval(&limit).await;
    let database = database().await;
    let mut scene = Scene::on(database.url.clone(), rabbit.create_vhost().await).await;
    scene.keep(database);
    scene
}

/// F7 and F42: the broker closes the channel (406) over one row at the head of 1,000 good ones.
#[tokio::test]
async fn a_row_that_the_broker_refuses_is_charged_and_its_neighbours_are_sent_at_once() {
    let rabbit = Rabbit::start().await;
    let mut scene = small_minded(&rabbit).await;
    scene.set("RETRY__INITIAL", "500ms");
    scene.set("RETRY__MAX_DELAY", "2s");
    scene.set("RETRY__MAX_ATTEMPTS", "4");
    let too_large = Draft {
        payload: format!("\"{}\"", "x".repeat(2 * BROKERS_LIMIT)),
        ..Draft::to(QUEUE).of("bad")
    };
    let poison = scene.write(&[too_large, Draft::to(QUEUE).of("bad")]).await[0];
    scene.write_many(1000, 100).await;
    let relay = scene.ready_relay().await;
    scene
        .until("SELECT count(*) = 2 FROM outbox.message WHERE sent_at IS NULL")
        .await;
    // Others keep flowing while it is tried again.
    let mut tries = 0;
    while scene.count(&format!("id = {poison}")).await > 0 {
        scene.flows(Draft::to(QUEUE)).await;
        let attempts = scene.ask("SELECT max(attempts) FROM outbox.message").await;
        tries = tries.max(attempts);
    }
    assert_eq!(tries, 3, "the fourth failure is the last");
    scene.drained().await;
    let reason: String = scene
        .ask("SELECT concat_ws(' ', reason_class, attempts, reason) FROM outbox.quarantine")
        .await;
    for said in ["refused 4", "406", "200002", "100000"] {
        assert!(reason.contains(said), "{said} is not in: {reason}");
    }
    relay.stop().await;
    let letters = scene.queues.take_all(QUEUE).await;
    let times = |id| letters.iter().filter(|letter| letter.id == id).count();
    // Each of the four losses of a channel may repeat what was on it.
    assert!(letters.iter().all(|letter| times(letter.id) <= 5));
    assert_eq!(times(poison), 0);
}

/// F43.
#[tokio::test]
async fn a_refused_row_goes_before_the_next_of_its_key() {
    let mut scene = Scene::new().await;
    scene.set("RETRY__INITIAL", "300ms");
    scene.set("RETRY__MAX_DELAY", "1s");
    scene.queues.limited("full", 1).await;
    scene.write(&[Draft::to("full")]).await;
    let relay = scene.ready_relay().await;
    scene.drained().await;
    let a = scene.write(&[Draft::to("full").of("k")]).await[0];
    let b = scene.write(&[Draft::to(QUEUE).of("k")]).await[0];
    // Refused twice: its next attempt moves.
    let refusal = async || -> Option<f64> {
        let select = format!(
            "SELECT extract(epoch FROM retry_at)::float8 FROM outbox.message WHERE id = {a}"
        );
        scene.ask(&select).await
    };
    let (start, mut seen) = (Instant::now(), Vec::new());
    while seen.len() < 2 {
        assert!(
            start.elapsed() < crate::support::PATIENCE,
            "refused {} times",
            seen.len()
        );
        let at = refusal().await;
        if at.is_some() && !seen.contains(&at) {
            seen.push(at);
        }
        // Other keys are busy meanwhile.
        scene.flows(Draft::to(QUEUE).of("other")).await;
    }
    assert_eq!(
        scene.count(&format!("id = {b} AND sent_at IS NULL")).await,
        1
    );
    scene.queues.purge("full").await;
    scene.drained().await;
    relay.stop().await;
    let order = format!(
        "SELECT (SELECT sent_at FROM outbox.message WHERE id = {a}) <=
                (SELECT sent_at FROM outbox.message WHERE id = {b})"
    );
    assert!(scene.ask::<bool>(&order).await);
    let arrived = scene.queues.take_all(QUEUE).await;
    assert_eq!(arrived.iter().filter(|letter| letter.id == b).count(), 1);
    assert_eq!(scene.queues.take_ready("full").await.len(), 1);
}

/// F50: rows of one key, or without a key to one destination, behind one that is stuck.
async fn stuck_at_the_head(key: Option<&str>) {
    let mut scene = Scene::new().await;
    scene.set("RETRY__INITIAL", "300ms");
    scene.set("RETRY__MAX_DELAY", "1s");
    scene.set("RELAY__MAX_BUFFERED_BYTES", "64MiB");
    let rows = soak(50_000, 500_000);
    let insert = format!(
        "INSERT INTO outbox.message (exchange, routing_key, ordering_key, payload)
         SELECT '', 'nowhere', {}, to_json(repeat('x', 1000)) FROM generate_series(1, {rows})",
        key.map_or("NULL".to_owned(), |key| format!("'{key}'"))
    );
    scene.run(&insert).await;
    let relay = scene.ready_relay().await;
    let before = relay.resident();
    scene
        .until("SELECT EXISTS (SELECT FROM outbox.message WHERE last_error LIKE '%NO_ROUTE%')")
        .await;
    for n in 0..30 {
        let row = scene
            .write(&[Draft::to(QUEUE).of(format!("key-{n}"))])
            .await[0];
        let sent = format!("SELECT sent_at IS NOT NULL FROM outbox.message WHERE id = {row}");
        scene.until(&sent).await;
    }
    let grown = relay.resident().saturating_sub(before);
    assert!(grown < (64 + 40) << 20, "{grown} bytes more");
    let waiting = scene.count("sent_at IS NULL").await;
    assert_eq!(waiting, rows, "they all wait");
    assert!(
        scene.count("retry_at IS NOT NULL").await < 5000,
        "most were left alone"
    );
    // The way opens: all go, in order. One key is one row for each confirm, so that of very
    // many most are taken away first, and of half a million those that would only take time.
    let rows = match key {
        Some(_) => keep_first(&scene, 2000).await,
        None => keep_first(&scene, 50_000).await,
    };
    scene.queues.classic("nowhere").await;
    scene.drained().await;
    relay.stop().await;
    let letters = scene.queues.take_all("nowhere").await;
    assert_eq!(i64::try_from(letters.len()).expect("small"), rows);
    assert!(letters.is_sorted_by_key(|letter| letter.id) || key.is_none());
    assert_eq!(scene.count("attempts > 0").await, 0);
    scene.judge().await;
}

/// Deletes all pending rows but the first.
async fn keep_first(scene: &Scene, count: i64) -> i64 {
    let delete = format!(
        "DELETE FROM outbox.message WHERE sent_at IS NULL AND id > (
           SELECT max(id) FROM (SELECT id FROM outbox.message WHERE sent_at IS NULL
                                ORDER BY id LIMIT {count}) AS first)"
    );
    scene.run(&delete).await;
    count
}

#[tokio::test]
async fn a_key_with_very_many_rows_behind_a_stuck_one_delays_nobody() {
    stuck_at_the_head(Some("k")).await;
}

#[tokio::test]
async fn a_destination_with_very_many_rows_behind_a_stuck_one_delays_nobody() {
    stuck_at_the_head(None).await;
}
