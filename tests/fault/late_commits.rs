//! Transactions that are open for long, or end in another order than they began.

use tokio_postgres::Client;

use crate::support::postgres::connect;
use crate::support::scene::{Draft, QUEUE, Scene};

async fn transaction(scene: &Scene) -> Client {
    let client = connect(&scene.database).await;
    client
        .batch_execute("BEGIN; SELECT pg_current_xact_id()")
        .await
        .expect("a transaction");
    client
}

async fn insert(client: &Client, key: Option<&str>) -> i64 {
    let insert = "INSERT INTO outbox.message (routing_key, ordering_key, payload)
         VALUES ('q', $1, '{}') RETURNING id";
    client
        .query_one(insert, &[&key])
        .await
        .expect(insert)
        .get(0)
}

/// F20.
#[tokio::test]
async fn a_late_commit_delays_nobody_and_is_sent_within_a_poll() {
    let scene = Scene::new().await;
    let relay = scene.ready_relay().await;
    let slow = transaction(&scene).await;
    let first = insert(&slow, Some("a")).await;
    let second = scene.write(&[Draft::to(QUEUE).of("b")]).await[0];
    assert!(first < second);
    scene.sent(second).await;
    // More goes on meanwhile.
    for _ in 0..5 {
        let next = scene.write(&[Draft::to(QUEUE)]).await[0];
        scene.sent(next).await;
    }
    slow.batch_execute("COMMIT").await.expect("a commit");
    scene.sent(first).await;
    relay.stop().await;
}

/// F20, one key: what committed first goes first, though its id is higher.
#[tokio::test]
async fn rows_of_a_late_transaction_and_of_its_savepoint_are_sent() {
    let scene = Scene::new().await;
    let relay = scene.ready_relay().await;
    let slow = transaction(&scene).await;
    let outer = insert(&slow, None).await;
    slow.batch_execute("SAVEPOINT s")
        .await
        .expect("a savepoint");
    let inner = insert(&slow, None).await;
    slow.batch_execute("RELEASE s; SAVEPOINT t")
        .await
        .expect("a savepoint");
    let undone = insert(&slow, None).await;
    slow.batch_execute("ROLLBACK TO t")
        .await
        .expect("a rollback");
    let other = scene.write(&[Draft::to(QUEUE)]).await[0];
    scene.sent(other).await;
    slow.batch_execute("COMMIT").await.expect("a commit");
    scene.sent(outer).await;
    scene.sent(inner).await;
    relay.stop().await;
    let mut ids: Vec<i64> = scene
        .queues
        .take_all(QUEUE)
        .await
        .iter()
        .map(|l| l.id)
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, [outer, inner, other]);
    assert!(!ids.contains(&undone));
}

/// F21.
#[tokio::test]
async fn an_unrelated_open_transaction_delays_nobody() {
    let scene = Scene::new().await;
    let relay = scene.ready_relay().await;
    let unrelated = transaction(&scene).await;
    unrelated
        .batch_execute("CREATE TABLE elsewhere (x int)")
        .await
        .expect("a table");
    let snapshot = connect(&scene.database).await;
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox.message";
    snapshot.batch_execute(begin).await.expect(begin);
    for _ in 0..20 {
        scene.flows(Draft::to(QUEUE).of("k")).await;
    }
    relay.stop().await;
    assert_eq!(scene.judge().await.duplicates, 0);
}

/// F23: the transaction that began last, and so has the higher xid, gets the key's lock first.
#[tokio::test]
async fn rows_of_one_key_are_delivered_in_commit_order_whatever_their_transaction_ids() {
    let scene = Scene::new().await;
    scene
        .run("CREATE TABLE account (id int PRIMARY KEY); INSERT INTO account VALUES (1)")
        .await;
    let relay = scene.ready_relay().await;
    let mut expected = Vec::new();
    for _ in 0..10 {
        let (early, late) = (transaction(&scene).await, transaction(&scene).await);
        let lock = "SELECT FROM account WHERE id = 1 FOR UPDATE";
        late.execute(lock, &[]).await.expect(lock);
        expected.push(insert(&late, Some("k")).await);
        let second = async {
            early.execute(lock, &[]).await.expect(lock);
            let id = insert(&early, Some("k")).await;
            early.batch_execute("COMMIT").await.expect("a commit");
            id
        };
        let first = async {
            // `early` waits for the lock by now, or will.
            late.batch_execute("COMMIT").await.expect("a commit");
        };
        let (id, ()) = tokio::join!(second, first);
        expected.push(id);
    }
    scene.drained().await;
    relay.stop().await;
    let ids: Vec<i64> = scene
        .queues
        .take_all(QUEUE)
        .await
        .iter()
        .map(|l| l.id)
        .collect();
    assert_eq!(ids, expected);
}
