//! A queue, an inbox, and consumers between them.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use outbox_relay::inbox::{
    Consumer, DeadEntries, Ended, HandlerResult, LeasedHandler, Message, Observer, RetryReason,
    Settings, TransactionalHandler,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, Transaction};
use tokio_util::sync::CancellationToken;

use crate::entries::{PAY, inbox, number};
use crate::support::PATIENCE;
use crate::support::postgres::Database;
use crate::support::rabbit::{unique, vhost};

/// How often something is looked at that cannot say when it changes.
const LOOK: Duration = Duration::from_millis(10);

/// Servers and a queue of one test.
pub struct World {
    pub database: Database,
    pub client: Client,
    pub amqp: String,
    pub queue: String,
    channel: Channel,
    _connection: Connection,
}

impl World {
    /// On the shared servers.
    pub async fn new() -> Self {
        let (database, client) = inbox().await;
        Self::on(database, client, vhost().await.url).await
    }

    /// On these servers.
    pub async fn on(database: Database, client: Client, amqp: String) -> Self {
        client
            .batch_execute(
                "CREATE TABLE effect (message_id text, at timestamptz DEFAULT clock_timestamp())",
            )
            .await
            .expect("a table for effects");
        let (connection, channel) = connect(&amqp).await;
        let world = Self {
            database,
            client,
            amqp,
            queue: unique("inbox"),
            channel,
            _connection: connection,
        };
        world.declare().await;
        world
    }

    /// Publishes on another connection from now on.
    pub async fn with_new_channel(mut self) -> Self {
        (self._connection, self.channel) = connect(&self.amqp).await;
        self
    }

