//! Tells the log of rows whose fate is decided and cannot be written down: locked by somebody, or
//! refused by the database, and whoever asks for this relay. A bounded number of lines and ids,
//! however many rows and however long.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use super::news::News;
use super::ration::Ration;
use crate::message::RowId;
use crate::relay::rules::{HeldBack, IDS_TOLD, Settlement, Ticket, Unwritten, Verdict, Withheld};
use crate::runtime::{Moment, Set};
use crate::store::StoreError;

/// A lock of the application's that is over sooner is nobody's trouble.
const BRIEF: Duration = Duration::from_secs(5);

/// What is in the way, and what was said of it lately.
#[derive(Debug)]
pub(super) struct Obstacles {
    /// Rows that were found locked the last time, and since when there have been any.
    locked: BTreeMap<Ticket, Row>,
    since: Moment,
    locks: News,
    /// Rows that the database refused to change the last time, and since when there have been any.
    refused: BTreeMap<Ticket, Row>,
    refused_since: Moment,
    /// The last reason: hundreds of rows share one.
    reason: Arc<str>,
    ration: Ration,
}

/// A row whose fate cannot be written down.
#[derive(Debug)]
struct Row {
    id: RowId,
    fate: Unwritten,
    why: Arc<str>,
}

/// Reasons told at the most, with each fate. A trigger may name the row in its own.
const REASONS: usize = 15;

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
            reason: Arc::default(),
            ration: Ration::new("more refusals to settle a row"),
        }
    }
}

impl Obstacles {
    /// These were tried, and some of them found locked by somebody else. Was one of them refused the
    /// last time, and is not now?
    pub(super) fn tried(
        &mut self,
        batch: &[Settlement],
        locked: &Set<Ticket>,
        now: Moment,
    ) -> bool {
        let mut softened = false;
        if self.locked.is_empty() {
            self.since = now;
        }
        for settlement in batch {
            let ticket = &settlement.ticket;
            softened |= self.refused.remove(ticket).is_some();
            if locked.contains(ticket) {
                let why = Arc::from(LOCKED);
                self.locked.insert(*ticket, row(settlement, why));
            } else {
                self.locked.remove(ticket);
            }
        }
        self.tell_of_locks(now);
        softened
    }

    fn tell_of_locks(&mut self, now: Moment) {
        let Some(first) = self.locked.values().map(|row| row.id).min() else {
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
        let reason = error.to_string();
        if *self.reason != *reason {
            self.reason = reason.into();
        }
        let refused = row(settlement, Arc::clone(&self.reason));
        self.refused.insert(settlement.ticket, refused);
        if self.ration.may_speak(now) {
            warn!(row = id.0, %error, "the database refuses to settle a row; trying again");
        }
    }

    /// Rows that have been in such a state for more than a moment.
    pub(super) fn held_back(&self, now: Moment) -> Vec<HeldBack> {
        let both = [
            (&self.locked, self.since),
            (&self.refused, self.refused_since),
        ];
        let long = both
            .into_iter()
            .filter(|(rows, since)| !rows.is_empty() && now.since(*since) >= BRIEF);
        let told = long.flat_map(|(rows, since)| {
            let groups = groups(rows.values()).into_iter();
            groups.map(move |group| HeldBack {
                what: Withheld::Unmarked {
                    fate: group.fate,
                    ids: group.ids,
                    rows: group.rows,
                },
                for_seconds: now.since(since).as_secs(),
                why: group.why,
            })
        });
        told.collect()
    }
}

/// Rows of one fate and reason.
struct Group {
    fate: Unwritten,
    why: String,
    ids: Vec<i64>,
    rows: usize,
    /// They share the fate, and each has a reason of its own.
    mixed: bool,
}

fn groups<'a>(rows: impl Iterator<Item = &'a Row>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for row in rows {
        let reasons = groups.iter().filter(|group| group.fate == row.fate);
        let full = reasons.count() > REASONS;
        let belongs = |group: &&mut Group| {
            group.fate == row.fate && (group.why == *row.why || full && group.mixed)
        };
        let Row { id, fate, why } = row;
        if let Some(group) = groups.iter_mut().find(belongs) {
            group.rows += 1;
            if group.ids.len() < IDS_TOLD {
                group.ids.push(id.0);
            }
            continue;
        }
        let mixed = groups.iter().filter(|group| group.fate == *fate).count() == REASONS;
        groups.push(Group {
            fate: *fate,
            why: if mixed {
                "for different reasons, each in the log of the database".to_owned()
            } else {
                why.to_string()
            },
            ids: vec![id.0],
            rows: 1,
            mixed,
        });
    }
    groups
}

/// The server does not tell these apart.
const LOCKED: &str = "another session holds them locked (see pg_locks, and pg_stat_activity for \
                      transactions that stay open), or a trigger on the outbox keeps them as they are";

fn row(settlement: &Settlement, why: Arc<str>) -> Row {
    let fate = match settlement.verdict {
        Verdict::Sent(_) => Unwritten::Sent,
        Verdict::RetryAt { .. } => Unwritten::Waits,
        Verdict::Quarantine { .. } => Unwritten::GivenUp,
    };
    let id = settlement.id;
    Row { id, fate, why }
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
        assert!(obstacles.tried(one, &Set::default(), at(9)));
        assert!(!obstacles.tried(one, &Set::default(), at(9)));
        assert_eq!(obstacles.held_back(at(99)), []);
    }

    #[test]
    fn each_row_is_told_with_its_own_reason_and_reasons_are_bounded() {
        let mut obstacles = Obstacles::default();
        let refuse = |obstacles: &mut Obstacles, row: &Settlement, reason: &str| {
            let error = StoreError::Other(Fault::new("settle", reason));
            obstacles.refused(row, &error, at(1));
        };
        let all = rows(0..40);
        for (number, row) in all.iter().enumerate() {
            let reason = if number % 2 == 0 {
                "a trigger"
            } else {
                "a key"
            };
            refuse(&mut obstacles, row, reason);
        }
        let told = obstacles.held_back(at(9));
        assert_eq!(told.len(), 2);
        for (group, reason) in told.iter().zip(["a trigger", "a key"]) {
            assert!(group.why.contains(reason), "{}", group.why);
            let Withheld::Unmarked { ids, rows, .. } = &group.what else {
                panic!("{group:?}");
            };
            assert_eq!((ids.len(), *rows), (20, 20));
        }
        for row in &all {
            refuse(&mut obstacles, row, &format!("row {}", row.id.0));
        }
        let told = obstacles.held_back(at(9));
        assert_eq!(told.len(), REASONS + 1);
        for row in &all {
            let id = row.id.0;
            let group = told.iter().find(|group| group.concerns(id, ("", "")));
            let why = &group.expect("told").why;
            let own = why.ends_with(&format!("row {id}"));
            assert!(own || why.starts_with("for different reasons"), "{why}");
        }
    }
}
