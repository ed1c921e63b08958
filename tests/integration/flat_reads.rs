//! A read costs the same whatever the table has been through (P9, F22, F34).
//!
//! What is asserted is the number of pages a read touches, never its time, in every state that
//! has led planners astray; the reading session asks for generic plans. `OUTBOX_RELAY_TEST_ROWS`
//! sets how many rows a state is made of (30,000 if it is not set).

use std::sync::Arc;
use std::time::Duration;

use outbox_relay::config::{DatabaseSection, DatabaseTarget, OnSent, Secret, Successors};
use outbox_relay::relay::rules::{PartitionSet, Position, ReadRequest};
use outbox_relay::store::postgres::PgStore;
use outbox_relay::store::postgres::ident::Outbox;
use outbox_relay::store::postgres::one_server::OneServer;
use outbox_relay::store::{Reader, Store};
use tokio::sync::Notify;
use tokio_postgres::Client;

use crate::support::postgres::{Database, Options, Postgres, connect};
use crate::support::relay;

/// Pages a read may touch: five index descents, a transaction's rows, and the catalog now and
/// then. A walk over the table or an index takes hundreds.
const FEW: f64 = 60.0;
const READS: u64 = 20;

fn rows() -> u64 {
    let wanted = std::env::var("OUTBOX_RELAY_TEST_ROWS").ok();
    wanted.map_or(30_000, |rows| {
        rows.parse().expect("OUTBOX_RELAY_TEST_ROWS is a number")
    })
}

async fn server() -> Postgres {
    let statistics = ("shared_preload_libraries", "pg_stat_statements".to_owned());
    // Nobody tidies up behind the test's back.
    let quiet = ("autovacuum", "off".to_owned());
    Postgres::start_with(Options {
        settings: vec![statistics, quiet],
        ..Options::default()
    })
    .await
}

fn store(database: &Database) -> PgStore {
    let url = Secret::Value(database.url.clone().into());
    let section = DatabaseSection {
        url: Some(url),
        ..DatabaseSection::default()
    };
    PgStore {
        target: DatabaseTarget::new(section),
        outbox: Outbox::new("outbox", "message").expect("good names"),
        on_sent: OnSent::Mark,
        successors: Successors::Continue,
        statement_timeout: Duration::from_secs(60),
        max_message_size: 1 << 20,
        instance: "test".to_owned(),
        token: uuid::Uuid::new_v4(),
        last_reader: Arc::default(),
        waits: outbox_relay::store::postgres::Waits::default(),
        servers: OneServer::default(),
        direct: Default::default(),
    }
}

fn tail(seq: u64, since: Option<Position>) -> ReadRequest {
    ReadRequest {
        seq,
        since,
        news_up_to: i64::MAX,
        page_after: None,
        limit: 500,
        page_limit: 500,
        partitions: PartitionSet::ALL,
        rest: None,
    }
}

/// Reads the tail again and again, with a row committed before each, and returns how many pages
/// the reads touched on average.
async fn pages_per_read(database: &Database, client: &Client) -> f64 {
    let mut reader = store(database).open_reader().await.expect("a reader");
    let nudge = Arc::new(Notify::new());
    let mut position = reader
        .read(&tail(0, None), &nudge)
        .await
        .expect("a first read")
        .position;
    client
        .batch_execute("SELECT pg_stat_statements_reset()")
        .await
        .expect("reset");
    for seq in 1..=READS {
        let insert = "INSERT INTO outbox.message (routing_key, payload) VALUES ('q', '{}')";
        client.batch_execute(insert).await.expect("committed");
        let reading = reader
            .read(&tail(seq, Some(position)), &nudge)
            .await
            .expect("a read");
        assert_eq!(
            reading.news.len(),
            1,
            "a read brings what is new and nothing else"
        );
        position = reading.position;
    }
    let sql = "SELECT calls, (shared_blks_hit + shared_blks_read)::float8 / calls \
         FROM pg_stat_statements WHERE query LIKE 'SELECT part, id%'";
    let row = client
        .query_one(sql, &[])
        .await
        .expect("statistics of one statement");
    assert_eq!(row.get::<_, i64>(0), READS.cast_signed());
    row.get(1)
}

