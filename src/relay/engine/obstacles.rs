//! Tells the log of rows whose fate is decided and cannot be written down: locked by somebody, or
//! refused by the database, and whoever asks for this relay. A bounded number of lines and ids,
//! however many rows and however long.

use std::collections::BTreeMap;
use std::time::Duration;

use tracing::{info, warn};

use super::news::News;
use super::ration::Ration;
use crate::message::RowId;
use crate::relay::rules::{HeldBack, Settlement, Ticket, Unwritten, Verdict, Withheld};
use crate::runtime::{Moment, Set};
use crate::store::StoreError;

/// A lock of the application's that is over sooner is nobody's trouble.
const BRIEF: Duration = Duration::from_secs(5);

/// What is in the way, and what was said of it lately.
#[derive(Debug)]
pub(super) struct Obstacles {
    /// Rows that were found locked the last time, and since when there have been any.
    locked: BTreeMap<Ticket, (RowId, Unwritten)>,
    since: Moment,
    locks: News,
    /// Rows that the database refused to change the last time, since when there have been any, and why.
    refused: BTreeMap<Ticket, (RowId, Unwritten)>,
    refused_since: Moment,
    reason: String,
    ration: Ration,
}

/// Ids told at the most: as many as two windows of the usual size hold.
const TOLD: usize = 2000;

impl Default for Obstacles {
    fn default() -> Self {
        let mut locks = News::default();
        locks.is_success_news();
        Self {
            locked: BTreeMap::new(),
            since: Moment::ORIGIN,
            locks,
            refused: BTreeMap::new(),
            refused_since: Moment::ORIGIN,
            reason: String::new(),
            ration: Ration::new("more refusals to settle a row"),
        }
    }
}

impl Obstacles {
    /// These were tried, and some of them found locked by somebody else.
    pub(super) fn tried(&mut self, batch: &[Settlement], locked: &Set<Ticket>, now: Moment) {
        if self.locked.is_empty() {
            self.since = now;
        }
        for settlement in batch {
            let ticket = &settlement.ticket;
            self.refused.remove(ticket);
            if locked.contains(ticket) {
                self.locked.insert(*ticket, row(settlement));
            } else {
                self.locked.remove(ticket);
            }
        }
        let Some(first) = self.locked.values().map(|(row, _)| row).min() else {
            if self.locks.is_success_news() {
                info!("rows that somebody held locked are settled");
            }
            return;
        };
        if now.since(self.since) >= BRIEF && self.locks.is_failure_news("locked", now) {
            warn!(
                row = first.0,
                rows = self.locked.len(),
                "rows cannot be settled: {LOCKED}"
            );
        }
    }

    /// This one was tried alone, and refused.
    pub(super) fn refused(&mut self, settlement: &Settlement, error: &StoreError, now: Moment) {
        let id = settlement.id;
        self.locked.remove(&settlement.ticket);
        if self.refused.is_empty() {
            self.refused_since = now;
        }
        self.refused.insert(settlement.ticket, row(settlement));
        self.reason = error.to_string();
        if self.ration.may_speak(now) {
            warn!(row = id.0, %error, "the database refuses to settle a row; trying again");
        }
    }

    /// Rows that have been in such a state for more than a moment.
    pub(super) fn held_back(&self, now: Moment) -> Vec<HeldBack> {
        let both = [
            (&self.locked, self.since, LOCKED),
            (&self.refused, self.refused_since, self.reason.as_str()),
        ];
        let long = both
            .into_iter()
            .filter(|(rows, since, _)| !rows.is_empty() && now.since(*since) >= BRIEF);
        let told = long.flat_map(|(rows, since, why)| {
            let fates = [Unwritten::Sent, Unwritten::Waits, Unwritten::GivenUp];
            fates.into_iter().filter_map(move |fate| {
                let of_it = rows.values().filter(|(_, one)| *one == fate);
                let ids: Vec<i64> = of_it.clone().take(TOLD).map(|(row, _)| row.0).collect();
                (!ids.is_empty()).then(|| HeldBack {
                    what: Withheld::Unmarked {
                        fate,
                        ids,
                        rows: of_it.count(),
                    },
                    for_seconds: now.since(since).as_secs(),
                    why: why.to_owned(),
                })
            })
        });
        told.collect()
    }
}

/// The server does not tell these apart.
const LOCKED: &str = "another session holds them locked (see pg_locks, and pg_stat_activity for \
                      transactions that stay open), or a trigger on the outbox keeps them as they are";

fn row(settlement: &Settlement) -> (RowId, Unwritten) {
    let fate = match settlement.verdict {
        Verdict::Sent(_) => Unwritten::Sent,
        Verdict::RetryAt { .. } => Unwritten::Waits,
        Verdict::Quarantine { .. } => Unwritten::GivenUp,
    };
    (settlement.id, fate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Confirmed;
    use crate::relay::rules::Partition;
    use crate::store::Fault;

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
        assert_eq!(obstacles.held_back(at(14)), []);
        let told = obstacles.held_back(at(20));
        let unmarked = Withheld::Unmarked {
            fate: Unwritten::Sent,
            ids: vec![1],
            rows: 1,
        };
        assert_eq!(
            (told.len(), &told[0].what, told[0].for_seconds),
            (1, &unmarked, 10)
        );
        obstacles.tried(&rows(1..2), &Set::default(), at(20));
        assert!(obstacles.locked.is_empty());
        assert!(!obstacles.locks.is_success_news(), "told");
        assert_eq!(obstacles.held_back(at(99)), []);
    }

    #[test]
    fn what_the_database_refuses_is_told_until_it_is_settled() {
        let mut obstacles = Obstacles::default();
        let one = &rows(1..2);
        let error = StoreError::Other(Fault::new("settle", "no"));
        obstacles.refused(&one[0], &error, at(1));
        obstacles.refused(&one[0], &error, at(7));
        let told = obstacles.held_back(at(8));
        assert_eq!(told[0].why, error.to_string());
        assert_eq!(told[0].for_seconds, 7);
        obstacles.tried(one, &Set::default(), at(9));
        assert_eq!(obstacles.held_back(at(99)), []);
    }
}
