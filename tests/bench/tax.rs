//! What the outbox's indexes and its gate cost the application's inserts, and what a relay at
//! work costs them: 32 writers, one row and one commit at a time, beside the same table with
//! nothing but its primary key.
//!
//! The broker's load is taken away in two ways. A twin publisher puts the same load on the same broker
//! while the application writes to the bare table; or the relay publishes to a broker in memory, and all
//! that it does itself is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use outbox_relay::broker::Broker;
use outbox_relay::broker::memory::MemoryBroker;
use outbox_relay::runtime::Clock;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio_postgres::{Client, Statement};

use crate::Scale;
use crate::figure::{Figure, Goal};
use crate::inside::Inside;
use crate::stage::{KEYS, QUEUE, SIZE, body, broker, run, server, store, target};
use crate::support::postgres::{Database, connect};
use crate::support::queues::Queues;
use crate::support::rabbit::vhost;
use crate::support::relay;
use crate::twin::Twin;

const WRITERS: usize = 32;
/// How often the broker in memory is emptied.
const EMPTYING: Duration = Duration::from_millis(100);
/// The queue keeps so many messages, the last.
const KEPT: u32 = 10_000;

const BARE: &str = "bare.message";
const OUTBOX: &str = "outbox.message";

/// Everything that makes it an outbox, taken off a table made by the same migration.
const STRIP: &str = "DO $$ DECLARE name text; BEGIN
    ALTER TABLE bare.message ALTER COLUMN xid SET DEFAULT pg_catalog.pg_current_xact_id();
    FOR name IN SELECT indexrelid::regclass FROM pg_index
        WHERE indrelid = 'bare.message'::regclass AND NOT indisprimary
    LOOP EXECUTE 'DROP INDEX ' || name; END LOOP;
END $$";

/// Rows a second, of each round.
#[derive(Default)]
struct Rates {
    inserted: Vec<f64>,
    /// Confirmed by the broker meanwhile.
    confirmed: Vec<f64>,
}

impl Rates {
    fn note(&mut self, (inserted, confirmed): (f64, f64)) {
        self.inserted.push(inserted);
        self.confirmed.push(confirmed);
    }
}

/// Takes turns.
pub async fn measure(scale: &Scale) -> Vec<Figure> {
    let (server, vhost) = (server(&[]).await, vhost().await);
    let database = server.create_database().await;
    relay::migrate(&database.url).await;
    make_bare(&database.url, &database.connect().await).await;
    Queues::connect(&vhost.url).await.rolling(QUEUE, KEPT).await;
    let field = Field {
        database: &database,
        broker: &vhost.url,
        span: scale.span,
    };
    let mut rates: [Rates; 5] = Default::default();
    for round in 0..scale.rounds {
        // Nobody is always the first on a disk that has rested.
        for turn in 0..rates.len() {
            let kind = (round + turn) % rates.len();
            rates[kind].note(match kind {
                0 => field.alone(BARE).await,
                1 => field.alone(OUTBOX).await,
                2 => field.beside_a_twin().await,
                3 => field.beside_a_relay().await,
                _ => field.beside_a_relay_without_a_broker().await,
            });
        }
        let [bare, outbox, twin, relay, memory] = rates.each_ref().map(|one| one.inserted[round]);
        eprintln!(
            "insert tax, round {}: {bare:.0} rows/s with primary key only, {outbox:.0} on the outbox; \
             {twin:.0} beside a twin publisher, {relay:.0} beside a relay; {memory:.0} beside one \
             with a broker in memory",
            round + 1,
        );
    }
    told(rates)
}

fn told([bare, outbox, twin, relay, memory]: [Rates; 5]) -> Vec<Figure> {
    let figure = |what, runs: Vec<f64>, beside: &[f64]| {
        Figure::new("insert tax", what, "rows/s", runs).beside(beside)
    };
    let goal = Goal::AtLeast {
        must: 0.75,
        aim: 0.9,
    };
    let kept_up = figure(
        "sent by the relay meanwhile",
        relay.confirmed,
        &relay.inserted,
    );
    let twin_kept_up = figure("sent by the twin meanwhile", twin.confirmed, &twin.inserted);
    vec![
        figure(
            "no relay ÷ primary key only",
            outbox.inserted,
            &bare.inserted,
        )
        .goal(goal),
        figure(
            "relay at work ÷ primary key and twin publisher",
            relay.inserted,
            &twin.inserted,
        )
        .goal(goal),
        kept_up,
        twin_kept_up,
        figure(
            "relay, broker in memory ÷ primary key, nobody publishes",
            memory.inserted,
            &bare.inserted,
        ),
    ]
}