    /// The same queue anew, as one that drops what came back more often than this.
    pub async fn with_delivery_limit(self, limit: i32) -> Self {
        self.delete_queue().await;
        let mut arguments = FieldTable::default();
        arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(limit));
        self.declare_with(arguments).await;
        self
    }

    /// A durable quorum queue.
    pub async fn declare(&self) {
        self.declare_with(FieldTable::default()).await;
    }

    async fn declare_with(&self, mut arguments: FieldTable) {
        arguments.insert(
            "x-queue-type".into(),
            AMQPValue::LongString("quorum".into()),
        );
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let name = self.queue.as_str().into();
        self.channel
            .queue_declare(name, durable, arguments)
            .await
            .expect("a queue");
    }

    pub async fn delete_queue(&self) {
        let name = self.queue.as_str().into();
        self.channel
            .queue_delete(name, QueueDeleteOptions::default())
            .await
            .expect("deleted");
    }

    /// Messages that are ready in the queue.
    pub async fn ready(&self) -> u32 {
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let name = self.queue.as_str().into();
        let queue = self
            .channel
            .queue_declare(name, passive, FieldTable::default())
            .await;
        queue.expect("the queue").message_count()
    }

    /// Publishes as the relay does.
    pub async fn publish(&self, id: &str, key: Option<&str>) {
        let mut headers = FieldTable::default();
        if let Some(key) = key {
            headers.insert("x-outbox-key".into(), AMQPValue::LongString(key.into()));
        }
        let properties = BasicProperties::default()
            .with_message_id(id.into())
            .with_type("paid".into())
            .with_delivery_mode(2)
            .with_headers(headers);
        self.publish_with(properties, format!("body of {id}").as_bytes())
            .await;
    }

    pub async fn publish_with(&self, properties: BasicProperties, body: &[u8]) {
        let queue = self.queue.as_str().into();
        let options = BasicPublishOptions::default();
        let confirm = self
            .channel
            .basic_publish("".into(), queue, options, body, properties);
        confirm.await.expect("published").await.expect("confirmed");
    }

    /// Settings with a lease of one second and quick retries.
    pub fn settings(&self) -> Settings {
        let second = Duration::from_secs(1);
        Settings {
            lease: second,
            max_attempts: 3,
            retry_initial: Duration::from_millis(20),
            retry_max_delay: second,
            shutdown_grace: PATIENCE,
            ..Settings::new(PAY, self.queue.as_str())
        }
    }

    /// Starts a consumer with effects outside its inbox.
    pub fn leased<F>(
        &self,
        settings: Settings,
        act: impl Fn(Message) -> F + Send + Sync + 'static,
    ) -> Running
    where
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        self.leased_on(&self.database.url, &self.amqp, settings, act)
    }

    /// The same through other doors, such as a proxy.
    pub fn leased_on<F>(
        &self,
        database: &str,
        amqp: &str,
        settings: Settings,
        act: impl Fn(Message) -> F + Send + Sync + 'static,
    ) -> Running
    where
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        let act = Act(Box::new(move |message| Box::pin(act(message))));
        let (consumer, counts) = consumer(database, amqp, settings);
        Running::start(counts, |stop| consumer.run_leased(act, stop))
    }

    /// Starts a consumer whose effect is a row in `effect`, and whatever `then` does after it.
    pub fn transactional<F>(
        &self,
        settings: Settings,
        then: impl Fn(Message) -> F + Send + Sync + 'static,
    ) -> Running
    where
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        self.transactional_on(&self.database.url, &self.amqp, settings, then)
    }

    pub fn transactional_on<F>(
        &self,
        database: &str,
        amqp: &str,
        settings: Settings,
        then: impl Fn(Message) -> F + Send + Sync + 'static,
    ) -> Running
    where
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        let act = Act(Box::new(move |message| Box::pin(then(message))));
        let (consumer, counts) = consumer(database, amqp, settings);
        Running::start(counts, |stop| consumer.run_transactional(act, stop))
    }

    /// Waits until a query that counts says so.
    pub async fn counts(&self, sql: &str, expected: i64) {
        let mut seen = -1;
        let reached = async {
            while seen != expected {
                // The database is asked: nobody signals a commit.
                sleep(LOOK).await;
                seen = number(&self.client, sql).await;
            }
        };
        let reached = timeout(PATIENCE, reached).await;
        assert!(reached.is_ok(), "{sql}: {seen}, never {expected}");
    }

    /// Waits until so many entries are in this state.
    pub async fn are(&self, state: &str, entries: i64) {
        let sql = format!("SELECT count(*) FROM inbox.message WHERE state = '{state}'");
        self.counts(&sql, entries).await;
    }

    pub async fn effects(&self) -> i64 {
        number(&self.client, "SELECT count(*) FROM effect").await
    }

    /// What must hold after every run: everything that left the queue is recorded, no result
    /// without its claim, no attempt beyond the limit.
    pub async fn invariants(&self, published: i64) {
        assert_eq!(self.ready().await, 0, "nothing is left in the queue");
        let entries = "SELECT count(*) FROM inbox.message";
        assert_eq!(
            number(&self.client, entries).await,
            published,
            "what was acknowledged is recorded"
        );
        let beyond = "SELECT count(*) FROM inbox.message m JOIN inbox.consumer c USING (consumer) \
                      WHERE attempt > max_attempts";
        assert_eq!(
            number(&self.client, beyond).await,
            0,
            "attempts never exceed the limit"
        );
        let twice =
            "SELECT count(*) FROM (SELECT FROM effect GROUP BY message_id HAVING count(*) > 1) t";
        assert_eq!(number(&self.client, twice).await, 0, "at most one effect");
    }
}

async fn connect(amqp: &str) -> (Connection, Channel) {
    let connecting = Connection::connect(amqp, ConnectionProperties::default());
    let connection = timeout(PATIENCE, connecting)
        .await
        .expect("in time")
        .expect("a broker");
    let channel = connection.create_channel().await.expect("a channel");
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await
        .expect("confirms");
    (connection, channel)
}

fn consumer(database: &str, amqp: &str, settings: Settings) -> (Consumer, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let consumer = Consumer::by_urls(settings, database.to_owned(), amqp.to_owned());
    let consumer = consumer
        .expect("valid settings")
        .observed_by(Arc::clone(&counts) as Arc<dyn Observer>);
    (consumer, counts)
}

