//! One claimed message on its way through a handler to its end.

use serde_json::Value;
use std::time::Duration;
use uuid::Uuid;

use super::handler::Failure;
use super::message::Message;
use super::observer::RetryReason;
use crate::broker::Receipt;
use crate::runtime::Moment;

/// A claim: which entry, and the token that proves that it is ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) message_id: String,
    pub(super) owner: Uuid,
}

/// A claimed message.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) key: Key,
    pub(super) message: Message,
    /// Of the delivery that brought it; what `due` handed out was acknowledged long ago.
    pub(super) receipt: Option<Receipt>,
    /// When the claim was asked for: the lease runs from then at the earliest.
    pub(super) claimed_at: Moment,
}

/// What is to be said about an entry.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    /// Done, with its result.
    Complete(Option<Value>),
    /// To be tried again.
    Retry {
        after: Option<Duration>,
        reason: String,
    },
    /// Dead.
    Fail(String),
    /// Not begun, or wholly undone: given back, uncounted.
    Release,
    /// Cut off half-way: the lease ends now, and the next owner is told.
    Expire,
}

/// How a handler's run ended.
#[derive(Debug)]
pub(super) enum Ending {
    /// Committed with its result already.
    Committed,
    /// To be said.
    Verdict(Verdict, Option<RetryReason>),
    /// The commit's answer was lost: it happened or it did not.
    Unknown,
    /// No longer ours; nothing to say.
    Lost,
}

impl From<Failure> for Ending {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Permanent { reason } => Self::Verdict(Verdict::Fail(reason), None),
            Failure::Temporary {
                retry_after,
                reason,
            } => {
                let why = match retry_after {
                    Some(_) => RetryReason::RetryAfter,
                    None => RetryReason::Handler,
                };
                let verdict = Verdict::Retry {
                    after: retry_after,
                    reason,
                };
                Self::Verdict(verdict, Some(why))
            }
        }
    }
}

impl Ending {
    /// An attempt that failed for a reason that is not the handler's own word.
    pub(super) fn again(why: RetryReason, reason: impl Into<String>) -> Self {
        let verdict = Verdict::Retry {
            after: None,
            reason: reason.into(),
        };
        Self::Verdict(verdict, Some(why))
    }
}
