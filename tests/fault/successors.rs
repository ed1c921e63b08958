//! `quarantine.successors = "wait"`: rows behind a quarantined one of their key wait until somebody
//! has decided about it, whichever relay publishes.

use crate::support::queues::Letter;
use crate::support::relay::{migrate, run};
use crate::support::scene::{Draft, QUEUE, Scene};

/// Rows by way of an exchange to the scene's queue, with routing key `late` only once that is
/// bound.
async fn waiting() -> Scene {
    let mut scene = Scene::new().await;
    scene.set("QUARANTINE__SUCCESSORS", "wait");
    scene.set("RETRY__INITIAL", "100ms");
    scene.set("RETRY__MAX_DELAY", "1s");
    scene.set("RETRY__UNROUTABLE_AFTER", "1s");
    scene.queues.exchange("orders").await;
    scene.queues.bind(QUEUE, "orders", "usual").await;
    scene
}

fn usual(key: &str) -> Draft {
    Draft::by("orders", "usual").of(key)
}

/// Runs a command that has to succeed; what it said.
async fn command(scene: &Scene, arguments: &[&str]) -> String {
    let (status, lines) = run(&scene.settings, arguments).await;
    let said = lines.join("\n");
    assert!(status.success(), "{arguments:?}: {said}");
    said
}

async fn decide(scene: &Scene, verb: &str, id: i64) -> String {
    let id = id.to_string();
    let who = ["--by", "ann", "--reason", "looked at it"];
    let what = ["quarantine", verb, "--id", &id];
    command(scene, &[&what[..], &who[..]].concat()).await
}

/// Ids of the letters of a key.
fn of_key(letters: &[Letter], key: &str) -> Vec<i64> {
    let of = letters.iter().filter(|l| l.key.as_deref() == Some(key));
    of.map(|letter| letter.id).collect()
}

#[tokio::test]
async fn rows_behind_a_quarantined_one_wait_for_its_replay_and_keep_their_order() {
    let scene = waiting().await;
    let relay = scene.ready_relay().await;
    let bad = scene.write(&[Draft::by("orders", "late").of("k")]).await;
    let mut key = [bad, scene.write(&[usual("k"), usual("k")]).await].concat();
    scene
        .until("SELECT count(*) = 1 FROM outbox.quarantine")
        .await;
    scene
        .until("SELECT EXISTS (SELECT FROM outbox.message WHERE last_error LIKE '%in quarantine%')")
        .await;
    // Whatever is written meanwhile waits, too, and others flow.
    key.extend(scene.write(&[usual("k")]).await);
    scene.flows(usual("other")).await;
    let explained = command(&scene, &["explain", &key[3].to_string()]).await;
    for said in [
        format!("behind row {}", key[1]),
        format!("behind row {}", key[0]),
        format!("replay --id {}", key[0]),
    ] {
        assert!(explained.contains(&said), "{said}: {explained}");
    }
    let status = command(&scene, &["status"]).await;
    assert!(status.contains("an earlier row"), "{status}");
    // The next relay knows it from the table.
    relay.stop().await;
    let relay = scene.ready_relay().await;
    key.extend(scene.write(&[usual("k")]).await);
    for _ in 0..20 {
        scene.flows(usual("other")).await;
    }
    assert_eq!(scene.count("sent_at IS NULL").await, 4);
    scene.queues.bind(QUEUE, "orders", "late").await;
    decide(&scene, "replay", key[0]).await;
    scene.drained().await;
    relay.stop().await;
    assert_eq!(scene.quarantined().await, 0);
    assert_eq!(scene.count("attempts > 0").await, 0);
    let letters = scene.queues.take_all(QUEUE).await;
    assert_eq!(of_key(&letters, "k"), key);
}

#[tokio::test]
async fn rows_behind_a_quarantined_one_go_on_at_once_when_it_is_discarded() {
    let mut scene = waiting().await;
    // They would not come by themselves in this test's time.
    scene.set("RETRY__INITIAL", "20m");
    scene.set("RETRY__MAX_DELAY", "30m");
    let relay = scene.ready_relay().await;
    scene
        .run(
            "INSERT INTO outbox.message (exchange, routing_key, ordering_key, payload, headers)
             SELECT 'orders', 'usual', 'k', '{}', headers FROM unnest(ARRAY[
               '{\"x-outbox-id\": 1}', '{\"x-outbox-id\": 1}', NULL, NULL]::jsonb[]) AS headers",
        )
        .await;
    scene
        .until("SELECT count(*) = 2 FROM outbox.quarantine")
        .await;
    scene
        .until("SELECT EXISTS (SELECT FROM outbox.message WHERE last_error LIKE '%in quarantine%')")
        .await;
    // Two stand before them: one decision is not enough.
    decide(&scene, "discard", 1).await;
    scene.flows(usual("other")).await;
    assert_eq!(scene.count("sent_at IS NULL").await, 2);
    decide(&scene, "discard", 2).await;
    scene.drained().await;
    relay.stop().await;
    let letters = scene.queues.take_all(QUEUE).await;
    assert_eq!(of_key(&letters, "k"), [3, 4]);
}

#[tokio::test]
async fn a_key_longer_than_an_index_entry_is_quarantined_and_waited_for() {
    let scene = waiting().await;
    migrate(&scene.database).await;
    let relay = scene.ready_relay().await;
    scene
        .run(
            "INSERT INTO outbox.message (exchange, routing_key, ordering_key, payload, headers)
             SELECT 'orders', 'usual', key, '{}', headers FROM unnest(ARRAY[
               '{\"x-outbox-id\": 1}', NULL]::jsonb[]) AS headers,
               (SELECT string_agg(md5(n::text), '') AS key FROM generate_series(1, 500) AS n) AS keys",
        )
        .await;
    scene
        .until("SELECT EXISTS (SELECT FROM outbox.message WHERE last_error LIKE '%in quarantine%')")
        .await;
    decide(&scene, "discard", 1).await;
    scene.drained().await;
    relay.stop().await;
}
