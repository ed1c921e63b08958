//! What is still to be written down, and when: at once; after a pause, where somebody holds a row;
//! ever more seldom, where the database refuses it. Writes nothing itself.

use std::collections::VecDeque;
use std::time::Duration;

use tracing::info;

use super::obstacles::Obstacles;
use crate::message::RowId;
use crate::relay::rules::{PartitionSet, SettleReport, Settlement, Ticket};
use crate::runtime::{Moment, Set};
use crate::store::StoreError;

/// Pause before rows are tried again that somebody holds locked, or that were refused.
pub(super) const LATER: Duration = Duration::from_secs(1);

/// Longest pause before refused rows are tried again.
const LATEST: Duration = Duration::from_secs(60);

/// So many refused rows are tried at a time, in turn, and all of them once one of these was written:
/// each that is refused is an error in the server's log, or two.
const SAMPLE: usize = 100;

/// What is still to be written down.
#[derive(Default)]
pub(super) struct Desk {
    /// At once.
    pub(super) now: Vec<Settlement>,
    /// After a pause: somebody holds them.
    later: Vec<Settlement>,
    /// After an ever longer pause: the database refuses them.
    refused: VecDeque<Settlement>,
    /// When some of them are tried, which is not known before one was refused.
    refused_until: Option<Moment>,
    /// Tries in a row that some of them did not survive.
    refusals: u32,
    /// One of those that were refused was written since some were last tried.
    softened: bool,
    /// Rows of attempts that failed: whether they are written is not known.
    doubtful: Set<Ticket>,
    /// What could not be written, as was told.
    told: (usize, PartitionSet),
    /// What keeps these from being written.
    pub(super) obstacles: Obstacles,
}

impl Desk {
    /// An attempt to write these down failed; some of them may be written all the same.
    pub(super) fn doubt(&mut self, batch: &[Settlement]) {
        self.doubtful.extend(batch.iter().map(|one| one.ticket));
    }

    /// Of rows that are not there any more, or not pending: how many are not this relay's own doing.
    fn strange(&self, gone: &[(RowId, Ticket)]) -> usize {
        let strange = |(_, ticket): &&(RowId, Ticket)| !self.doubtful.contains(ticket);
        gone.iter().filter(strange).count()
    }

    /// These were tried, and are written or gone but for those that somebody holds locked.
    pub(super) fn tried(&mut self, batch: Vec<Settlement>, report: &SettleReport, now: Moment) {
        let strange = self.strange(&report.gone);
        if strange > 0 {
            info!(
                rows = strange,
                "rows were changed or removed by somebody else"
            );
        }
        let locked: Set<Ticket> = report.locked.iter().copied().collect();
        if !self.doubtful.is_empty() {
            let known = batch.iter().map(|one| one.ticket);
            for ticket in known.filter(|ticket| !locked.contains(ticket)) {
                self.doubtful.remove(&ticket);
            }
        }
        self.softened |= self.obstacles.tried(&batch, &locked, now);
        let held = batch.into_iter().filter(|s| locked.contains(&s.ticket));
        self.later.extend(held);
    }

    /// The database refuses this one, which was tried alone.
    pub(super) fn refuse(&mut self, settlement: Settlement, error: &StoreError, now: Moment) {
        self.obstacles.refused(&settlement, error, now);
        if self.refused_until.is_none() {
            self.pause_refused(now);
        }
        self.refused.push_back(settlement);
    }

    fn pause_refused(&mut self, now: Moment) {
        let pause = LATER * 2_u32.pow(self.refusals.min(6));
        self.refused_until = Some(now + pause.min(LATEST));
        self.refusals += 1;
    }

    /// Takes up again what somebody held.
    pub(super) fn take_later(&mut self) {
        self.now.append(&mut self.later);
    }

    /// Takes up again some of what was refused, if it is time to. Was there anything?
    pub(super) fn take_refused(&mut self, now: Moment) -> bool {
        if self.refused.is_empty() {
            (self.refusals, self.refused_until, self.softened) = (0, None, false);
            return false;
        }
        let softened = std::mem::take(&mut self.softened);
        if !softened && self.refused_until.is_some_and(|until| now < until) {
            return false;
        }
        let all = self.refused.len();
        let some = if softened { all } else { all.min(SAMPLE) };
        self.now.extend(self.refused.drain(..some));
        self.pause_refused(now);
        true
    }

    /// Rows that were tried and could not be written, and their partitions, if that is news.
    pub(super) fn news(&mut self) -> Option<(usize, PartitionSet)> {
        let all = self.later.iter().chain(&self.refused);
        let partitions = all.map(|settlement| settlement.partition).collect();
        let stuck = (self.later.len() + self.refused.len(), partitions);
        let before = std::mem::replace(&mut self.told, stuck);
        (before != stuck).then_some(stuck)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Confirmed;
    use crate::relay::rules::{Partition, Verdict};
    use crate::store::Fault;

    fn at(seconds: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(seconds))
    }

