//! A consumer: its parts, their start, and their end within a deadline.

use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::desk::Desk;
use super::dispatch::{Dispatch, Runner};
use super::feed::Feed;
use super::handler::{LeasedHandler, TransactionalHandler};
use super::keeper::Keeper;
use super::leased::Leased;
use super::observer::{Observer, Unobserved};
use super::settings::{Settings, SettingsError};
use super::transactional::Transactional;
use crate::broker::WantedQueue;
use crate::config::{BrokerSection, BrokerTarget, DatabaseSection, DatabaseTarget, Secret};

/// How often dead entries are counted.
const COUNT_INTERVAL: Duration = Duration::from_secs(30);
/// After how many counts finished entries are forgotten: five minutes.
const COUNTS_TO_TIDY: u32 = 10;
/// Entries forgotten in one statement.
const TIDY_LIMIT: i32 = 1000;
/// How long handlers that were dropped may take to say so.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How a consumer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything that had been started was finished and acknowledged.
    Drained,
    /// The grace was over before so many handlers ended; they were dropped and their messages
    /// given back.
    GraceOver(usize),
}

/// Consumes one queue with one handler.
pub struct Consumer {
    settings: Arc<Settings>,
    database: DatabaseTarget,
    broker: BrokerTarget,
    observer: Arc<dyn Observer>,
}

impl Consumer {
    /// A consumer of these servers.
    ///
    /// # Errors
    /// [`SettingsError`] names all settings that cannot be used.
    pub fn new(
        settings: Settings,
        database: DatabaseTarget,
        broker: BrokerTarget,
    ) -> Result<Self, SettingsError> {
        settings.validate()?;
        Ok(Self {
            settings: Arc::new(settings),
            database,
            broker,
            observer: Arc::new(Unobserved),
        })
    }

    /// The same by URLs: `postgres://…`, `amqp://…`. What they may say is what the relay's
    /// configuration says of `database.url` and `broker.url`.
    ///
    /// # Errors
    /// As [`Consumer::new`]. URLs are read at every connect; a fault in them is logged then.
    pub fn by_urls(
        settings: Settings,
        database: impl Into<SecretString>,
        broker: impl Into<SecretString>,
    ) -> Result<Self, SettingsError> {
        let database = DatabaseTarget::new(DatabaseSection {
            url: Some(Secret::Value(database.into())),
            ..DatabaseSection::default()
        });
        let broker = BrokerTarget::new(BrokerSection {
            url: vec![Secret::Value(broker.into())],
            ..BrokerSection::default()
        });
        Self::new(settings, database, broker)
    }

    /// Tells this observer of everything that is counted.
    #[must_use]
    pub fn observed_by(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = observer;
        self
    }

    /// Consumes until `stop` is cancelled; an outage never ends it.
    pub async fn run_transactional(
        self,
        handler: impl TransactionalHandler,
        stop: CancellationToken,
    ) -> Ended {
        self.run(Transactional(handler), stop).await
    }

    /// Consumes until `stop` is cancelled; an outage never ends it.
    pub async fn run_leased(self, handler: impl LeasedHandler, stop: CancellationToken) -> Ended {
        self.run(Leased(handler), stop).await
    }

    async fn run(self, runner: impl Runner, stop: CancellationToken) -> Ended {
        let Self {
            settings,
            database,
            broker,
            observer,
        } = self;
        let keeper = Arc::new(Keeper::new(database, Arc::clone(&settings)));
        let desk = Arc::new(Desk::new(
            Arc::clone(&settings),
            Arc::clone(&keeper),
            observer,
        ));
        let end = CancellationToken::new();
        // Whatever ends this future, dropped or returned, ends its tasks.
        let _ends_with_us = end.clone().drop_guard();
        let _dropped_with_us = desk.abort.clone().drop_guard();
        let (sender, deliveries) = mpsc::channel(1);
        let feed = Feed {
            target: broker,
            wanted: WantedQueue {
                queue: settings.queue.clone(),
                prefetch: settings.prefetch,
            },
            deliveries: sender,
            database: keeper.watch(),
            stop: stop.clone(),
            end: end.clone(),
        };
        let feeding = tokio::spawn(ended_by(end.clone(), feed));
        tokio::spawn(tidy(Arc::clone(&desk), end.clone()));
        let keeping = end.clone();
        tokio::spawn(async move { keeper.keep(keeping).await });

        let mut dispatch = Dispatch::new(Arc::clone(&desk), Arc::new(runner), deliveries, stop);
        dispatch.run().await;
        let ended = drain(&desk, &dispatch).await;
        end.cancel();
        if timeout(LAST_WORDS, feeding).await.is_err() {
            warn!(
                consumer = settings.consumer,
                "the broker did not say goodbye"
            );
        }
        ended
    }
}

/// Runs the feed; also where nobody told it to stop before the end.
async fn ended_by(end: CancellationToken, feed: Feed) {
    let stop = feed.stop.child_token();
    let feed = Feed {
        stop: stop.clone(),
        ..feed
    };
    let mut running = std::pin::pin!(feed.run());
    tokio::select! {
        () = &mut running => return,
        () = end.cancelled() => stop.cancel(),
    }
    running.await;
}

/// Waits for what was started, for at most the grace.
async fn drain<R: Runner>(desk: &Desk, dispatch: &Dispatch<R>) -> Ended {
    let running = &dispatch.running;
    running.close();
    info!(
        consumer = desk.consumer(),
        running = running.len(),
        "draining"
    );
    if timeout(desk.settings.shutdown_grace, running.wait())
        .await
        .is_ok()
    {
        return Ended::Drained;
    }
    let left = running.len();
    desk.abort.cancel();
    if timeout(LAST_WORDS, running.wait()).await.is_err() {
        warn!(
            consumer = desk.consumer(),
            "some messages could not be given back; their leases will end"
        );
    }
    Ended::GraceOver(left)
}

/// Counts what is dead, and forgets what is old.
async fn tidy(desk: Arc<Desk>, end: CancellationToken) {
    let tidying = async {
        let mut rounds: u32 = 0;
        loop {
            let line = desk.keeper.line().await;
            let counted = line.functions().dead(desk.consumer()).await;
            match counted {
                Ok(entries) => desk.observer.dead(desk.consumer(), &entries),
                Err(error) => warn!(consumer = desk.consumer(), %error, "inbox database"),
            }
            if rounds.is_multiple_of(COUNTS_TO_TIDY) {
                forget(&desk).await;
            }
            rounds = rounds.wrapping_add(1);
            sleep(COUNT_INTERVAL).await;
        }
    };
    tokio::select! {
        () = end.cancelled() => {}
        () = tidying => {}
    }
}

async fn forget(desk: &Desk) {
    loop {
        let line = desk.keeper.line().await;
        match line.functions().tidy(desk.consumer(), TIDY_LIMIT).await {
            Ok(TIDY_LIMIT) => {}
            Ok(_) => return,
            Err(error) => {
                warn!(consumer = desk.consumer(), %error, "old entries are not forgotten yet");
                return;
            }
        }
    }
}
