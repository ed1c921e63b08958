//! `[quarantine]`: what becomes of rows that were given up, and of those behind them.

use std::time::Duration;

use super::reader::{Reader, accept, within};
use super::setting::Choice;

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

impl Choice for Successors {
    const WORDS: &'static [(&'static str, Self)] =
        &[("continue", Self::Continue), ("wait", Self::Wait)];
}

impl QuarantineSection {
    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        let defaults = Self::default();
        let day = Duration::from_secs(24 * 3600);
        Self {
            successors: reader.value("quarantine.successors", defaults.successors, accept),
            replay_window: reader.value(
                "quarantine.replay_window",
                defaults.replay_window,
                within(Duration::from_secs(60), day * 3650),
            ),
            owner: reader.value("quarantine.owner", defaults.owner, accept),
        }
    }
}
