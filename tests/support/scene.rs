//! A database with an outbox, a virtual host with a queue, a ledger, and relays between them:
//! what nearly every test of the whole relay needs.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use super::PATIENCE;
use super::checker::{Ledger, Report};
use super::postgres::{self, connect};
use super::proxy::Proxy;
use super::queues::{Letter, Queues};
use super::rabbit::{self, Vhost};
use super::relay::{Relay, Settings, migrate};
use super::writers::{Load, Writers};

/// The queue of a scene, reached through the default exchange.
pub const QUEUE: &str = "q";

/// A message to be written.
#[derive(Debug, Clone, Default)]
pub struct Draft {
    pub exchange: String,
    pub routing_key: String,
    pub key: Option<String>,
    /// JSON.
    pub payload: String,
}

impl Draft {
    /// A small message to a queue.
    pub fn to(queue: &str) -> Self {
        Self {
            routing_key: queue.to_owned(),
            payload: "{}".to_owned(),
            ..Self::default()
        }
    }

    /// A small message by way of an exchange.
    pub fn by(exchange: &str, routing_key: &str) -> Self {
        Self {
            exchange: exchange.to_owned(),
            ..Self::to(routing_key)
        }
    }

    /// The same with an ordering key.
    #[must_use]
    pub fn of(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }
}

/// A stage set for relays.
pub struct Scene {
    /// URL of the database.
    pub database: String,
    pub vhost: Vhost,
    /// An application's connection.
    pub client: Client,
    pub queues: Queues,
    pub ledger: Arc<Ledger>,
    /// How relays are started.
    pub settings: Settings,
    /// Dropped with the scene.
    pub _database: Option<postgres::Database>,
}

impl Scene {
    /// On the servers that the tests of a binary share.
    pub async fn new() -> Self {
        let database = postgres::database().await;
        let url = database.url.clone();
        let mut scene = Self::on(url, rabbit::vhost().await).await;
        scene.keep(database);
        scene
    }

    /// Keeps a shared server's database for as long as the scene.
    pub fn keep(&mut self, database: postgres::Database) {
        self._database = Some(database);
    }

    /// The shared server's database that was kept.
    ///
    /// # Panics
    /// If the scene is on servers of the test's own.
    pub fn keeper(&self) -> &postgres::Database {
        self._database.as_ref().expect("a shared server's database")
    }

    /// On servers of the test's own.
    pub async fn on(database: String, vhost: Vhost) -> Self {
        migrate(&database).await;
        let queues = Queues::connect(&vhost.url).await;
        queues.classic(QUEUE).await;
        Self {
            client: connect(&database).await,
            queues,
            ledger: Arc::default(),
            settings: Settings::new(&database, &vhost.url),
            database,
            vhost,
            _database: None,
        }
    }

    /// Changes a setting, such as `RETRY__INITIAL`, for relays started from here on.
    pub fn set(&mut self, name: &str, value: &str) {
        let settings = std::mem::take(&mut self.settings);
        self.settings = settings.with(&format!("OUTBOX_RELAY__{name}"), value);
    }

    /// Starts a relay; it is not ready yet.
    pub fn relay(&self) -> Relay {
        Relay::start(&self.settings)
    }

    /// Starts a relay and waits until it is ready and publishes.
    pub async fn ready_relay(&self) -> Relay {
        let relay = self.relay();
        relay.ready().await;
        relay.printed("owns partitions").await;
        relay
    }

    /// Runs `run --until-empty` to its end.
    pub async fn run_until_empty(&self) {
        let relay = Relay::start_with(&self.settings, &["run", "--until-empty"]);
        let status = relay.ended().await;
        assert!(status.success(), "{status}\n{}", relay.output().join("\n"));
    }

    /// Starts writers.
    pub fn writers(&self, load: &Load) -> Writers {
        Writers::start(&self.database, &self.ledger, load)
    }

    /// Writes messages in one transaction; their rows' ids.
    pub async fn write(&self, drafts: &[Draft]) -> Vec<i64> {
        let column = |value: fn(&Draft) -> &str| drafts.iter().map(value).collect::<Vec<_>>();
        let keys: Vec<Option<&str>> = drafts.iter().map(|draft| draft.key.as_deref()).collect();
        let insert = "INSERT INTO outbox.message (exchange, routing_key, ordering_key, payload)
             SELECT e, r, k, p::json FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
               WITH ORDINALITY AS new (e, r, k, p, place) ORDER BY place
             RETURNING id, message_id, ordering_key";
        let (exchanges, routing_keys, payloads) = (
            column(|draft| &draft.exchange),
            column(|draft| &draft.routing_key),
            column(|draft| &draft.payload),
        );
        let parameters: [&(dyn ToSql + Sync); 4] = [&exchanges, &routing_keys, &keys, &payloads];
        let rows = self.client.query(insert, &parameters).await;
        let rows = rows.unwrap_or_else(|error| panic!("{error:?}"));
        let note = |row: &tokio_postgres::Row| {
            let (id, message_id, key): (i64, &str, Option<&str>) =
                (row.get(0), row.get(1), row.get(2));
            self.ledger.committed(message_id, key.map(|key| (key, id)));
            id
        };
        rows.iter().map(note).collect()
    }

