//! P5: rows of one key arrive in the order of their commits, whatever happens around them.

use crate::support::queues::first_ids;
use crate::support::scene::{Draft, QUEUE, Scene};
use crate::support::writers::Load;

#[tokio::test]
async fn rows_of_a_key_arrive_in_order_though_relays_come_and_go() {
    let mut scene = Scene::new().await;
    // Small steps, so that keys are put aside and taken up again often.
    scene.set("RELAY__BATCH_SIZE", "20");
    scene.set("RELAY__MAX_IN_FLIGHT", "20");
    let load = Load {
        writers: 4,
        keys: 7,
        ..Load::to(QUEUE)
    };
    let mut writers = scene.writers(&load);
    for round in 0..4 {
        let mut relay = scene.ready_relay().await;
        writers.write(300).await;
        if round % 2 == 0 {
            relay.kill();
        } else {
            relay.stop().await;
        }
    }
    writers.stop().await;
    let relay = scene.ready_relay().await;
    scene.drained().await;
    relay.stop().await;
    let report = scene.judge().await;
    assert!(report.duplicates <= 2 * 2 * 20, "{report}");
}

#[tokio::test]
async fn one_hot_key_and_many_cold_ones_keep_their_order() {
    let mut scene = Scene::new().await;
    scene.set("RELAY__BATCH_SIZE", "50");
    let draft = |n: usize| match n % 2 {
        0 => Draft::to(QUEUE).of("hot"),
        _ => Draft::to(QUEUE).of(format!("cold-{}", n % 100)),
    };
    scene.write(&(0..1000).map(draft).collect::<Vec<_>>()).await;
    let relay = scene.ready_relay().await;
    // Cold keys do not wait for the hot one.
    for n in 0..10 {
        scene.flows(Draft::to(QUEUE).of(format!("new-{n}"))).await;
    }
    scene.drained().await;
    relay.stop().await;
    assert_eq!(scene.judge().await.duplicates, 0);
}

/// Keys whose rows are refused for a while, among keys that are not.
#[tokio::test]
async fn retried_rows_keep_their_keys_in_order() {
    let mut scene = Scene::new().await;
    scene.set("RETRY__INITIAL", "200ms");
    scene.set("RETRY__MAX_DELAY", "500ms");
    scene.queues.exchange("orders").await;
    scene.queues.bind(QUEUE, "orders", "good").await;
    let draft = |n: usize| {
        let routing_key = if n % 10 == 3 { "late" } else { "good" };
        Draft::by("orders", routing_key).of(format!("key-{}", n % 17))
    };
    scene.write(&(0..500).map(draft).collect::<Vec<_>>()).await;
    let relay = scene.ready_relay().await;
    scene
        .until("SELECT EXISTS (SELECT FROM outbox.message WHERE last_error LIKE '%NO_ROUTE%')")
        .await;
    scene
        .write(&(500..700).map(draft).collect::<Vec<_>>())
        .await;
    scene.queues.bind(QUEUE, "orders", "late").await;
    scene.drained().await;
    relay.stop().await;
    let letters = scene.collect(QUEUE).await;
    scene.ledger.report().assert_clean();
    assert_eq!(first_ids(&letters).len(), 700);
    assert_eq!(letters.len(), 700, "a returned message is in no queue");
}

#[tokio::test]
async fn where_no_order_is_wanted_keys_do_not_wait_for_confirms() {
    let mut scene = Scene::new().await;
    scene.set("RELAY__ORDERING", "none");
    let one_key = |_| Draft::to(QUEUE).of("k");
    scene
        .write(&(0..2000).map(one_key).collect::<Vec<_>>())
        .await;
    scene.run_until_empty().await;
    let letters = scene.queues.take_all(QUEUE).await;
    assert_eq!(first_ids(&letters).len(), 2000);
    assert!(
        letters
            .iter()
            .all(|letter| letter.key.as_deref() == Some("k"))
    );
}
