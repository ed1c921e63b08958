//! What a message costs PostgreSQL: write-ahead log, row versions, statements and transactions (reads count too), for a
//! backlog and at a steady rate; and what the outbox's indexes add to an insert's log.

use std::time::Duration;

use outbox_relay::runtime::Clock;
use tokio::time::{MissedTickBehavior, interval};

use crate::Scale;
use crate::figure::Figure;
use crate::stage::{KEYS, QUEUE, SIZE, body, fill, run, scene, server};
use crate::support::scene::Scene;
use crate::tax::make_bare;
use crate::timeline::Timeline;

/// Rows a second of the steady rate.
const RATE: u32 = 1_000;
const WAL: &str = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn";

/// Counters of the database; only the relay moves them meanwhile, or it is told apart.
#[derive(Clone, Copy)]
struct Spent {
    wal: f64,
    statements: f64,
    versions: f64,
    transactions: f64,
}

/// One run of each: counts do not depend on who else is busy.
pub async fn measure(scale: &Scale) -> Vec<Figure> {
    // Vacuum's own log is not the relay's, and without full pages after a checkpoint the log does
    // not depend on when that was.
    let settings = [
        ("shared_preload_libraries", "pg_stat_statements"),
        ("autovacuum", "off"),
        ("full_page_writes", "off"),
    ];
    let server = server(&settings).await;
    let rows = scale.rows.min(100_000);
    let scene = scene(&server).await;
    run(&scene.client, "CREATE EXTENSION pg_stat_statements").await;
    make_bare(&scene.database, &scene.client).await;
    let bare = inserted(&scene, "bare.message", rows).await;
    let ours = inserted(&scene, "outbox.message", rows).await;
    let insert = "insert, with our indexes ÷ primary key only";
    let insert = Figure::new("WAL", insert, "bytes/row", vec![ours]).beside(&[bare]);
    let mut figures = vec![insert];
    figures.extend(told("backlog", drained(&scene, rows).await, rows));
    let rows = i64::from(RATE) * i64::try_from(scale.span.as_secs()).expect("short");
    let rate = format!("{RATE} rows/s");
    figures.extend(told(&rate, steady(&scene, rows).await, rows));
    figures
}

fn told(when: &str, spent: Spent, rows: i64) -> [Figure; 4] {
    let figure = |measure, what: &str, unit, value: f64| {
        let value = value / rows as f64;
        eprintln!("{measure}, {what}, {when}: {value:.4} {unit}");
        Figure::new(measure, format!("{what}, {when}"), unit, vec![value])
    };
    [
        figure("WAL", "relay", "bytes/row", spent.wal),
        figure("dead tuples", "relay", "per row", spent.versions),
        figure("statements", "relay", "per row", spent.statements),
        figure("transactions", "relay", "per row", spent.transactions),
    ]
}

/// Bytes of log for each row.
async fn inserted(scene: &Scene, relation: &str, rows: i64) -> f64 {
    let before = number(scene, WAL).await;
    fill(&scene.client, relation, rows, SIZE).await;
    (number(scene, WAL).await - before) / rows as f64
}

async fn number(scene: &Scene, sql: &str) -> f64 {
    scene.ask(&format!("SELECT ({sql})::float8")).await
}

async fn reset(scene: &Scene) {
    for sql in [
        "SELECT pg_stat_statements_reset()",
        "SELECT pg_stat_reset()",
    ] {
        run(&scene.client, sql).await;
    }
}

/// The relay has ended, and with it its sessions, which told the server what they did.
async fn spent(scene: &Scene, wal: f64, rows: i64) -> Spent {
    let table = "FROM pg_stat_user_tables WHERE relid = 'outbox.message'::regclass";
    scene
        .until(&format!("SELECT n_tup_upd >= {rows} {table}"))
        .await;
    let statements = "SELECT sum(calls) FROM pg_stat_statements
         WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
           AND query NOT LIKE '%pg_stat%' AND query NOT LIKE '%pg_current_wal%'
           AND query NOT LIKE 'INSERT INTO outbox.message%'";
    let transactions =
        "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
    Spent {
        wal,
        statements: number(scene, statements).await,
        versions: number(scene, &format!("SELECT n_tup_upd + n_tup_del {table}")).await,
        transactions: number(scene, transactions).await,
    }
}

/// A relay that finds so many rows and sends them.
async fn drained(scene: &Scene, rows: i64) -> Spent {
    run(&scene.client, "VACUUM ANALYZE outbox.message").await;
    reset(scene).await;
    let before = number(scene, WAL).await;
    let relay = scene.relay();
    Timeline::until(&[&relay], rows, Clock.now()).await;
    relay.stop().await;
    let wal = number(scene, WAL).await - before;
    spent(scene, wal, rows).await
}

/// A relay that sends so many rows while one session writes them at the rate. What the writer's
/// log and transactions cost is measured before, without a relay, and taken off.
async fn steady(scene: &Scene, rows: i64) -> Spent {
    run(&scene.client, "TRUNCATE outbox.message").await;
    let before = number(scene, WAL).await;
    write(scene, rows).await;
    let own = number(scene, WAL).await - before;
    run(&scene.client, "TRUNCATE outbox.message").await;
    let relay = scene.relay();
    relay.ready().await;
    reset(scene).await;
    let before = number(scene, WAL).await;
    write(scene, rows).await;
    Timeline::until(&[&relay], rows, Clock.now()).await;
    relay.stop().await;
    let wal = number(scene, WAL).await - before - own;
    let mut spent = spent(scene, wal, rows).await;
    spent.transactions -= rows as f64;
    spent
}

/// Rows one by one, each with its own commit.
async fn write(scene: &Scene, rows: i64) {
    let insert = format!(
        "INSERT INTO outbox.message (routing_key, ordering_key, payload)
         VALUES ('{QUEUE}', $1, '{}')",
        body(SIZE)
    );
    let statement = scene.client.prepare(&insert).await.expect("prepared");
    let mut ticks = interval(Duration::from_secs(1) / RATE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for number in 0..rows {
        ticks.tick().await;
        let key = format!("customer-{}", number % KEYS);
        let written = scene.client.execute(&statement, &[&key]).await;
        written.expect("committed");
    }
}
