//! Messages that no queue takes, among messages that are fine.

use std::collections::BTreeSet;

use crate::soak;
use crate::support::queues::Letter;
use crate::support::scene::{Draft, QUEUE, Scene};

const BATCH: usize = 500;

fn ids(letters: &[Letter]) -> BTreeSet<i64> {
    letters.iter().map(|letter| letter.id).collect()
}

/// F1: in every batch of 500 one row, in a different place each time, goes nowhere.
async fn exactly_the_unroutable_row_stays(same_message_id: bool) {
    let mut scene = Scene::new().await;
    // Nothing is tried again within the test.
    scene.set("RETRY__INITIAL", "5m");
    let relay = scene.ready_relay().await;
    let (mut unroutable, mut routable) = (BTreeSet::new(), BTreeSet::new());
    for round in 0..soak(15, 200) {
        let bad = (round * 37 + 1) % BATCH;
        // Each bad row has a destination of its own, or it would be held back unpublished.
        let drafts: Vec<Draft> = (0..BATCH)
            .map(|n| match n == bad {
                true => Draft::to(&format!("nowhere-{round}")),
                false => Draft::to(QUEUE),
            })
            .collect();
        let rows = if same_message_id {
            write_with_one_message_id(&scene, &drafts).await
        } else {
            scene.write(&drafts).await
        };
        for (n, id) in rows.into_iter().enumerate() {
            let of = if n == bad {
                &mut unroutable
            } else {
                &mut routable
            };
            of.insert(id);
        }
        scene
            .until("SELECT NOT EXISTS (SELECT FROM outbox.message WHERE sent_at IS NULL AND retry_at IS NULL)")
            .await;
    }
    only_the_unroutable_wait(&scene, routable, unroutable).await;
    relay.stop().await;
}

async fn only_the_unroutable_wait(
    scene: &Scene,
    routable: BTreeSet<i64>,
    unroutable: BTreeSet<i64>,
) {
    let letters = scene.queues.take_all(QUEUE).await;
    assert_eq!(letters.len(), routable.len(), "no good row went out twice");
    assert_eq!(ids(&letters), routable);
    let pending: Vec<i64> = scene
        .ask("SELECT array_agg(id ORDER BY id) FROM outbox.message WHERE sent_at IS NULL")
        .await;
    assert_eq!(pending, unroutable.into_iter().collect::<Vec<_>>());
    assert_eq!(
        scene
            .count("sent_at IS NOT NULL AND retry_at IS NOT NULL")
            .await,
        0
    );
    assert_eq!(
        scene.count("attempts > 0").await,
        0,
        "time is charged, not attempts"
    );
    assert_eq!(
        scene
            .count("sent_at IS NULL AND last_error NOT LIKE '%312 NO_ROUTE%'")
            .await,
        0
    );
}

async fn write_with_one_message_id(scene: &Scene, drafts: &[Draft]) -> Vec<i64> {
    let keys: Vec<&str> = drafts
        .iter()
        .map(|draft| draft.routing_key.as_str())
        .collect();
    let insert = "INSERT INTO outbox.message (message_id, routing_key, payload)
         SELECT 'the same', r, '{}' FROM unnest($1::text[]) WITH ORDINALITY AS new (r, place)
         ORDER BY place RETURNING id";
    let rows = scene.client.query(insert, &[&keys]).await;
    rows.expect(insert).iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn of_500_rows_in_flight_exactly_the_unroutable_one_stays() {
    exactly_the_unroutable_row_stays(false).await;
}

#[tokio::test]
async fn of_500_rows_with_one_message_id_exactly_the_unroutable_one_stays() {
    exactly_the_unroutable_row_stays(true).await;
}

/// F2: the binding comes later than the row.
#[tokio::test]
async fn a_row_is_sent_by_itself_once_a_binding_appears() {
    let mut scene = Scene::new().await;
    scene.set("RETRY__INITIAL", "200ms");
    scene.set("RETRY__MAX_DELAY", "1s");
    scene.queues.exchange("orders").await;
    let relay = scene.ready_relay().await;
    let rows = scene.write(&[Draft::by("orders", "created").of("k")]).await;
    scene
        .until("SELECT coalesce(bool_and(last_error LIKE '%312 NO_ROUTE%'), false) FROM outbox.message")
        .await;
    let reads_on = scene
        .write(&[Draft::to(QUEUE), Draft::by("orders", "created").of("k")])
        .await;
    scene
        .until(&format!(
            "SELECT sent_at IS NOT NULL FROM outbox.message WHERE id = {}",
            reads_on[0]
        ))
        .await;
    assert_eq!(scene.count("sent_at IS NULL").await, 2);
    scene.queues.bind(QUEUE, "orders", "#").await;
    scene.drained().await;
    relay.stop().await;
    let letters = scene.collect(QUEUE).await;
    scene.ledger.report().assert_clean();
    let ids: Vec<i64> = letters.iter().map(|letter| letter.id).collect();
    assert_eq!(ids, [reads_on[0], rows[0], reads_on[1]]);
    assert_eq!(
        scene
            .ask::<i64>("SELECT count(*) FROM outbox.quarantine")
            .await,
        0
    );
    assert_eq!(scene.count("attempts > 0").await, 0);
}

/// F2b: an exchange whose messages nobody need want.
#[tokio::test]
async fn a_row_to_an_optional_exchange_is_sent_though_nobody_listens() {
    let mut scene = Scene::new().await;
    scene.set("RELAY__OPTIONAL_EXCHANGES", "metrics.*");
    scene.queues.exchange("metrics.cpu").await;
    scene.write(&[Draft::by("metrics.cpu", "x")]).await;
    scene.run_until_empty().await;
    assert_eq!(
        scene
            .count("sent_at IS NOT NULL AND retry_at IS NULL")
            .await,
        1
    );
}
