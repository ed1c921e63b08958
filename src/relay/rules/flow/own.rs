//! Gaining, keeping and giving up partitions.

use super::Flow;
use crate::message::RowId;
use crate::relay::rules::{PartitionSet, SettleReport, Tenet, holds};
use crate::runtime::Moment;

impl Flow {
    /// These partitions are this relay's, and it may publish until then. Rows of new ones are
    /// looked for from the beginning; those of others are forgotten. Returns what was lost to
    /// others without having been handed over.
    pub fn hold(&mut self, held: PartitionSet, until: Moment) -> PartitionSet {
        self.fence = self.fence.max(until);
        let lost = self.owned.minus(&held);
        self.give_up(lost);
        self.leaving = self.leaving.intersection(&held);
        let gained = held.minus(&self.owned).minus(&self.leaving());
        if !gained.is_empty() {
            self.owned = self.owned.union(&gained);
            self.coverage.gain(gained);
            self.quiet = false;
        }
        lost
    }

    /// Of these nothing more is published, so that they can be handed over; but for those of which
    /// something cannot be written down.
    pub fn hand_over(&mut self, partitions: &PartitionSet) {
        let leaving = self.owned.intersection(partitions).minus(&self.stuck_in);
        self.give_up(leaving);
        self.leaving = self.leaving.union(&leaving);
    }

    /// What is being handed over, up to the moment when the table says so.
    #[must_use]
    pub fn leaving(&self) -> PartitionSet {
        self.leaving.union(&self.released)
    }

    /// What may be released now: nothing of it is under way any more. Told once.
    pub fn take_releases(&mut self) -> PartitionSet {
        if self.leaving.is_empty() {
            return PartitionSet::NONE;
        }
        let under_way = self.ledger.under_way();
        let free = if holds(Tenet::DrainFirst) {
            self.leaving.minus(&under_way)
        } else {
            self.leaving
        };
        self.leaving = self.leaving.minus(&free);
        self.released = self.released.union(&free);
        free
    }

    /// The table says that nobody owns these any more.
    pub fn released(&mut self, partitions: &PartitionSet) {
        self.released = self.released.minus(partitions);
    }

    /// Rows of these that are published and unconfirmed, or decided and not written down.
    #[cfg(test)]
    pub(in crate::relay::rules) fn under_way(&self, of: &PartitionSet) -> Vec<RowId> {
        self.ledger.under_way_rows(of)
    }

    /// Nothing is to be published from here on, unless the lease is renewed.
    #[must_use]
    pub fn fence(&self) -> Moment {
        self.fence
    }

    /// The partitions this relay publishes rows of.
    #[must_use]
    pub fn owned(&self) -> PartitionSet {
        self.owned
    }

    fn give_up(&mut self, partitions: PartitionSet) {
        if partitions.is_empty() {
            return;
        }
        self.owned = self.owned.minus(&partitions);
        if self.reading.is_some() {
            self.stale = self.stale.union(&partitions);
        }
        for (id, gates) in self.ledger.keep_under_way(&partitions) {
            self.withdraw(gates, id);
        }
        self.lanes.forget(&partitions);
        self.hold_again(&partitions);
    }

    /// Is the row under way though its partition is another relay's by now?
    pub(super) fn is_strangers(&self, id: RowId) -> bool {
        let ours = self.owned.union(&self.leaving());
        self.ledger
            .get(id)
            .is_some_and(|entry| !ours.contains(entry.partition))
    }

    /// What was unknown is pending again. If it is no longer this relay's it is forgotten.
    pub(super) fn forget_strangers(&mut self, unknown: &mut Vec<RowId>) {
        unknown.retain(|id| {
            let entry = self.ledger.get(*id);
            let ours = entry.is_none_or(|entry| self.owned.contains(entry.partition));
            if !ours {
                self.drop_stranger(*id);
            }
            ours
        });
    }

    /// Forgets a row that others decide about.
    pub(super) fn drop_stranger(&mut self, id: RowId) {
        let Some(entry) = self.ledger.remove(id) else {
            return;
        };
        self.withdraw([entry.exchange, entry.destination], id);
        self.leave_lane(entry.lane, id);
    }

    /// The table knows another owner of these rows' partitions.
    pub(super) fn disowned(&mut self, report: &SettleReport) {
        let entries = report.disowned.iter();
        let partitions: PartitionSet = entries
            .filter_map(|(id, _)| Some(self.ledger.get(*id)?.partition))
            .collect();
        self.leaving = self.leaving.minus(&partitions);
        self.give_up(self.owned.intersection(&partitions));
        for (id, _) in &report.disowned {
            self.drop_stranger(*id);
        }
    }
}
