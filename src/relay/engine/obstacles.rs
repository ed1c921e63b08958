//! Tells the log of rows whose fate is decided and cannot be written down: locked by somebody, or
//! refused by the database. A bounded number of lines, however many rows and however long.

use std::collections::BTreeMap;
use std::time::Duration;

use tracing::{info, warn};

use super::news::News;
use super::ration::Ration;
use crate::message::RowId;
use crate::relay::rules::{Settlement, Ticket};
use crate::runtime::{Moment, Set};
use crate::store::StoreError;

/// A lock of the application's that is over sooner is nobody's trouble.
const BRIEF: Duration = Duration::from_secs(5);

/// What is in the way, and what was said of it lately.
#[derive(Debug)]
pub(super) struct Obstacles {
    /// Rows that were found locked the last time, and since when there have been any.
    locked: BTreeMap<Ticket, RowId>,
    since: Moment,
    locks: News,
    refused: Ration,
}

impl Default for Obstacles {
    fn default() -> Self {
        let mut locks = News::default();
        locks.is_success_news();
        Self {
            locked: BTreeMap::new(),
            since: Moment::ORIGIN,
            locks,
            refused: Ration::new("more refusals to settle a row"),
        }
    }
}

impl Obstacles {
    /// These were tried, and some of them found locked by somebody else.
    pub(super) fn tried(&mut self, batch: &[Settlement], locked: &Set<Ticket>, now: Moment) {
        if self.locked.is_empty() {
            self.since = now;
        }
        for Settlement { ticket, id, .. } in batch {
            if locked.contains(ticket) {
                self.locked.insert(*ticket, *id);
            } else {
                self.locked.remove(ticket);
            }
        }
        let Some(first) = self.locked.values().min() else {
            if self.locks.is_success_news() {
                info!("rows that somebody held locked are settled");
            }
            return;
        };
        if now.since(self.since) >= BRIEF && self.locks.is_failure_news("locked", now) {
            warn!(
                row = first.0,
                rows = self.locked.len(),
                "rows cannot be settled: another session holds them locked; see pg_locks, and \
                 pg_stat_activity for transactions that stay open"
            );
        }
    }

    pub(super) fn refused(&mut self, row: RowId, error: &StoreError, now: Moment) {
        if self.refused.may_speak(now) {
            warn!(row = row.0, %error, "the database refuses to settle a row; trying again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Confirmed;
    use crate::relay::rules::{Partition, Verdict};

    fn at(seconds: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(seconds))
    }

    fn rows(tickets: std::ops::Range<u64>) -> Vec<Settlement> {
        let sent = |ticket| Settlement {
            id: RowId(i64::try_from(ticket).expect("small")),
            partition: Partition(0),
            fingerprint: None,
            ticket: Ticket(ticket),
            verdict: Verdict::Sent(Confirmed::simulated()),
        };
        tickets.map(sent).collect()
    }

    #[test]
    fn other_rows_that_are_settled_do_not_end_a_lock() {
        let mut obstacles = Obstacles::default();
        let locked: Set<Ticket> = [Ticket(1)].into_iter().collect();
        obstacles.tried(&rows(0..3), &locked, at(10));
        for second in 11..20 {
            obstacles.tried(
                &rows(second * 10..second * 10 + 5),
                &Set::default(),
                at(second),
            );
            obstacles.tried(&rows(1..2), &locked, at(second));
        }
        assert_eq!((obstacles.locked.len(), obstacles.since), (1, at(10)));
        assert!(!obstacles.locks.is_failure_news("locked", at(20)), "told");
        obstacles.tried(&rows(1..2), &Set::default(), at(20));
        assert!(obstacles.locked.is_empty());
        assert!(!obstacles.locks.is_success_news(), "told");
    }
}