/// Makes the same table with nothing but its primary key: `bare.message`.
pub async fn make_bare(url: &str, client: &Client) {
    let bare = relay::Settings::default().with("OUTBOX_RELAY__OUTBOX__SCHEMA", "bare");
    let (status, output) = relay::run(&bare, &["migrate", "--database-url", url]).await;
    assert!(status.success(), "{}", output.join("\n"));
    run(client, STRIP).await;
}

/// Where it is measured, and for how long.
struct Field<'a> {
    database: &'a Database,
    broker: &'a str,
    span: Duration,
}

impl Field<'_> {
    async fn alone(&self, relation: &str) -> (f64, f64) {
        clean(self.database).await;
        let (rows, seconds) = self.insert(relation, &Arc::default()).await;
        (rows / seconds, 0.0)
    }

    async fn beside_a_twin(&self) -> (f64, f64) {
        clean(self.database).await;
        let committed = Arc::default();
        let twin = Twin::start(broker(self.broker), Arc::clone(&committed)).await;
        let (rows, seconds) = self.insert(BARE, &committed).await;
        (rows / seconds, twin.stop().await as f64 / seconds)
    }

    async fn beside_a_relay(&self) -> (f64, f64) {
        clean(self.database).await;
        self.beside(broker(self.broker)).await
    }

    async fn beside_a_relay_without_a_broker(&self) -> (f64, f64) {
        clean(self.database).await;
        let broker = MemoryBroker::new();
        broker.declare_queue(QUEUE);
        let emptied = broker.clone();
        let emptying = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(EMPTYING);
            loop {
                ticks.tick().await;
                drop(emptied.drain(QUEUE));
            }
        });
        let rates = self.beside(broker).await;
        emptying.abort();
        rates
    }

    async fn beside(&self, broker: impl Broker) -> (f64, f64) {
        let store = store(&self.database.url);
        let relay = Inside::start(store, broker, &target(self.broker));
        relay.ready().await;
        let (rows, seconds) = self.insert(OUTBOX, &Arc::default()).await;
        let confirmed = relay.confirmed() as f64;
        relay.stop().await;
        (rows / seconds, confirmed / seconds)
    }

    /// Inserts: rows, and seconds.
    async fn insert(&self, relation: &str, committed: &Arc<AtomicU64>) -> (f64, f64) {
        let (over, start) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(Barrier::new(WRITERS + 1)),
        );
        let mut writers = JoinSet::new();
        for number in 0..WRITERS {
            let client = connect(&self.database.url).await;
            let insert = format!(
                "INSERT INTO {relation} (routing_key, ordering_key, payload)
                 VALUES ('{QUEUE}', $1, $2::text::json)"
            );
            let statement = client.prepare(&insert).await.expect("prepared");
            let (over, start) = (Arc::clone(&over), Arc::clone(&start));
            let committed = Arc::clone(committed);
            writers.spawn(async move {
                start.wait().await;
                write(&client, &statement, number, &over, &committed).await;
            });
        }
        start.wait().await;
        let begun = Clock.now();
        // The span is what is measured.
        tokio::time::sleep(self.span).await;
        over.store(true, Ordering::Relaxed);
        while let Some(written) = writers.join_next().await {
            written.expect("no panic");
        }
        let rows = committed.load(Ordering::Relaxed) as f64;
        (rows, Clock.now().since(begun).as_secs_f64())
    }
}

/// What the run before left behind is not the next one's to carry.
async fn clean(database: &Database) {
    let client = database.connect().await;
    for sql in ["TRUNCATE outbox.message, bare.message", "CHECKPOINT"] {
        run(&client, sql).await;
    }
}

/// Commits row after row until the time is over, and counts them.
async fn write(
    client: &Client,
    insert: &Statement,
    first: usize,
    over: &AtomicBool,
    committed: &AtomicU64,
) {
    let (body, mut rows) = (body(SIZE), 0);
    let first = i64::try_from(first).expect("small");
    while !over.load(Ordering::Relaxed) {
        let key = format!("customer-{}", (first + 37 * rows) % KEYS);
        let inserted = client.execute(insert, &[&key, &body]).await;
        inserted.expect("committed");
        committed.fetch_add(1, Ordering::Relaxed);
        rows += 1;
    }
}