    /// Writes so many small messages to the scene's queue, spread over so many keys.
    pub async fn write_many(&self, count: usize, keys: usize) -> Vec<i64> {
        let draft = |n: usize| Draft::to(QUEUE).of(format!("key-{}", n % keys));
        self.write(&(0..count).map(draft).collect::<Vec<_>>()).await
    }

    /// Another connection of the application.
    pub async fn second_client(&self) -> Client {
        connect(&self.database).await
    }

    /// Asks the database for one value.
    pub async fn ask<T: for<'a> tokio_postgres::types::FromSql<'a>>(&self, sql: &str) -> T {
        let row = self.client.query_one(sql, &[]).await;
        row.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
            .get(0)
    }

    /// Rows that this condition holds for.
    pub async fn count(&self, condition: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM outbox.message WHERE {condition}");
        self.ask(&sql).await
    }

    /// Runs SQL.
    pub async fn run(&self, sql: &str) {
        let done = self.client.batch_execute(sql).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// Waits until the database answers `true`.
    ///
    /// # Panics
    /// If it does not, with what is left in the outbox.
    pub async fn until(&self, sql: &str) {
        let asking = async {
            while !self.ask::<bool>(sql).await {
                // The database is asked: nobody signals what others commit.
                sleep(Duration::from_millis(20)).await;
            }
        };
        if timeout(PATIENCE, asking).await.is_err() {
            let left = self.describe().await;
            panic!("never true: {sql}\n{left}");
        }
    }

    /// Waits until no row is pending, for as long as they become fewer: how long many of them take
    /// depends on what else the machine does.
    ///
    /// # Panics
    /// If they do not, with what is left in the outbox.
    pub async fn drained(&self) {
        let mut fewest = i64::MAX;
        while fewest > 0 {
            let fewer = async {
                loop {
                    let pending = self.count("sent_at IS NULL").await;
                    if pending < fewest {
                        break pending;
                    }
                    // The database is asked: nobody signals a mark.
                    sleep(Duration::from_millis(20)).await;
                }
            };
            let Ok(pending) = timeout(PATIENCE, fewer).await else {
                panic!("rows stay pending:\n{}", self.describe().await);
            };
            fewest = pending;
        }
    }

    /// What is pending, for a person.
    async fn describe(&self) -> String {
        let sql = "SELECT coalesce(string_agg(line, E'\\n'), '') FROM (
              SELECT concat_ws(' ', count(*), 'pending to', exchange, routing_key, 'from id', min(id),
                'attempts', max(attempts), max(last_error)) AS line
              FROM outbox.message WHERE sent_at IS NULL GROUP BY exchange, routing_key
              UNION ALL
              SELECT concat_ws(' ', count(*), 'quarantined', reason_class, min(reason))
              FROM outbox.quarantine GROUP BY reason_class) AS lines";
        self.ask(sql).await
    }

    /// Waits until this row is sent.
    pub async fn sent(&self, id: i64) {
        let sql = format!("SELECT sent_at IS NOT NULL FROM outbox.message WHERE id = {id}");
        self.until(&sql).await;
    }

    /// Writes a message and sees it sent, whatever else waits.
    ///
    /// # Panics
    /// If it is not.
    pub async fn flows(&self, draft: Draft) {
        let row = self.write(&[draft]).await[0];
        self.sent(row).await;
    }

    /// How many rows are quarantined.
    pub async fn quarantined(&self) -> i64 {
        self.ask("SELECT count(*) FROM outbox.quarantine").await
    }

    /// Takes everything out of a queue into the ledger, and returns it.
    pub async fn collect(&self, queue: &str) -> Vec<Letter> {
        let letters = self.queues.take_all(queue).await;
        for letter in &letters {
            self.ledger.delivered(&letter.message_id);
        }
        letters
    }

    /// Takes everything out of the scene's queue and judges: nothing lost, no ghosts, order
    /// kept.
    pub async fn judge(&self) -> Report {
        self.collect(QUEUE).await;
        let report = self.ledger.report();
        report.assert_clean();
        report
    }
}

/// Waits until something that is asked for again and again holds.
///
/// # Panics
/// If it never does.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !holds().await {
            // Whatever is asked here lies outside of this process.
            sleep(Duration::from_millis(20)).await;
        }
    };
    let held = timeout(PATIENCE, asking).await;
    assert!(held.is_ok(), "never happened: {what}");
}

/// The port in a URL.
pub fn port(url: &str) -> u16 {
    let authority = url.split('/').nth(2).expect("a URL");
    let port = authority.rsplit(':').next().expect("a port");
    port.parse().expect("a number")
}

/// The URL by way of a proxy.
pub fn through(url: &str, proxy: &Proxy) -> String {
    through_port(url, proxy.port())
}

/// The URL by way of what listens on another port.
pub fn through_port(url: &str, to: u16) -> String {
    let from = port(url);
    url.replacen(&format!(":{from}/"), &format!(":{to}/"), 1)
}
