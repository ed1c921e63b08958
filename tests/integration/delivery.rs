//! P1 and P2: what was committed arrives, what was rolled back does not, at its time.

use crate::support::relay::Relay;
use crate::support::scene::{Draft, QUEUE, Scene};
use crate::support::writers::Load;

#[tokio::test]
async fn what_was_committed_arrives_and_what_was_rolled_back_does_not() {
    let scene = Scene::new().await;
    scene.write_many(200, 20).await;
    let relay = scene.ready_relay().await;
    let load = Load {
        rolled_back: 3,
        ..Load::to(QUEUE)
    };
    let mut writers = scene.writers(&load);
    writers.write(1000).await;
    writers.stop().await;
    scene.drained().await;
    relay.stop().await;
    let report = scene.judge().await;
    assert!(
        report.committed >= 1200 && report.rolled_back > 100,
        "{report}"
    );
    assert_eq!(report.duplicates, 0, "{report}");
}

#[tokio::test]
async fn a_scheduled_row_waits_for_its_time_and_holds_nobody() {
    let scene = Scene::new().await;
    let relay = scene.ready_relay().await;
    let insert = "INSERT INTO outbox.message (routing_key, ordering_key, payload, available_at)
         SELECT 'q', 'k', '{}', clock_timestamp() + make_interval(secs => s)
         FROM unnest(ARRAY[0.7, 1.4, 3600]) AS s";
    scene.run(insert).await;
    scene.flows(Draft::to(QUEUE).of("k")).await;
    scene
        .until("SELECT count(*) = 1 FROM outbox.message WHERE sent_at IS NULL")
        .await;
    let early = scene.count("sent_at < available_at").await;
    assert_eq!(early, 0);
    let late = scene.count("sent_at > available_at + interval '5 s'").await;
    assert_eq!(late, 0, "not only when something else happens");
    relay.stop().await;
    // The one that is left is found by the next relay, too.
    let relay = scene.ready_relay().await;
    scene
        .run("UPDATE outbox.message SET available_at = clock_timestamp() + interval '300 ms' WHERE sent_at IS NULL")
        .await;
    scene.drained().await;
    relay.stop().await;
    assert_eq!(scene.queues.take_all(QUEUE).await.len(), 4);
}

/// As docs/writing-rows.md tells it: by a new xid, and not by the sweep a minute later.
#[tokio::test]
async fn a_row_that_is_brought_forward_with_a_new_xid_goes_at_once() {
    let scene = Scene::new().await;
    let relay = scene.ready_relay().await;
    let insert = "INSERT INTO outbox.message (routing_key, payload, available_at)
         VALUES ('q', '{}', clock_timestamp() + interval '1 h')";
    scene.run(insert).await;
    // Read past it.
    scene.flows(Draft::to(QUEUE)).await;
    let forward = "UPDATE outbox.message SET available_at = NULL, xid = DEFAULT,
           created_at = clock_timestamp() WHERE sent_at IS NULL";
    scene.run(forward).await;
    scene.drained().await;
    let late = scene.count("sent_at > created_at + interval '15 s'").await;
    assert_eq!(late, 0, "not by the sweep");
    relay.stop().await;
}

#[tokio::test]
async fn a_run_until_empty_sends_what_is_due_and_says_what_is_left() {
    let mut scene = Scene::new().await;
    // So that what waits still waits at the end, however long that takes.
    scene.set("RETRY__INITIAL", "5m");
    scene.write_many(3000, 100).await;
    scene
        .run(
            "INSERT INTO outbox.message (routing_key, payload, available_at)
             VALUES ('q', '{}', clock_timestamp() + interval '1 h');
             INSERT INTO outbox.message (routing_key, payload, properties)
             VALUES ('q', '{}', '{\"priority\": 1000}')",
        )
        .await;
    let refused = Draft::to("nowhere").of("waits");
    scene.write(&[refused, Draft::to(QUEUE).of("waits")]).await;
    let relay = Relay::start_with(&scene.settings, &["run", "--until-empty"]);
    let status = relay.ended().await;
    assert!(status.success(), "{status}");
    let output = relay.output().join("\n");
    for line in [
        "due: 1 (held back by others of their key",
        "scheduled for later: 1",
        "waiting to be retried: 1",
        "in quarantine: 1",
    ] {
        assert!(output.contains(line), "no \"{line}\" in:\n{output}");
    }
    assert_eq!(scene.queues.take_all(QUEUE).await.len(), 3000);
    // Nothing due at all: it ends at once.
    scene.run_until_empty().await;
}

#[tokio::test]
async fn rows_are_deleted_when_sent_where_the_configuration_says_so() {
    let mut scene = Scene::new().await;
    scene.set("OUTBOX__ON_SENT", "delete");
    scene.write_many(500, 50).await;
    scene.run_until_empty().await;
    assert_eq!(scene.count("true").await, 0);
    scene.judge().await;
}
