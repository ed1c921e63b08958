//! Applications under load: they write outbox rows in transactions of their own, some rolled
//! back, on several connections, and go on when their database goes away and comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, NoTls};

use super::PATIENCE;
use super::checker::Ledger;

/// What is written, and how fast.
#[derive(Debug, Clone)]
pub struct Load {
    /// Connections that write side by side.
    pub writers: usize,
    /// Rows of one transaction.
    pub rows: usize,
    /// Pause of a writer after each transaction.
    pub pause: Duration,
    /// Ordering keys; each transaction is about one of them.
    pub keys: u64,
    /// Every so-manieth transaction is rolled back.
    pub rolled_back: u64,
    /// Where to.
    pub exchange: String,
    pub routing_key: String,
}

impl Load {
    /// A steady load to a queue.
    pub fn to(queue: &str) -> Self {
        Self {
            writers: 3,
            rows: 5,
            pause: Duration::from_millis(10),
            keys: 20,
            rolled_back: 10,
            exchange: String::new(),
            routing_key: queue.to_owned(),
        }
    }
}

/// Writers at work.
pub struct Writers {
    stop: watch::Sender<bool>,
    rest: watch::Sender<bool>,
    written: watch::Receiver<u64>,
    tasks: JoinSet<()>,
}

impl Writers {
    /// Starts writing; everything is noted in the ledger.
    pub fn start(database: &str, ledger: &Arc<Ledger>, load: &Load) -> Self {
        let (stop, stopped) = watch::channel(false);
        let (count, written) = watch::channel(0);
        let (rest, resting) = watch::channel(false);
        let (count, numbers) = (Arc::new(count), Arc::new(AtomicU64::new(0)));
        let mut tasks = JoinSet::new();
        for _ in 0..load.writers {
            let writer = Writer {
                database: database.to_owned(),
                ledger: Arc::clone(ledger),
                load: load.clone(),
                numbers: Arc::clone(&numbers),
                count: Arc::clone(&count),
            };
            tasks.spawn(writer.write_until(stopped.clone(), resting.clone()));
        }
        Self {
            stop,
            rest,
            written,
            tasks,
        }
    }

    /// Rows committed so far.
    pub fn written(&self) -> u64 {
        *self.written.borrow()
    }

    /// Waits until so many rows more have been committed.
    ///
    /// # Panics
    /// If they are not.
    pub async fn write(&mut self, rows: u64) {
        let goal = self.written() + rows;
        let reached = self.written.wait_for(|count| *count >= goal);
        let reached = timeout(PATIENCE, reached).await;
        reached.expect("in time").expect("writers live");
    }

    /// Writes nothing for a while, or goes on.
    pub fn rest(&self, rest: bool) {
        self.rest.send_replace(rest);
    }

    /// Stops after the transactions under way.
    ///
    /// # Panics
    /// If a writer panicked.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        self.rest(false);
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("the writer did not panic");
        }
    }
}

struct Writer {
    database: String,
    ledger: Arc<Ledger>,
    load: Load,
    numbers: Arc<AtomicU64>,
    count: Arc<watch::Sender<u64>>,
}

const INSERT: &str =
    "INSERT INTO outbox.message (exchange, routing_key, ordering_key, message_id, payload)
    SELECT $1, $2, $3, message_id, json_build_object('of', message_id)
    FROM unnest($4::text[]) WITH ORDINALITY AS new (message_id, place) ORDER BY place
    RETURNING id, message_id";

impl Writer {
    async fn write_until(self, stopped: watch::Receiver<bool>, mut resting: watch::Receiver<bool>) {
        while !*stopped.borrow() {
            // An application whose database is away tries again until it is back.
            let Ok((mut client, connection)) = tokio_postgres::connect(&self.database, NoTls).await
            else {
                // As an application would pause.
                sleep(Duration::from_millis(50)).await;
                continue;
            };
            let driving = tokio::spawn(connection);
            while !*stopped.borrow() && self.write(&mut client).await.is_ok() {
                // Who would tell it to go on is gone: so is the reason to.
                if resting.wait_for(|resting| !resting).await.is_err() {
                    break;
                }
                if !self.load.pause.is_zero() {
                    // The load itself.
                    sleep(self.load.pause).await;
                }
            }
            driving.abort();
        }
    }

    /// One transaction. What became of its rows is noted, as far as a client can know.
    async fn write(&self, client: &mut Client) -> Result<(), tokio_postgres::Error> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let key = format!("key-{}", number % self.load.keys);
        let ids: Vec<String> = (0..self.load.rows)
            .map(|row| format!("{number}-{row}"))
            .collect();
        let undone = |error| {
            for id in &ids {
                self.ledger.rolled_back(id);
            }
            Err(error)
        };
        let rows = match self.insert(client, &key, &ids).await {
            Ok(rows) => rows,
            Err(error) => return undone(error),
        };
        if number % self.load.rolled_back == self.load.rolled_back / 2 {
            for id in &ids {
                self.ledger.rolled_back(id);
            }
            return client.batch_execute("ROLLBACK").await;
        }
        match client.batch_execute("COMMIT").await {
            Ok(()) => {
                for (id, message_id) in &rows {
                    self.ledger.committed(message_id, Some((&key, *id)));
                }
                self.count.send_modify(|count| *count += rows.len() as u64);
                Ok(())
            }
            Err(error) => {
                for id in &ids {
                    self.ledger.unknown(id);
                }
                Err(error)
            }
        }
    }

    async fn insert(
        &self,
        client: &Client,
        key: &str,
        ids: &[String],
    ) -> Result<Vec<(i64, String)>, tokio_postgres::Error> {
        client.batch_execute("BEGIN").await?;
        // Serialises the writers of one key, as an aggregate's row lock would.
        let lock = "SELECT pg_advisory_xact_lock(hashtext($1))";
        client.execute(lock, &[&key]).await?;
        let load = &self.load;
        let rows = client
            .query(INSERT, &[&load.exchange, &load.routing_key, &key, &ids])
            .await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }
}
