//! `[outbox]`: which relation is read, and what becomes of sent rows.

use std::time::Duration;

/// What is done to a row once it is confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnSent {
    /// `sent_at` is set; the row is removed after `retention`.
    Mark,
    /// The row is removed at once.
    Delete,
}

/// The keys of `[outbox]`.
#[derive(Clone, Debug)]
pub struct OutboxSection {
    /// `schema`.
    pub schema: String,
    /// `relation`: a table or an updatable view.
    pub relation: String,
    /// `on_sent`.
    pub on_sent: OnSent,
    /// `retention`: how long sent rows are kept.
    pub retention: Duration,
}

impl Default for OutboxSection {
    fn default() -> Self {
        Self {
            schema: "outbox".to_owned(),
            relation: "message".to_owned(),
            on_sent: OnSent::Mark,
            retention: Duration::from_secs(7 * 24 * 3600),
        }
    }
}
