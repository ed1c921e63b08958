//! Where it is measured: the scratch schema and queue, and what runs on them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::watcher::Watcher;
use super::{Arguments, bare};
use crate::broker::{AmqpLink, Broker, Link};
use crate::commands::{run, servers};
use crate::config::Config;
use crate::message::{Body, OutboxRow, Publication, RowId, Rules};
use crate::relay::{Ended, Mode, Relay, Settings};
use crate::runtime::{Clock, Health};
use crate::store::postgres::PgStore;
use crate::store::postgres::ident::Outbox;
use crate::store::postgres::scratch::{Scratch, Shape, body};

/// Nothing that is measured makes no progress for so long.
const PATIENCE: Duration = Duration::from_secs(120);
/// Messages made at a stretch.
const PORTION: i64 = 10_000;
/// How long removing may take.
const REMOVAL: Duration = Duration::from_secs(30);

/// The names of what is made, and removed whatever happens.
pub(super) struct Made {
    pub(super) outbox: Outbox,
    pub(super) queue: String,
    store: PgStore,
    /// Something may have been made by now.
    begun: AtomicBool,
}

impl Made {
    /// Names that nothing else has.
    pub(super) fn names(store: &PgStore) -> anyhow::Result<Self> {
        let unique = uuid::Uuid::new_v4().simple().to_string();
        let unique = &unique[..12];
        Ok(Self {
            outbox: Outbox::new(format!("outbox_relay_bench_{unique}"), "message")?,
            queue: format!("outbox-relay.bench.{unique}"),
            store: store.clone(),
            begun: AtomicBool::new(false),
        })
    }

    /// Removes schema and queue over new connections, if they may be there.
    pub(super) async fn remove(&self, config: &Config) -> anyhow::Result<()> {
        if !self.begun.load(Ordering::Relaxed) {
            return Ok(());
        }
        let schema = async {
            let dropped = Scratch::drop_schema(&self.store, &self.outbox).await;
            dropped.with_context(|| format!("schema {} is left behind", self.outbox.schema()))
        };
        let queue = async {
            let removed = async {
                let link = servers::broker(config.broker_target()).connect().await?;
                let deleted = link.delete_scratch_queue(&self.queue).await;
                link.close().await;
                deleted
            };
            let removed = removed.await;
            removed.with_context(|| format!("queue {} is left behind", self.queue))
        };
        let both = Box::pin(async { tokio::join!(schema, queue) });
        let removed = tokio::time::timeout(REMOVAL, both).await;
        let (schema, queue) = removed.with_context(|| {
            let (schema, queue) = (self.outbox.schema(), &self.queue);
            format!("schema {schema} and queue {queue} may be left behind")
        })?;
        schema.and(queue)
    }
}

/// One drain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drain {
    pub(super) rows: u32,
    pub(super) took: Duration,
    /// Processor time of this process.
    pub(super) cpu: Duration,
}

impl Drain {
    pub(super) fn per_second(&self) -> f64 {
        f64::from(self.rows) / self.took.as_secs_f64().max(1e-9)
    }

    pub(super) fn cpu_micros(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / f64::from(self.rows.max(1))
    }
}

impl fmt::Display for Drain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rate, cpu) = (self.per_second(), self.cpu_micros());
        write!(f, "{rate:.0} rows/s, {cpu:.0} µs CPU each")
    }
}

/// Schema and queue, made.
pub(super) struct Stage<'a> {
    pub(super) arguments: &'a Arguments,
    config: &'a Config,
    pub(super) link: AmqpLink,
    pub(super) scratch: Scratch,
    queue: &'a str,
    rules: Rules,
    body: String,
}

impl<'a> Stage<'a> {
    pub(super) async fn set(
        arguments: &'a Arguments,
        config: &'a Config,
        made: &'a Made,
    ) -> anyhow::Result<Self> {
        let link = servers::broker(config.broker_target()).connect().await;
        let link = link.context("cannot reach the broker")?;
        let scratch = Scratch::open(&made.store, made.outbox.clone()).await?;
        made.begun.store(true, Ordering::Relaxed);
        let queue = &made.queue;
        link.declare_scratch_queue(queue, !arguments.classic)
            .await?;
        scratch.make().await?;
        let settings = run::settings(config, &config.broker_target(), made.store.token);
        let rules = Rules {
            frame_max: link.frame_max(),
            ..settings.rules
        };
        Ok(Self {
            arguments,
            config,
            link,
            scratch,
            queue,
            rules,
            body: body(arguments.size as usize),
        })
    }

    pub(super) async fn leave(self) {
        self.link.close().await;
    }

