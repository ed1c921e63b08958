//! Keeps the session with the consumer's PostgreSQL: opens it, watches it, opens another.
//!
//! An outage ends nothing: whoever needs the session waits for the next one.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::functions::Functions;
use super::settings::Settings;
use crate::config::{DatabaseTarget, SessionKind};
use crate::runtime::{Clock, Jitter, RetryPolicy};
use crate::store::error::StoreError;
use crate::store::postgres::connect::{connect, resolve};
use crate::store::postgres::session::{Session, SessionSettings, application_name};

/// How much longer than the server we wait for a statement: its own word is the better one.
const MARGIN: Duration = Duration::from_secs(5);
/// A session that lived so long was a good one; the next failure starts a new row.
const GOOD: Duration = Duration::from_secs(30);

/// A session and how long an answer on it may take.
pub(super) struct Line {
    pub(super) session: Session,
    longest: Duration,
}

impl Line {
    pub(super) fn functions(&self) -> Functions<'_, Client> {
        Functions {
            client: &self.session.client,
            longest: self.longest,
        }
    }

    pub(super) fn longest(&self) -> Duration {
        self.longest
    }

    pub(super) fn is_alive(&self) -> bool {
        self.session.closed.borrow().is_none()
    }
}

/// Opens sessions, and keeps one for all the short statements.
pub(super) struct Keeper {
    target: DatabaseTarget,
    settings: Arc<Settings>,
    current: watch::Sender<Option<Arc<Line>>>,
}

impl Keeper {
    pub(super) fn new(target: DatabaseTarget, settings: Arc<Settings>) -> Self {
        Self {
            target,
            settings,
            current: watch::Sender::new(None),
        }
    }

    /// The session, once there is one. Cancel safe.
    pub(super) async fn line(&self) -> Arc<Line> {
        let mut current = self.current.subscribe();
        loop {
            if let Some(line) = current.borrow_and_update().clone() {
                return line;
            }
            // The sender is ours, so this cannot fail while we live.
            let _ = current.changed().await;
        }
    }

    /// Whether there is one, to be watched.
    pub(super) fn watch(&self) -> watch::Receiver<Option<Arc<Line>>> {
        self.current.subscribe()
    }

    /// Something went wrong on this session: nobody shall use it again, unless a lock that somebody
    /// else held was all.
    pub(super) fn doubt(&self, line: &Arc<Line>, error: &StoreError) {
        if let StoreError::Retryable(fault) = error {
            debug!(consumer = self.settings.consumer, %fault, "asking again");
            return;
        }
        warn!(consumer = self.settings.consumer, %error, "inbox database");
        self.current.send_if_modified(|current| {
            let is_it = current.as_ref().is_some_and(|one| Arc::ptr_eq(one, line));
            if is_it {
                *current = None;
            }
            is_it
        });
    }

    /// Opens a session for one handler's transactions.
    ///
    /// # Errors
    /// [`StoreError`] as for any connect.
    pub(super) async fn open_another(&self) -> Result<Line, StoreError> {
        self.open("handler").await
    }

    async fn open(&self, role: &str) -> Result<Line, StoreError> {
        let mut access = resolve(&self.target).await?;
        if access.session == SessionKind::Any {
            access.session = SessionKind::ReadWrite;
        }
        let name = application_name(&format!("inbox-{role}"), &self.settings.consumer);
        let settings = SessionSettings {
            // A handler may think between two statements; its own timeout bounds it.
            idle_in_transaction_timeout: self.settings.handler_timeout + MARGIN,
            ..SessionSettings::new(name, access.statement_timeout)
        };
        let session = Box::pin(connect(&access, &settings)).await?;
        let longest = access.statement_timeout + MARGIN;
        Ok(Line { session, longest })
    }

    /// Opens a session, sets the consumer's limits, and does so again whenever it is lost.
    pub(super) async fn keep(&self, stop: CancellationToken) {
        let mut backoff = Backoff::new();
        let keeping = async {
            loop {
                let opened_at = Clock.now();
                match self.open_configured().await {
                    Ok(line) => {
                        let consumer = self.settings.consumer.as_str();
                        info!(
                            consumer,
                            server = line.session.server,
                            "inbox database connected"
                        );
                        self.until_lost(Arc::new(line)).await;
                        if Clock.now().since(opened_at) > GOOD {
                            backoff = Backoff::new();
                        }
                    }
                    Err(error) => {
                        let consumer = self.settings.consumer.as_str();
                        warn!(consumer, %error, "inbox database: consuming pauses");
                    }
                }
                backoff.pause().await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = keeping => {}
        }
        self.current.send_replace(None);
    }

    async fn open_configured(&self) -> Result<Line, StoreError> {
        let line = self.open("consumer").await?;
        line.functions().configure(&self.settings).await?;
        Ok(line)
    }

    async fn until_lost(&self, line: Arc<Line>) {
        let mut closed = line.session.closed.clone();
        let mut current = self.current.subscribe();
        self.current.send_replace(Some(line));
        tokio::select! {
            _ = closed.wait_for(Option::is_some) => {}
            _ = current.wait_for(Option::is_none) => {}
        }
        self.current.send_replace(None);
    }
}

/// Pauses between two attempts to reach a server.
pub(super) struct Backoff {
    attempt: u32,
    policy: RetryPolicy,
    jitter: Jitter,
}

impl Backoff {
    pub(super) fn new() -> Self {
        let (first, longest) = (Duration::from_millis(100), Duration::from_secs(10));
        Self {
            attempt: 0,
            policy: RetryPolicy::new(first, 2.0, longest, 0.3),
            jitter: Jitter::random(),
        }
    }

    pub(super) async fn pause(&mut self) {
        self.attempt = self.attempt.saturating_add(1);
        sleep(self.policy.delay(self.attempt, &mut self.jitter)).await;
    }
}