/// A consumer at work, in a runtime of its own, so that all of it can vanish at once.
pub struct Running {
    stop: CancellationToken,
    task: JoinHandle<Ended>,
    runtime: Option<Runtime>,
    pub counts: Arc<Counts>,
}

impl Running {
    fn start<F>(counts: Arc<Counts>, run: impl FnOnce(CancellationToken) -> F) -> Self
    where
        F: Future<Output = Ended> + Send + 'static,
    {
        let stop = CancellationToken::new();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        Self {
            task: runtime.spawn(run(stop.clone())),
            stop,
            runtime: Some(runtime),
            counts,
        }
    }

    /// Asks it to stop, and waits.
    pub async fn stop(mut self) -> Ended {
        self.stop.cancel();
        let task = timeout(PATIENCE, &mut self.task).await;
        task.expect("in time").expect("no panic")
    }

    /// Asks it to stop, without waiting.
    pub fn ask_to_stop(&self) {
        self.stop.cancel();
    }

    /// It vanishes without a word, wherever it is: no task goes on, every connection is cut.
    pub fn crash(self) {
        drop(self);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

type Acting = Box<dyn Fn(Message) -> BoxFuture<'static, HandlerResult> + Send + Sync>;

struct Act(Acting);

impl LeasedHandler for Act {
    async fn handle(&self, message: &Message) -> HandlerResult {
        (self.0)(message.clone()).await
    }
}

impl TransactionalHandler for Act {
    async fn handle(&self, transaction: &Transaction<'_>, message: &Message) -> HandlerResult {
        let sql = "INSERT INTO public.effect (message_id) VALUES ($1)";
        transaction.execute(sql, &[&message.message_id]).await?;
        (self.0)(message.clone()).await
    }
}

/// What an observer was told.
#[derive(Debug, Default)]
pub struct Counts {
    pub completed: AtomicUsize,
    pub retried: AtomicUsize,
    pub redelivered: AtomicUsize,
    pub duplicates: AtomicUsize,
    pub conflicts: AtomicUsize,
    pub handled: AtomicUsize,
    dead: std::sync::Mutex<HashMap<String, u64>>,
}

impl Counts {
    pub fn get(counter: &AtomicUsize) -> usize {
        counter.load(Ordering::SeqCst)
    }

    /// Waits until a counter has come so far.
    pub async fn reaches(&self, counter: &AtomicUsize, expected: usize) {
        let reached = async {
            while Self::get(counter) < expected {
                // Handlers count without a signal, also those that never end.
                sleep(LOOK).await;
            }
        };
        assert!(
            timeout(PATIENCE, reached).await.is_ok(),
            "{self:?}: never {expected}"
        );
    }

    pub fn dead(&self) -> HashMap<String, u64> {
        self.dead.lock().expect("not poisoned").clone()
    }
}

fn add(counter: &AtomicUsize) {
    counter.fetch_add(1, Ordering::SeqCst);
}

impl Observer for Counts {
    fn completed(&self, _: &str, _: Option<&str>) {
        add(&self.completed);
    }
    fn retried(&self, _: &str, _: RetryReason) {
        add(&self.retried);
    }
    fn redelivered(&self, _: &str) {
        add(&self.redelivered);
    }
    fn duplicate(&self, _: &str) {
        add(&self.duplicates);
    }
    fn claim_conflict(&self, _: &str) {
        add(&self.conflicts);
    }
    fn handled(&self, _: &str, _: Duration) {
        add(&self.handled);
    }
    fn dead(&self, _: &str, entries: &[DeadEntries]) {
        let entries = entries.iter().map(|one| (one.reason.clone(), one.rows));
        *self.dead.lock().expect("not poisoned") = entries.collect();
    }
}

/// A result to tell attempts by.
pub fn result(message: &Message) -> Option<Value> {
    Some(json!({"attempt": message.attempt, "taken_over": message.taken_over}))
}
