//! A quorum queue that is deleted and made again under load. What a deleted queue had confirmed
//! is gone with it; nothing else is.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::soak;
use crate::support::scene::{Draft, Scene};
use crate::support::writers::{Load, Writers};

async fn scene() -> Scene {
    let mut scene = Scene::new().await;
    scene.set("RETRY__INITIAL", "200ms");
    scene.set("RETRY__MAX_DELAY", "1s");
    scene.set("BROKER__CONFIRM_TIMEOUT", "5s");
    scene.queues.quorum("stays").await;
    scene.queues.quorum("goes").await;
    scene
}

/// Writers to one queue. What became of which row, the table says; each group numbers its own.
fn writers(scene: &Scene, queue: &str) -> Writers {
    let load = Load {
        keys: 40,
        pause: Duration::from_millis(5),
        ..Load::to(queue)
    };
    Writers::start(&scene.database, &Arc::default(), &load)
}

async fn rows(scene: &Scene, condition: &str) -> HashSet<i64> {
    let sql =
        format!("SELECT coalesce(array_agg(id), '{{}}') FROM outbox.message WHERE {condition}");
    let ids: Vec<i64> = scene.ask(&sql).await;
    ids.into_iter().collect()
}

/// Every one of these rows is in the queue.
async fn holds(scene: &Scene, queue: &str, expected: &HashSet<i64>) {
    let letters = scene.queues.take_all(queue).await;
    let arrived: HashSet<i64> = letters.into_iter().map(|letter| letter.id).collect();
    let missing = expected.difference(&arrived).count();
    assert_eq!(missing, 0, "of {} rows to {queue}", expected.len());
}

#[tokio::test]
async fn a_queue_deleted_and_made_again_under_load_loses_only_what_it_took_with_it() {
    let scene = scene().await;
    let relay = scene.ready_relay().await;
    let (mut steady, mut troubled) = (writers(&scene, "stays"), writers(&scene, "goes"));
    let mut waiting = HashSet::new();
    for _ in 0..soak(3, 100) {
        troubled.write(300).await;
        scene.queues.delete("goes").await;
        // Written while there is no queue.
        troubled.write(300).await;
        let waits = "SELECT EXISTS (SELECT FROM outbox.message
             WHERE routing_key = 'goes' AND sent_at IS NULL AND last_error LIKE '%NO_ROUTE%')";
        scene.until(waits).await;
        scene.flows(Draft::to("stays")).await;
        waiting = rows(&scene, "routing_key = 'goes' AND sent_at IS NULL").await;
        scene.queues.quorum("goes").await;
    }
    troubled.write(300).await;
    steady.write(100).await;
    steady.stop().await;
    troubled.stop().await;
    scene.drained().await;
    relay.stop().await;
    assert_eq!(scene.quarantined().await, 0);
    assert_eq!(scene.count("attempts > 0").await, 0, "no row is to blame");
    let steady = rows(&scene, "routing_key = 'stays'").await;
    holds(&scene, "stays", &steady).await;
    // What was not sent when the queue was made for the last time.
    assert!(waiting.len() > 100, "{}", waiting.len());
    holds(&scene, "goes", &waiting).await;
}
