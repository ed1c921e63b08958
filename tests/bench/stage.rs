//! Private servers of a measure, outboxes in them, and rows.

use std::sync::Arc;
use std::time::Duration;

use outbox_relay::broker::AmqpBroker;
use outbox_relay::config::{
    BrokerSection, BrokerTarget, DatabaseSection, DatabaseTarget, OnSent, Secret, Successors,
};
use outbox_relay::store::postgres::ident::Outbox;
use outbox_relay::store::postgres::one_server::OneServer;
use outbox_relay::store::postgres::{PgStore, Waits};
use tokio_postgres::Client;

use crate::support::postgres::{Options, Postgres};
use crate::support::rabbit::vhost;
use crate::support::scene::Scene;

/// The queue that everything goes to, through the default exchange.
pub const QUEUE: &str = "orders";
/// Ordering keys.
pub const KEYS: i64 = 1000;
/// Bytes of a payload.
pub const SIZE: i64 = 300;

/// Rows of one filling statement.
const PORTION: i64 = 10_000;

/// A server that flushes to disk as in production, with further settings.
pub async fn server(settings: &[(&'static str, &str)]) -> Postgres {
    let settings = settings.iter();
    let settings = settings.map(|(name, value)| (*name, (*value).to_owned()));
    Postgres::start_with(Options {
        durable: true,
        settings: settings.collect(),
        ..Options::default()
    })
    .await
}

/// The outbox of a database, as a relay opens it.
pub fn store(database: &str) -> PgStore {
    let section = DatabaseSection {
        url: Some(Secret::Value(database.to_owned().into())),
        ..DatabaseSection::default()
    };
    PgStore {
        target: DatabaseTarget::new(section),
        outbox: Outbox::new("outbox", "message").expect("good names"),
        on_sent: OnSent::Mark,
        successors: Successors::Continue,
        statement_timeout: Duration::from_secs(60),
        max_message_size: 16 << 20,
        instance: format!("bench:{}", std::process::id()),
        token: uuid::Uuid::new_v4(),
        last_reader: Arc::default(),
        servers: OneServer::default(),
        waits: Waits::default(),
        direct: Default::default(),
    }
}

/// Where a broker is.
pub fn target(url: &str) -> BrokerTarget {
    BrokerTarget::new(BrokerSection {
        url: vec![Secret::Value(url.to_owned().into())],
        ..BrokerSection::default()
    })
}

/// The broker there.
pub fn broker(url: &str) -> AmqpBroker {
    let target = target(url);
    AmqpBroker::new(move || target.resolve().map_err(|error| error.to_string()))
}

/// JSON of so many bytes, as an order might be.
pub fn body(size: i64) -> String {
    let head = "{\"note\": \"";
    let room = usize::try_from(size).expect("a size") - head.len() - 2;
    format!("{head}{}\"}}", "x".repeat(room))
}

/// Runs SQL.
pub async fn run(client: &Client, sql: &str) {
    let done = client.batch_execute(sql).await;
    done.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

/// Writes so many rows of that size, in portions, as if transactions had come one after another.
pub async fn fill(client: &Client, relation: &str, rows: i64, size: i64) {
    let insert = format!(
        "INSERT INTO {relation} (routing_key, ordering_key, payload)
         SELECT '{QUEUE}', 'customer-' || n % {KEYS}, '{}'::json
         FROM generate_series($1::bigint, $2::bigint) AS n",
        body(size)
    );
    let mut from = 1;
    while from <= rows {
        let to = rows.min(from + PORTION - 1);
        let filled = client.execute(&insert, &[&from, &to]).await;
        filled.unwrap_or_else(|error| panic!("{insert}: {error:?}"));
        from = to + 1;
    }
}

/// Marks everything sent, in portions, as a relay would.
pub async fn mark(client: &Client) {
    let sql = "SELECT coalesce(max(id), 0) FROM outbox.message";
    let last: i64 = client.query_one(sql, &[]).await.expect(sql).get(0);
    let mut from = 1;
    while from <= last {
        let mark = "UPDATE outbox.message SET sent_at = clock_timestamp()
             WHERE sent_at IS NULL AND id >= $1 AND id < $2";
        let marked = client.execute(mark, &[&from, &(from + PORTION)]).await;
        marked.expect(mark);
        from += PORTION;
    }
}

/// An outbox on this server, a quorum queue that keeps the last messages only, and relays with
/// all settings at their defaults.
pub async fn scene(server: &Postgres) -> Scene {
    let database = server.create_database().await;
    let mut scene = Scene::on(database.url.clone(), vhost().await).await;
    scene.keep(database);
    scene.set("RELAY__LEASE", "15s");
    scene.set("LOG__LEVEL", "warn");
    scene.queues.rolling(QUEUE, 10_000).await;
    scene
}
