//! What a poll costs when the table has a past: the reader's own statement, with a row committed
//! before each, beside the same on an empty table.

use std::sync::Arc;

use outbox_relay::relay::rules::{PartitionSet, Position, ReadRequest};
use outbox_relay::store::postgres::reader::PgReader;
use outbox_relay::store::{Reader, Store};
use tokio::sync::Notify;
use tokio_postgres::Client;

use crate::Scale;
use crate::figure::{Figure, Goal, median};
use crate::stage::{QUEUE, SIZE, fill, mark, run, server, store};
use crate::support::postgres::{Database, Postgres, connect};
use crate::support::relay;

/// Polls of each round.
const READS: usize = 200;

/// A table and a session that reads it.
struct Polled {
    client: Client,
    reader: PgReader,
    position: Option<Position>,
    seq: u64,
    database: Database,
}

impl Polled {
    async fn create(server: &Postgres) -> Self {
        let database = server.create_database().await;
        relay::migrate(&database.url).await;
        let client = database.connect().await;
        let reader = store(&database.url).open_reader().await;
        Self {
            client,
            reader: reader.expect("a reader"),
            position: None,
            seq: 0,
            database,
        }
    }

    /// Commits a row and polls; milliseconds.
    async fn poll(&mut self) -> f64 {
        let insert =
            format!("INSERT INTO outbox.message (routing_key, payload) VALUES ('{QUEUE}', '{{}}')");
        run(&self.client, &insert).await;
        self.seq += 1;
        let request = ReadRequest {
            seq: self.seq,
            since: self.position.take(),
            news_up_to: i64::MAX,
            page_after: None,
            limit: 500,
            page_limit: 500,
            partitions: PartitionSet::ALL,
            rest: None,
        };
        let first = request.since.is_none();
        let reading = self.reader.read(&request, &Arc::new(Notify::new())).await;
        let reading = reading.expect("an answer");
        assert_eq!(reading.news.len(), usize::from(!first), "what is new alone");
        self.position = Some(reading.position);
        reading.took.as_secs_f64() * 1e3
    }
}

/// One state after the other, each beside an empty table.
pub async fn measure(scale: &Scale) -> Vec<Figure> {
    // Vacuum comes when it is told to, or the pinned state would depend on its mood.
    let server = server(&[("autovacuum", "off")]).await;
    let rows = scale.rows;
    let mut figures = Vec::new();
    for (state, pinned) in [("kept", false), ("pinned", true), ("pending", false)] {
        let (mut empty, mut full) = (Polled::create(&server).await, Polled::create(&server).await);
        let pin = connect(&full.database.url).await;
        if pinned {
            let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class";
            run(&pin, begin).await;
        }
        for table in [&empty, &full] {
            run(&table.client, "ANALYZE outbox.message").await;
        }
        fill(&full.client, "outbox.message", rows, SIZE).await;
        let what = match state {
            "kept" => format!("{rows} sent rows kept"),
            "pinned" => format!("{rows} sent since a pinned snapshot"),
            _ => format!("{rows} pending"),
        };
        if state != "pending" {
            mark(&full.client).await;
        }
        for table in [&empty, &full] {
            run(&table.client, "VACUUM outbox.message").await;
        }
        let (beside, runs) = take_turns(scale, &mut empty, &mut full).await;
        eprintln!(
            "poll, {what}: {:.3} ms, empty {:.3} ms",
            median(&runs),
            median(&beside)
        );
        let goal = Goal::AtMost {
            must: 1.5,
            aim: 1.1,
        };
        let figure = Figure::new("poll", format!("{what} ÷ empty table"), "ms", runs);
        figures.push(figure.beside(&beside).goal(goal));
    }
    figures
}

/// The medians of each round.
async fn take_turns(scale: &Scale, empty: &mut Polled, full: &mut Polled) -> (Vec<f64>, Vec<f64>) {
    let (mut beside, mut runs) = (Vec::new(), Vec::new());
    // A statement's first plans are another matter.
    for _ in 0..10 {
        empty.poll().await;
        full.poll().await;
    }
    for _ in 0..scale.rounds {
        let (mut short, mut long) = (Vec::new(), Vec::new());
        for _ in 0..READS {
            short.push(empty.poll().await);
            long.push(full.poll().await);
        }
        beside.push(median(&short));
        runs.push(median(&long));
    }
    (beside, runs)
}
