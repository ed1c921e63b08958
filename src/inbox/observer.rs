//! What can be counted about a consumer. The names of metrics are in `metrics`.

use std::time::Duration;

/// Why an attempt is to be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RetryReason {
    /// The handler said so.
    Handler,
    /// The other side said when.
    RetryAfter,
    /// The handler took too long.
    Timeout,
    /// The handler panicked.
    Panic,
    /// The result could not be committed.
    Commit,
}

impl RetryReason {
    /// The label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Handler => "handler",
            Self::RetryAfter => "retry_after",
            Self::Timeout => "timeout",
            Self::Panic => "panic",
            Self::Commit => "commit",
        }
    }
}

/// Dead entries of one class.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadEntries {
    /// Their `reason_class`.
    pub reason: String,
    /// How many.
    pub rows: u64,
    /// Since when the oldest has been dead.
    pub oldest_age: Duration,
}

/// Told of everything that is counted. Every method must return at once.
pub trait Observer: Send + Sync + 'static {
    /// A result is durable; the message's property `type`.
    fn completed(&self, consumer: &str, kind: Option<&str>) {
        let _ = (consumer, kind);
    }
    /// An attempt failed and will be repeated.
    fn retried(&self, consumer: &str, reason: RetryReason) {
        let _ = (consumer, reason);
    }
    /// The broker delivered something again.
    fn redelivered(&self, consumer: &str) {
        let _ = consumer;
    }
    /// A delivery of what is done already; its handler did not run.
    fn duplicate(&self, consumer: &str) {
        let _ = consumer;
    }
    /// A delivery of what somebody else works on.
    fn claim_conflict(&self, consumer: &str) {
        let _ = consumer;
    }
    /// A handler ran for so long, whatever came of it.
    fn handled(&self, consumer: &str, took: Duration) {
        let _ = (consumer, took);
    }
    /// All dead entries, every half minute.
    fn dead(&self, consumer: &str, entries: &[DeadEntries]) {
        let _ = (consumer, entries);
    }
}

/// Counts nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Observer for Unobserved {}
