//! What all parts of a consumer share, and the saying of verdicts: again and again, until the
//! database has answered.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::functions::{is_the_messages_fault, short};
use super::job::{Ending, Job, Key, Verdict};
use super::keeper::{Keeper, Line};
use super::observer::{Observer, RetryReason};
use super::settings::Settings;
use super::verdicts::Said;

/// How long giving work back may take while stopping.
const GIVE_BACK: Duration = Duration::from_secs(3);

/// Keys that are remembered to have something waiting. What ended elsewhere is never taken off the
/// list, so all are forgotten now and then; the next poll finds what is due all the same.
const MOST_KEYS: usize = 10_000;

/// Shared by all parts of a consumer.
pub(super) struct Desk {
    pub(super) settings: Arc<Settings>,
    pub(super) keeper: Arc<Keeper>,
    pub(super) observer: Arc<dyn Observer>,
    /// Running handlers are to be dropped now.
    pub(super) abort: CancellationToken,
    /// Something may have become due.
    pub(super) due: Notify,
    /// Keys of which something waits.
    waiting: Mutex<HashSet<String>>,
    /// Sessions of handlers that are not in use.
    idle: Mutex<Vec<Line>>,
}

impl Desk {
    pub(super) fn new(
        settings: Arc<Settings>,
        keeper: Arc<Keeper>,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self {
            settings,
            keeper,
            observer,
            abort: CancellationToken::new(),
            due: Notify::new(),
            waiting: Mutex::default(),
            idle: Mutex::default(),
        }
    }

    pub(super) fn consumer(&self) -> &str {
        &self.settings.consumer
    }

    /// Something of this key waits; when an entry of it ends, `due` is asked at once.
    pub(super) fn waits(&self, key: Option<&String>) {
        let Some(key) = key else { return };
        let mut waiting = self.waiting();
        if waiting.len() >= MOST_KEYS {
            waiting.clear();
        }
        waiting.insert(key.clone());
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session for one handler; give it back by [`Desk::put_back`] if it is still good.
    pub(super) async fn handler_line(&self) -> Result<Line, crate::store::error::StoreError> {
        loop {
            let idle = {
                let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
                idle.pop()
            };
            match idle {
                Some(line) if line.is_alive() => return Ok(line),
                Some(_) => {}
                None => return self.keeper.open_another().await,
            }
        }
    }

    pub(super) fn put_back(&self, line: Line) {
        if line.is_alive() {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.push(line);
        }
    }

    /// Brings a job to its end: says the verdict, counts it, acknowledges the delivery.
    pub(super) async fn end(&self, job: Job, ending: Ending) {
        let settled = match ending {
            Ending::Committed => {
                self.observer.completed(self.consumer(), job.message.kind());
                true
            }
            Ending::Lost => {
                warn!(
                    consumer = self.consumer(),
                    message_id = job.key.message_id,
                    owner = short(job.key.owner),
                    "the claim was lost to another owner; nothing was changed"
                );
                true
            }
            Ending::Unknown => self.find_out(&job).await,
            Ending::Verdict(verdict, why) => self.settle(&job, verdict, why).await,
        };
        if let Some(key) = &job.message.ordering_key
            && self.waiting().remove(key)
        {
            self.due.notify_one();
        }
        let message_id = job.key.message_id;
        if let Some(receipt) = job.receipt
            && settled
            && !receipt.ack().await
        {
            debug!(
                message_id,
                "not acknowledged: the broker will deliver it again"
            );
        }
    }

    /// Returns whether the database has answered.
    async fn settle(&self, job: &Job, verdict: Verdict, why: Option<RetryReason>) -> bool {
        let is_complete = matches!(verdict, Verdict::Complete(_));
        let Some(said) = self.say(&job.key, &verdict).await else {
            return false;
        };
        let (consumer, message_id) = (self.consumer(), job.key.message_id.as_str());
        match said {
            Said::Done if is_complete => self.observer.completed(consumer, job.message.kind()),
            Said::Done => {}
            Said::PutOff(_) | Said::Dead => {
                if let Some(why) = why {
                    self.observer.retried(consumer, why);
                }
                if said == Said::Dead {
                    warn!(consumer, message_id, "attempts used up: dead");
                }
            }
            Said::NotOwner => {
                warn!(
                    consumer,
                    message_id, "too late: another owner has it; nothing was changed"
                );
            }
        }
        if let Verdict::Fail(_) = verdict {
            warn!(consumer, message_id, "permanent failure: dead");
        }
        true
    }

    /// A commit's answer was lost. If the transaction is still ending, its lock makes us wait.
    async fn find_out(&self, job: &Job) -> bool {
        loop {
            let Some(said) = self.say(&job.key, &Verdict::Release).await else {
                return false;
            };
            if said == Said::Done {
                return true;
            }
            let Some(line) = self.line().await else {
                return false;
            };
            match line.functions().is_done(self.consumer(), &job.key).await {
                Ok(true) => {
                    self.observer.completed(self.consumer(), job.message.kind());
                    return true;
                }
                Ok(false) => return true,
                Err(error) => self.keeper.doubt(&line, &error),
            }
        }
    }

    /// Says a verdict until the database has answered, however long it is away. After the
    /// shutdown's grace once only, and briefly. `None`: unanswered.
    async fn say(&self, key: &Key, verdict: &Verdict) -> Option<Said> {
        if self.abort.is_cancelled() {
            return timeout(GIVE_BACK, self.say_once(key, verdict)).await.ok()?;
        }
        loop {
            let said = tokio::select! {
                () = self.abort.cancelled() => {
                    return timeout(GIVE_BACK, self.say_once(key, verdict)).await.ok()?;
                }
                said = self.say_once(key, verdict) => said,
            };
            if said.is_some() {
                return said;
            }
        }
    }

    async fn say_once(&self, key: &Key, verdict: &Verdict) -> Option<Said> {
        let line = self.keeper.line().await;
        match line.functions().say(self.consumer(), key, verdict).await {
            Ok(said) => Some(said),
            Err(error) if is_the_messages_fault(&error) => {
                let Some(plain) = plainer(verdict) else {
                    self.keeper.doubt(&line, &error);
                    return None;
                };
                let (consumer, message_id) = (self.consumer(), key.message_id.as_str());
                warn!(consumer, message_id, %error, "its result or reason cannot be stored");
                line.functions().say(consumer, key, &plain).await.ok()
            }
            Err(error) => {
                self.keeper.doubt(&line, &error);
                None
            }
        }
    }

    /// The session, unless running handlers are to be dropped.
    async fn line(&self) -> Option<Arc<Line>> {
        tokio::select! {
            () = self.abort.cancelled() => None,
            line = self.keeper.line() => Some(line),
        }
    }
}

/// The same verdict without what the database may be unable to hold.
fn plainer(verdict: &Verdict) -> Option<Verdict> {
    let plain = |reason: &str| reason.replace(|one: char| !one.is_ascii(), "?");
    let plainer = match verdict {
        Verdict::Complete(_) => Verdict::Complete(None),
        Verdict::Fail(reason) => Verdict::Fail(plain(reason)),
        Verdict::Retry { reason, .. } => Verdict::Retry {
            after: None,
            reason: plain(reason),
        },
        Verdict::Release | Verdict::Expire => return None,
    };
    (plainer != *verdict).then_some(plainer)
}
