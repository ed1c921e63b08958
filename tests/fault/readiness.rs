//! `/readyz` while destinations refuse: true about the rows that wait, and no reason to take the
//! relay away. What it says when a server is away stands beside those faults.

use crate::support::postgres::database;
use crate::support::rabbit::Rabbit;
use crate::support::relay::Relay;
use crate::support::scene::{Draft, QUEUE, Scene, eventually};

/// Waits until the relay is ready and says this of due rows.
async fn says(relay: &Relay, state: &str) {
    eventually(&format!("/readyz says {state}"), async || {
        let (code, page) = relay.get("/readyz").await.expect("an answer");
        let page: serde_json::Value = serde_json::from_str(&page).expect("JSON");
        assert_eq!(code, 200, "the relay is not to blame: {page}");
        page["progress"]["state"] == state
    })
    .await;
}

async fn impatient() -> Scene {
    let mut scene = Scene::new().await;
    scene.set("RETRY__INITIAL", "300ms");
    scene.set("RETRY__MAX_DELAY", "1s");
    scene
}

#[tokio::test]
async fn rows_that_a_destination_refuses_are_not_called_nothing() {
    let scene = impatient().await;
    scene.queues.limited("full", 1).await;
    scene.write(&[Draft::to("full")]).await;
    let relay = scene.ready_relay().await;
    scene.drained().await;
    says(&relay, "idle").await;
    for (refusing, error) in [
        (Draft::to("absent"), "%NO_ROUTE%"),
        (Draft::by("missing", "x"), "%404%"),
        (Draft::to("full"), "%refused%"),
    ] {
        scene.write(&[refusing.clone(), refusing]).await;
        let waits = format!(
            "SELECT EXISTS (SELECT FROM outbox.message WHERE sent_at IS NULL AND last_error ILIKE '{error}')"
        );
        scene.until(&waits).await;
        says(&relay, "waiting").await;
        scene.flows(Draft::to(QUEUE)).await;
        says(&relay, "waiting").await;
    }
    scene.queues.classic("absent").await;
    scene.queues.exchange("missing").await;
    scene.queues.bind(QUEUE, "missing", "#").await;
    scene.queues.purge("full").await;
    scene
        .until("SELECT count(*) <= 1 FROM outbox.message WHERE sent_at IS NULL")
        .await;
    scene.queues.purge("full").await;
    scene.drained().await;
    says(&relay, "idle").await;
    relay.stop().await;
}

/// After a restart it is found out anew.
#[tokio::test]
async fn a_key_behind_a_row_that_is_tried_again_is_not_called_nothing() {
    let scene = impatient().await;
    scene
        .write(&[Draft::to("absent").of("k"), Draft::to(QUEUE).of("k")])
        .await;
    for _ in 0..2 {
        let relay = scene.ready_relay().await;
        says(&relay, "waiting").await;
        relay.stop().await;
    }
    scene.queues.classic("absent").await;
    let relay = scene.ready_relay().await;
    scene.drained().await;
    says(&relay, "idle").await;
    relay.stop().await;
}

/// Without the broker nothing is read, so that the last word about due rows may be an old one.
#[tokio::test]
async fn a_row_that_was_marked_is_not_called_locked_because_the_broker_is_gone() {
    let mut rabbit = Rabbit::start().await;
    let database = database().await;
    let scene = Scene::on(database.url.clone(), rabbit.create_vhost().await).await;
    let locked = scene.write(&[Draft::to(QUEUE)]).await[0];
    let locker = scene.second_client().await;
    let lock = format!("BEGIN; SELECT FROM outbox.message WHERE id = {locked} FOR UPDATE");
    locker.batch_execute(&lock).await.expect("locked");
    let relay = scene.ready_relay().await;
    scene.queues.reaches(QUEUE, 1).await;
    // The log names the row that is sent and cannot be marked, and the session's lock.
    relay.printed("rows cannot be settled").await;
    let told = relay.output();
    let told: Vec<_> = told
        .iter()
        .filter(|line| line.contains("cannot be settled"))
        .collect();
    let names_it = told[0].contains(&format!("row={locked}")) && told[0].contains("pg_locks");
    assert!(names_it, "{told:?}");
    // Reads go on meanwhile, and find nothing else.
    scene.flows(Draft::to(QUEUE)).await;
    rabbit.kill();
    relay.answers("/readyz", 503).await;
    locker.batch_execute("COMMIT").await.expect("unlocked");
    scene.sent(locked).await;
    relay.does_not_progress(&["unknown"]).await;
    relay.printed("somebody held locked are settled").await;
    relay.stop().await;
}