    pub(super) fn shape(&self) -> Shape<'_> {
        Shape {
            queue: self.queue,
            keys: i64::from(self.arguments.keys),
            size: self.arguments.size as usize,
        }
    }

    /// The relay's window and channels, for the bare publisher.
    pub(super) fn window(&self) -> (usize, usize) {
        let relay = &self.config.relay;
        (relay.channels, relay.max_in_flight)
    }

    fn settings(&self) -> Settings {
        run::settings(
            self.config,
            &self.config.broker_target(),
            self.scratch.store.token,
        )
    }

    /// A message as the relay would make it of a row.
    pub(super) fn publication(&self, number: i64) -> anyhow::Result<Arc<Publication>> {
        let row = OutboxRow {
            id: RowId(number),
            message_id: uuid::Uuid::new_v4().to_string(),
            exchange: String::new(),
            routing_key: self.queue.to_owned(),
            ordering_key: Some((number % i64::from(self.arguments.keys)).to_string()),
            payload: Body::Bytes(self.body.clone().into()),
            headers: None,
            message_type: None,
            correlation_id: None,
            content_type: Some("application/json".to_owned()),
            properties: None,
            created_at: SystemTime::UNIX_EPOCH,
            attempts: 0,
        };
        Ok(Arc::new(Publication::from_row(row, &self.rules)?))
    }

    /// The same messages over the same client, window and channels, without database and order.
    pub(super) async fn bare_drain(&self) -> anyhow::Result<Drain> {
        self.link.purge_scratch_queue(self.queue).await?;
        let rows = self.arguments.rows;
        let mut publications = Vec::with_capacity(rows as usize);
        for number in 1..=i64::from(rows) {
            publications.push(self.publication(number)?);
            if number % PORTION == 0 {
                // An interruption may be waiting.
                tokio::task::yield_now().await;
            }
        }
        let (channels, in_flight) = self.window();
        let (began, cpu) = (Clock.now(), Clock.cpu());
        let publishing = bare::publish(&self.link, publications, channels, in_flight);
        let published = tokio::time::timeout(PATIENCE, publishing).await;
        published.context("the broker is too slow: fewer --rows")??;
        Ok(Drain {
            rows,
            took: Clock.now().since(began),
            cpu: Clock.cpu().saturating_sub(cpu),
        })
    }

    /// A relay that drains as many rows.
    pub(super) async fn relay_drain(&self) -> anyhow::Result<Drain> {
        self.link.purge_scratch_queue(self.queue).await?;
        let rows = self.arguments.rows;
        self.scratch.fill(i64::from(rows), self.shape()).await?;
        let cpu = Clock.cpu();
        let running = self.start();
        running.until_confirmed(rows as usize).await?;
        let cpu = Clock.cpu().saturating_sub(cpu);
        let took = running.watcher.took().context("nothing was confirmed")?;
        running.stop().await?;
        Ok(Drain { rows, took, cpu })
    }

    /// Starts a relay on the scratch outbox.
    pub(super) fn start(&self) -> Running {
        let (watcher, drain) = (Arc::new(Watcher::new()), CancellationToken::new());
        let health = Health::starting(Clock.now());
        let store = self.scratch.store.clone();
        let broker = servers::broker(self.config.broker_target());
        let relay = Relay::new(self.settings(), store, broker, health.clone());
        let relay = relay.observed_by(Arc::clone(&watcher) as _);
        let ended = tokio::spawn(relay.run(Mode::Forever, drain.clone()));
        Running {
            watcher,
            health,
            ended,
            drain: drain.drop_guard(),
        }
    }
}

/// A relay under way; it drains when this is dropped.
pub(super) struct Running {
    pub(super) watcher: Arc<Watcher>,
    health: Health,
    ended: JoinHandle<Ended>,
    drain: DropGuard,
}

impl Running {
    /// Waits until both connections stand.
    pub(super) async fn ready(&self) -> anyhow::Result<()> {
        let mut condition = self.health.watch();
        let ready = async {
            while !self.health.readiness(Clock.now()).ready {
                if condition.changed().await.is_err() {
                    return;
                }
            }
        };
        let ready = tokio::time::timeout(PATIENCE, ready).await;
        ready.context("the relay does not become ready")
    }

    pub(super) async fn until_confirmed(&self, rows: usize) -> anyhow::Result<()> {
        let confirmed = tokio::time::timeout(PATIENCE, self.watcher.confirmed(rows)).await;
        let refused = self.watcher.refused();
        confirmed.with_context(|| format!("not all was confirmed; {refused} were refused"))
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        drop(self.drain);
        match self.ended.await.context("the relay failed")? {
            Ended::Drained => Ok(()),
            Ended::GraceOver(rows) => bail!("{rows} rows were under way at the end"),
        }
    }
}
