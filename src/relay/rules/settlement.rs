//! What is to be written down about a row.

use std::time::Duration;

use super::{Fingerprint, Partition};
use crate::broker::Confirmed;
use crate::message::{ReasonClass, RowId, Unfit};

/// Numbers the settlements, so that an acknowledgement of an older one is not taken for one of
/// a newer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// One row's news for the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The row.
    pub id: RowId,
    /// The partition it belongs to, whose owner decides about it.
    pub partition: Partition,
    /// What the row is known by beside its id; `None` if by that alone.
    pub fingerprint: Option<Fingerprint>,
    /// Of this settlement.
    pub ticket: Ticket,
    /// What is to be written.
    pub verdict: Verdict,
}

/// What was decided about a row.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The broker routed and confirmed it. May be recorded by anybody at any time: it is true.
    Sent(Confirmed),
    /// It waits: the next attempt is not before `delay` from now, by the database's clock.
    RetryAt {
        /// From the moment this is written.
        delay: Duration,
        /// Charged attempts, including this one if it was the row's own fault.
        attempts: u32,
        /// What kind of reason, for counting.
        class: ReasonClass,
        /// The reason, for people; stored in `last_error`.
        error: String,
    },
    /// It can never be sent as it is: it moves to quarantine in one transaction.
    Quarantine {
        /// Charged attempts, the last one included.
        attempts: u32,
        /// Why.
        why: Unfit,
    },
}

impl Verdict {
    /// May it be recorded by a relay that no longer owns the row's partition?
    #[must_use]
    pub fn is_anybody_s(&self) -> bool {
        match self {
            Self::Sent(_) => true,
            Self::RetryAt { .. } | Self::Quarantine { .. } => false,
        }
    }
}

/// What the table made of a batch of settlements. Each is in exactly one list.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SettleReport {
    /// Written; durable.
    pub written: Vec<(RowId, Ticket)>,
    /// Somebody else holds the row's lock: to be tried again later.
    pub locked: Vec<Ticket>,
    /// No longer pending: deleted, or settled by somebody else, or another row has the id by now.
    pub gone: Vec<(RowId, Ticket)>,
    /// Not written, because the partition has another owner now.
    pub disowned: Vec<(RowId, Ticket)>,
}
