//! What the outbox's indexes and its gate cost the application's inserts, and what a relay at
//! work costs them: 32 writers, one row and one commit at a time, beside the same table with
//! nothing but its primary key. The relay publishes to a broker in memory, so that what is
//! measured is not a broker that shares the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox_relay::broker::memory::MemoryBroker;
use outbox_relay::runtime::Clock;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio_postgres::{Client, Statement};

use crate::Scale;
use crate::figure::{Figure, Goal};
use crate::inside::Inside;
use crate::stage::{KEYS, QUEUE, SIZE, body, run, server, store, target};
use crate::support::postgres::{Database, connect};
use crate::support::relay;

const WRITERS: usize = 32;
/// How often the broker in memory is emptied.
const EMPTYING: Duration = Duration::from_millis(100);

/// Everything that makes it an outbox, taken off a table made by the same migration.
const STRIP: &str = "DO $$ DECLARE name text; BEGIN
    ALTER TABLE bare.message ALTER COLUMN xid SET DEFAULT pg_catalog.pg_current_xact_id();
    FOR name IN SELECT indexrelid::regclass FROM pg_index
        WHERE indrelid = 'bare.message'::regclass AND NOT indisprimary
    LOOP EXECUTE 'DROP INDEX ' || name; END LOOP;
END $$";

/// Takes turns.
pub async fn measure(scale: &Scale) -> Vec<Figure> {
    let server = server(&[]).await;
    let database = server.create_database().await;
    relay::migrate(&database.url).await;
    make_bare(&database.url, &database.connect().await).await;
    let (mut bare, mut stopped, mut awake, mut sent) = (vec![], vec![], vec![], vec![]);
    for round in 0..scale.rounds {
        // Nobody is always the first on a disk that has rested.
        for turn in 0..3 {
            match (round + turn) % 3 {
                0 => bare.push(alone(&database, "bare.message", scale.span).await),
                1 => stopped.push(alone(&database, "outbox.message", scale.span).await),
                _ => {
                    let (rate, confirmed) = beside_a_relay(&database, scale.span).await;
                    awake.push(rate);
                    sent.push(confirmed);
                }
            }
        }
        eprintln!(
            "insert tax, round {}: {:.0} rows/s with primary key only, {:.0} on the outbox, \
             {:.0} while a relay sends {:.0}",
            round + 1,
            bare[round],
            stopped[round],
            awake[round],
            sent[round],
        );
    }
    let goal = Goal::AtLeast {
        must: 0.75,
        aim: 0.9,
    };
    let figure = |what, runs: &[f64]| {
        let figure = Figure::new("insert tax", what, "rows/s", runs.to_vec());
        figure.beside(&bare)
    };
    vec![
        figure("no relay ÷ primary key only", &stopped).goal(goal),
        figure("relay at work ÷ primary key only", &awake).goal(goal),
        Figure::new("insert tax", "sent by it meanwhile", "rows/s", sent).beside(&awake),
    ]
}

/// Makes the same table with nothing but its primary key: `bare.message`.
pub async fn make_bare(url: &str, client: &Client) {
    let bare = relay::Settings::default().with("OUTBOX_RELAY__OUTBOX__SCHEMA", "bare");
    let (status, output) = relay::run(&bare, &["migrate", "--database-url", url]).await;
    assert!(status.success(), "{}", output.join("\n"));
    run(client, STRIP).await;
}

/// Rows inserted a second.
async fn alone(database: &Database, relation: &str, span: Duration) -> f64 {
    clean(database).await;
    let (rows, seconds) = insert(database, relation, span).await;
    rows / seconds
}

/// Rows inserted, and rows confirmed meanwhile, a second.
async fn beside_a_relay(database: &Database, span: Duration) -> (f64, f64) {
    clean(database).await;
    let broker = MemoryBroker::new();
    broker.declare_queue(QUEUE);
    let emptying = tokio::spawn({
        let broker = broker.clone();
        async move {
            let mut ticks = tokio::time::interval(EMPTYING);
            loop {
                ticks.tick().await;
                drop(broker.drain(QUEUE));
            }
        }
    });
    let relay = Inside::start(store(&database.url), broker, &target("amqp://localhost"));
    relay.ready().await;
    let (rows, seconds) = insert(database, "outbox.message", span).await;
    let confirmed = relay.confirmed() as f64;
    relay.stop().await;
    emptying.abort();
    (rows / seconds, confirmed / seconds)
}

/// What the run before left behind is not the next one's to carry.
async fn clean(database: &Database) {
    let client = database.connect().await;
    for sql in ["TRUNCATE outbox.message, bare.message", "CHECKPOINT"] {
        run(&client, sql).await;
    }
}

/// Inserts for so long: rows, and seconds.
async fn insert(database: &Database, relation: &str, span: Duration) -> (f64, f64) {
    let (over, start) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(Barrier::new(WRITERS + 1)),
    );
    let mut writers = JoinSet::new();
    for number in 0..WRITERS {
        let client = connect(&database.url).await;
        let insert = format!(
            "INSERT INTO {relation} (routing_key, ordering_key, payload)
             VALUES ('{QUEUE}', $1, $2::text::json)"
        );
        let statement = client.prepare(&insert).await.expect("prepared");
        let (over, start) = (Arc::clone(&over), Arc::clone(&start));
        writers.spawn(async move {
            start.wait().await;
            write(&client, &statement, number, &over).await
        });
    }
    start.wait().await;
    let begun = Clock.now();
    // The span is what is measured.
    tokio::time::sleep(span).await;
    over.store(true, Ordering::Relaxed);
    let mut rows = 0;
    while let Some(written) = writers.join_next().await {
        rows += written.expect("no panic");
    }
    (rows as f64, Clock.now().since(begun).as_secs_f64())
}

/// How many rows this writer has committed when the time is over.
async fn write(client: &Client, insert: &Statement, first: usize, over: &AtomicBool) -> u64 {
    let (body, mut rows) = (body(SIZE), 0);
    let first = i64::try_from(first).expect("small");
    while !over.load(Ordering::Relaxed) {
        let key = format!("customer-{}", (first + 37 * rows) % KEYS);
        let inserted = client.execute(insert, &[&key, &body]).await;
        inserted.expect("committed");
        rows += 1;
    }
    rows.unsigned_abs()
}