    fn sent(row: u64) -> Settlement {
        Settlement {
            id: RowId(i64::try_from(row).expect("small")),
            partition: Partition(0),
            fingerprint: None,
            ticket: Ticket(row),
            verdict: Verdict::Sent(Confirmed::simulated()),
        }
    }

    fn locking(tickets: &[u64]) -> SettleReport {
        SettleReport {
            locked: tickets.iter().copied().map(Ticket).collect(),
            ..SettleReport::default()
        }
    }

    #[test]
    fn what_an_attempt_that_failed_may_have_written_is_nobody_else_s_doing() {
        let mut desk = Desk::default();
        let gone = [(RowId(1), Ticket(1)), (RowId(2), Ticket(2))];
        assert_eq!(desk.strange(&gone), 2);
        desk.doubt(&[sent(1)]);
        assert_eq!(desk.strange(&gone), 1);
        desk.tried(vec![sent(1)], &locking(&[1]), at(1));
        assert_eq!(desk.strange(&gone), 1, "not written yet");
        desk.tried(vec![sent(1)], &locking(&[]), at(2));
        assert!(desk.doubtful.is_empty());
    }

    fn refuse_all(desk: &mut Desk, now: Moment) -> Vec<u64> {
        let error = StoreError::Other(Fault::new("settle", "no"));
        let batch = std::mem::take(&mut desk.now);
        let tickets = batch.iter().map(|one| one.ticket.0).collect();
        for settlement in batch {
            desk.refuse(settlement, &error, now);
        }
        tickets
    }

    /// Rows tried at a time, and when.
    fn tries(desk: &mut Desk, seconds: std::ops::Range<u64>) -> Vec<(u64, usize)> {
        let mut tries = Vec::new();
        for second in seconds {
            if desk.take_refused(at(second)) {
                tries.push((second, refuse_all(desk, at(second)).len()));
            }
        }
        tries
    }

    #[test]
    fn refused_rows_are_tried_ever_more_seldom_and_few_at_a_time() {
        let mut desk = Desk::default();
        desk.now.extend((0..250).map(sent));
        refuse_all(&mut desk, at(10));
        let all: PartitionSet = [Partition(0)].into_iter().collect();
        assert_eq!((desk.news(), desk.news()), (Some((250, all)), None));
        let first: Vec<_> = [11, 13, 17, 25, 41, 73, 133, 193]
            .map(|second| (second, SAMPLE))
            .into();
        assert_eq!(tries(&mut desk, 10..200), first);
    }

    #[test]
    fn each_refused_row_has_its_turn() {
        let mut desk = Desk::default();
        desk.now.extend((0..250).map(sent));
        refuse_all(&mut desk, at(0));
        let mut seen = Set::default();
        for minute in 1..=3 {
            assert!(desk.take_refused(at(minute * 60)));
            seen.extend(refuse_all(&mut desk, at(minute * 60)));
        }
        assert_eq!(seen.len(), 250);
    }

    #[test]
    fn once_one_of_them_is_written_all_are_tried() {
        let mut desk = Desk::default();
        desk.now.extend((0..250).map(sent));
        refuse_all(&mut desk, at(0));
        assert!(desk.take_refused(at(60)));
        let mut batch = std::mem::take(&mut desk.now);
        desk.now = batch.split_off(1);
        desk.tried(batch, &locking(&[]), at(60));
        refuse_all(&mut desk, at(60));
        assert!(desk.take_refused(at(60)), "at once");
        let batch = std::mem::take(&mut desk.now);
        assert_eq!(batch.len(), 249);
        desk.tried(batch, &locking(&[]), at(61));
        assert!(!desk.take_refused(at(61)));
        desk.now.push(sent(999));
        refuse_all(&mut desk, at(62));
        assert_eq!(tries(&mut desk, 62..66), [(63, 1), (65, 1)], "begins anew");
    }

    #[test]
    fn rows_that_somebody_holds_are_stuck_until_they_are_written() {
        let mut desk = Desk::default();
        desk.tried(vec![sent(1), sent(2)], &locking(&[2]), at(1));
        assert_eq!(desk.news().map(|(rows, _)| rows), Some(1));
        desk.take_later();
        let batch = std::mem::take(&mut desk.now);
        desk.tried(batch, &locking(&[]), at(2));
        assert_eq!(desk.news(), Some((0, PartitionSet::NONE)));
    }
}