/// Builds a state, and looks at what reads cost.
async fn stays_flat(state: &str, setup: &str, pinned: bool) {
    let server = server().await;
    let database = server.create_database().await;
    relay::migrate(&database.url).await;
    let client = database.connect().await;
    let extension = "CREATE EXTENSION pg_stat_statements";
    client.batch_execute(extension).await.expect("made");
    let pin = connect(&database.url).await;
    if pinned {
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class";
        pin.batch_execute(begin).await.expect("a snapshot is held");
    }
    let setup = setup.replace("{rows}", &rows().to_string());
    client
        .batch_execute(&setup)
        .await
        .expect("the state is made");
    let pages = pages_per_read(&database, &client).await;
    eprintln!("{state}: {pages:.1} pages per read");
    assert!(pages <= FEW, "{state}: {pages:.1} pages per read");
}

/// With a small or new table the server would plan each poll anew.
#[tokio::test]
async fn polls_are_not_planned_again_and_again() {
    let server = server().await;
    let database = server.create_database().await;
    relay::migrate(&database.url).await;
    let client = database.connect().await;
    let settings = "CREATE EXTENSION pg_stat_statements; ALTER SYSTEM SET \
         pg_stat_statements.track_planning = on";
    for sql in settings.split("; ").chain(["SELECT pg_reload_conf()"]) {
        client.batch_execute(sql).await.expect(sql);
    }
    // A session takes the setting over before its next statement.
    pages_per_read(&database, &client).await;
    let sql = "SELECT plans FROM pg_stat_statements WHERE query LIKE 'SELECT part, id%'";
    let plans: i64 = client.query_one(sql, &[]).await.expect(sql).get(0);
    assert!(plans <= 1, "{plans} plans for {READS} reads");
}

const FILL: &str = "INSERT INTO outbox.message (routing_key, ordering_key, payload) \
     SELECT 'q', 'k' || n % 1000, '{}' FROM generate_series(1, {rows}) AS n;";
const SEND: &str = "UPDATE outbox.message SET sent_at = now() WHERE sent_at IS NULL;";

#[tokio::test]
async fn on_a_table_that_was_never_analyzed() {
    stays_flat("never analyzed", &format!("{FILL}{SEND}{FILL}"), false).await;
}

#[tokio::test]
async fn on_a_table_that_was_analyzed_with_nothing_pending() {
    let setup = format!("{FILL}{SEND} ANALYZE outbox.message; {FILL}");
    stays_flat("analyzed with nothing pending", &setup, false).await;
}

#[tokio::test]
async fn with_everything_pending() {
    stays_flat(
        "all pending",
        &format!("{FILL} ANALYZE outbox.message;"),
        false,
    )
    .await;
}

#[tokio::test]
async fn while_a_snapshot_pins_what_was_sent() {
    let setup = format!("ANALYZE outbox.message; {FILL}{SEND}");
    stays_flat("sent under a pinned snapshot", &setup, true).await;
}

#[tokio::test]
async fn while_a_snapshot_pins_what_was_retried_and_sent() {
    let retry = "UPDATE outbox.message SET attempts = 1, \
         retry_at = now() - interval '1 hour' + id * interval '1 ms' WHERE sent_at IS NULL;";
    let setup = format!("ANALYZE outbox.message; {FILL}{retry}{SEND}");
    stays_flat("retried and sent under a pinned snapshot", &setup, true).await;
}

#[tokio::test]
async fn with_everything_scheduled_for_later() {
    let later = "UPDATE outbox.message SET available_at = now() + interval '1 day';";
    stays_flat(
        "all scheduled",
        &format!("{FILL}{later} ANALYZE outbox.message;"),
        false,
    )
    .await;
}

#[tokio::test]
async fn while_a_snapshot_pins_what_was_sent_and_removed() {
    let setup = format!("ANALYZE outbox.message; {FILL}{SEND} DELETE FROM outbox.message;");
    stays_flat("removed under a pinned snapshot", &setup, true).await;
}
