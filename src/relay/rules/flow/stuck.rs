//! Decided rows that cannot be written down for now: whom they stop, and whom not.

use super::Flow;
use crate::relay::rules::PartitionSet;
use crate::runtime::Moment;

impl Flow {
    /// So many decided rows, of these partitions, cannot be written down for now: somebody holds them
    /// locked, or the database refuses them. They stop nobody else as long as memory has room for
    /// more, and their partitions are not handed over meanwhile: the drain would not end, or whoever
    /// got them would send these rows again.
    pub fn stuck(&mut self, rows: usize, partitions: PartitionSet, now: Moment) {
        (self.stuck, self.stuck_in) = (rows, partitions);
        self.leaving = self.leaving.minus(&partitions);
        self.see_clog(now);
    }

    /// Notes since when rows that cannot be written down have taken all the room.
    pub(super) fn see_clog(&mut self, now: Moment) {
        let since = self.clogged_since.unwrap_or(now);
        self.clogged_since = self.clogged().then_some(since);
    }

    /// Do rows that cannot be written down take all the room?
    pub(super) fn clogged(&self) -> bool {
        let open = self.ledger.open();
        self.max_rows().saturating_sub(open) < self.limits.batch_size && self.stuck > open / 2
    }
}
