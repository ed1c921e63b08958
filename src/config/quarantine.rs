//! `[quarantine]`: what becomes of rows that were given up, and of those behind them.

use std::time::Duration;

/// What becomes of the rows of a key when one of them is quarantined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Successors {
    /// They go on without it.
    Continue,
    /// They wait until an operator has decided.
    Wait,
}

/// The keys of `[quarantine]`.
#[derive(Clone, Debug)]
pub struct QuarantineSection {
    /// `successors`.
    pub successors: Successors,
    /// `replay_window`: an older row is replayed only on explicit demand.
    pub replay_window: Duration,
    /// `owner`: whom to ask; shown in lists, on the page and in alerts.
    pub owner: String,
}

impl Default for QuarantineSection {
    fn default() -> Self {
        Self {
            successors: Successors::Continue,
            replay_window: Duration::from_secs(30 * 24 * 3600),
            owner: String::new(),
        }
    }
}
