//! The wake-up gate: who is notified and who is not, and what it does to transactions.

use outbox_relay::commands::migrate::MigrateArgs;
use outbox_relay::store::postgres::schema::{Wake, wake_channel, wake_key};
use outbox_relay::store::postgres::session::Session;
use tokio_postgres::{Client, Notification};

use crate::outbox::{number, outbox, outbox_with, refusal, relay_session};
use crate::support::PATIENCE;
use crate::support::postgres::Database;

const WRITE: &str = "INSERT INTO outbox.message (routing_key, payload) VALUES ('q', '{}')";

/// A relay that listens. Asleep it holds the gate's lock, awake it does not.
struct Relay(Session);

impl Relay {
    async fn listening(database: &Database) -> Self {
        let session = relay_session(database).await;
        let listen = format!(
            "LISTEN {}; LISTEN sentinel",
            wake_channel("outbox", "message")
        );
        session
            .client
            .batch_execute(&listen)
            .await
            .expect("listening");
        Self(session)
    }

    async fn asleep(database: &Database) -> Self {
        let relay = Self::listening(database).await;
        assert!(relay.falls_asleep().await);
        relay
    }

    async fn falls_asleep(&self) -> bool {
        let key = wake_key("outbox", "message");
        let sql = format!("SELECT pg_try_advisory_lock({key})");
        let row = self.0.client.query_one(&sql, &[]).await;
        row.expect("an answer").get(0)
    }

    async fn next(&mut self) -> Notification {
        tokio::time::timeout(PATIENCE, self.0.notifications.recv())
            .await
            .expect("a notification in time")
            .expect("the session lives")
    }

    /// PostgreSQL delivers in the order of commits: what was committed before is here by now.
    async fn heard_nothing_before(&mut self, client: &Client) {
        client.batch_execute("NOTIFY sentinel").await.expect("sent");
        assert_eq!(self.next().await.channel(), "sentinel");
    }
}

#[tokio::test]
async fn a_commit_wakes_a_sleeping_relay() {
    let (database, client) = outbox().await;
    let mut relay = Relay::asleep(&database).await;
    client.batch_execute(WRITE).await.expect("committed");
    let heard = relay.next().await;
    assert_eq!(heard.channel(), wake_channel("outbox", "message"));
    assert_eq!(heard.payload(), "");
}

#[tokio::test]
async fn a_row_that_is_made_news_wakes_as_well() {
    let (database, client) = outbox().await;
    client.batch_execute(WRITE).await.expect("committed");
    let mut relay = Relay::asleep(&database).await;
    let again = "UPDATE outbox.message SET available_at = NULL, xid = DEFAULT";
    client.batch_execute(again).await.expect("committed");
    let heard = relay.next().await;
    assert_eq!(heard.channel(), wake_channel("outbox", "message"));
}

#[tokio::test]
async fn a_commit_says_nothing_while_the_relay_is_awake() {
    let (database, client) = outbox().await;
    let mut relay = Relay::listening(&database).await;
    for _ in 0..3 {
        client.batch_execute(WRITE).await.expect("committed");
    }
    relay.heard_nothing_before(&client).await;
}

#[tokio::test]
async fn a_relay_cannot_fall_asleep_past_a_writer_that_said_nothing() {
    let (database, client) = outbox().await;
    let relay = Relay::listening(&database).await;
    client
        .batch_execute(&format!("BEGIN; {WRITE}"))
        .await
        .expect("open");
    assert!(!relay.falls_asleep().await);
    client.batch_execute("COMMIT").await.expect("committed");
    assert!(relay.falls_asleep().await);
}

#[tokio::test]
async fn writers_do_not_wait_for_each_other_at_the_gate() {
    let (database, client) = outbox().await;
    let other = database.connect().await;
    client
        .batch_execute(&format!("BEGIN; {WRITE}"))
        .await
        .expect("open");
    other
        .batch_execute(&format!("SET lock_timeout = '1s'; {WRITE}"))
        .await
        .expect("shared locks do not conflict");
}

#[tokio::test]
async fn a_rollback_wakes_nobody() {
    let (database, client) = outbox().await;
    let mut relay = Relay::asleep(&database).await;
    let rolled_back =
        format!("BEGIN; {WRITE}; ROLLBACK; BEGIN; SAVEPOINT s; {WRITE}; ROLLBACK TO s; COMMIT");
    client
        .batch_execute(&rolled_back)
        .await
        .expect("rolled back");
    relay.heard_nothing_before(&client).await;
}

#[tokio::test]
async fn a_savepoint_rolled_back_gives_the_gate_back() {
    let (database, client) = outbox().await;
    let relay = Relay::listening(&database).await;
    let rolled_back = format!("BEGIN; SAVEPOINT s; {WRITE}; ROLLBACK TO s");
    client
        .batch_execute(&rolled_back)
        .await
        .expect("rolled back");
    assert!(
        relay.falls_asleep().await,
        "no row, no reason to stay awake"
    );
}

#[tokio::test]
async fn many_rows_of_a_transaction_wake_once() {
    let (database, client) = outbox().await;
    let mut relay = Relay::asleep(&database).await;
    client.batch_execute("BEGIN").await.expect("open");
    let many = "INSERT INTO outbox.message (routing_key, payload) \
                SELECT 'q', '{}' FROM generate_series(1, 1000)";
    client.batch_execute(many).await.expect("written");
    let copy = "COPY outbox.message (routing_key, payload) FROM PROGRAM \
                'seq 1 1000 | sed \"s/.*/q\\t{}/\"'";
    client.batch_execute(copy).await.expect("copied");
    client.batch_execute("COMMIT").await.expect("committed");
    assert_eq!(
        relay.next().await.channel(),
        wake_channel("outbox", "message")
    );
    relay.heard_nothing_before(&client).await;
    assert_eq!(
        number(&client, "SELECT count(*) FROM outbox.message").await,
        2000
    );
}

#[tokio::test]
async fn two_phase_commit_fails_only_when_a_sleeping_relay_is_to_be_notified() {
    let (database, client) = outbox().await;
    let name = format!("{}_awake", database.name);
    let relay = Relay::listening(&database).await;
    let prepare = format!("BEGIN; {WRITE}; PREPARE TRANSACTION '{name}'");
    client
        .batch_execute(&prepare)
        .await
        .expect("awake: prepared");
    assert!(
        !relay.falls_asleep().await,
        "the prepared writer keeps it awake"
    );
    let commit = format!("COMMIT PREPARED '{name}'");
    client.batch_execute(&commit).await.expect("committed");
    assert!(relay.falls_asleep().await);
    assert_eq!(refusal(&client, &prepare).await, "0A000");
}

#[tokio::test]
async fn two_phase_commit_works_without_the_gate() {
    let (database, client) = outbox_with(MigrateArgs {
        wake: Some(Wake::None),
        ..MigrateArgs::default()
    })
    .await;
    let mut relay = Relay::asleep(&database).await;
    let name = format!("{}_none", database.name);
    let sql = format!("BEGIN; {WRITE}; PREPARE TRANSACTION '{name}'");
    client.batch_execute(&sql).await.expect("prepared");
    let sql = format!("COMMIT PREPARED '{name}'");
    client.batch_execute(&sql).await.expect("committed");
    assert_eq!(
        number(&client, "SELECT count(*) FROM outbox.message").await,
        1
    );
    relay.heard_nothing_before(&client).await;
}
