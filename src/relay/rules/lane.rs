//! Lanes: what order and holding back apply to.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::{Partition, PartitionSet};
use crate::message::RowId;
use crate::runtime::Map;

/// All rows of one ordering key, or all rows without one that go to one destination.
///
/// A hash stands for the key: should two keys share a hash they share a lane, which delays
/// one behind the other and breaks no promise about order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(u64);

/// Tells lanes of keys from lanes of destinations. The low byte of a key's hash is its partition.
const ORDERED: u64 = 1 << 63;

impl Lane {
    /// The lane of an ordering key, given the database's hash of it.
    #[must_use]
    pub fn key(hash: u64) -> Self {
        Self(hash | ORDERED)
    }

    /// The lane of rows without a key.
    #[must_use]
    pub fn destination(exchange: &str, routing_key: &str) -> Self {
        Self(destination_hash(exchange, routing_key) & !ORDERED)
    }

    /// Of an ordered lane at most one row is unconfirmed at a time.
    #[must_use]
    pub fn is_ordered(self) -> bool {
        self.0 & ORDERED != 0
    }

    /// Do all its rows belong to one of these? Those of a destination belong to any.
    fn is_within(self, partitions: &PartitionSet) -> bool {
        self.is_ordered() && partitions.contains(Partition(self.0.to_le_bytes()[0]))
    }
}

/// Stands for a destination within this process only; never stored.
pub(super) fn destination_hash(exchange: &str, routing_key: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (exchange, routing_key).hash(&mut hasher);
    hasher.finish()
}

/// From which row on a lane was deliberately not kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shelf {
    /// Rows with this id and above are not in memory.
    pub(super) from: i64,
    /// The pass during which this was decided; a later pass decides anew.
    pub(super) pass: u64,
}

/// An ordered lane with rows in memory.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Rows that wait for their turn, by ascending id.
    queue: VecDeque<RowId>,
    /// The row whose turn it is: ready, in flight, or holding the lane back.
    pub(super) busy: Option<RowId>,
    /// More rows follow that are not in memory.
    pub(super) shelf: Option<Shelf>,
}

impl Waiting {
    /// Puts a row in its place by id. Late commits may belong in front of others.
    pub(super) fn enqueue(&mut self, id: RowId) {
        let place = self.queue.partition_point(|queued| *queued < id);
        self.queue.insert(place, id);
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len() + usize::from(self.busy.is_some())
    }

    /// Gives the turn to the next row, if nobody has it.
    pub(super) fn advance(&mut self) -> Option<RowId> {
        if self.busy.is_some() {
            return None;
        }
        self.busy = self.queue.pop_front();
        self.busy
    }

    /// Takes a row out wherever it stands.
    pub(super) fn remove(&mut self, id: RowId) {
        if self.busy == Some(id) {
            self.busy = None;
        } else {
            self.queue.retain(|queued| *queued != id);
        }
    }

    /// Takes the rows behind this one out.
    pub(super) fn drain_behind(&mut self, id: RowId) -> VecDeque<RowId> {
        let place = self.queue.partition_point(|queued| *queued <= id);
        self.queue.split_off(place)
    }

    /// Takes all waiting rows out; the one whose turn it is stays.
    pub(super) fn drain(&mut self) -> VecDeque<RowId> {
        std::mem::take(&mut self.queue)
    }

    fn is_over(&self) -> bool {
        self.queue.is_empty() && self.busy.is_none() && self.shelf.is_none()
    }
}

/// All lanes that are not simply live and empty.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// Ordered lanes with rows in memory.
    waiting: Map<Lane, Waiting>,
    /// Lanes held back without a row in memory; kept small, there may be hundreds of thousands.
    parked: Map<Lane, Shelf>,
    /// How many of those are ordered. It is asked for at every turn.
    blocked: usize,
}

impl Lanes {
    pub(super) fn waiting(&mut self, lane: Lane) -> Option<&mut Waiting> {
        self.waiting.get_mut(&lane)
    }

    pub(super) fn waiting_or_new(&mut self, lane: Lane) -> &mut Waiting {
        self.waiting.entry(lane).or_default()
    }

    /// From where on the lane's rows are not in memory.
    pub(super) fn shelf(&self, lane: Lane) -> Option<Shelf> {
        let parked = self.parked.get(&lane).copied();
        parked.or_else(|| self.waiting.get(&lane).and_then(|waiting| waiting.shelf))
    }

    /// From here on the lane's rows are not kept. If nothing of it is in memory it waits until
    /// a gate opens or a row of it falls due; otherwise until its rows in memory are through.
    pub(super) fn shelve(&mut self, lane: Lane, shelf: Shelf) {
        let old = self.shelf(lane);
        let from = old.map_or(shelf.from, |old| old.from.min(shelf.from));
        let shelf = Shelf { from, ..shelf };
        self.unshelve(lane);
        match self.waiting.get_mut(&lane) {
            Some(waiting) => waiting.shelf = Some(shelf),
            None => {
                self.parked.insert(lane, shelf);
                self.blocked += usize::from(lane.is_ordered());
            }
        }
    }

    /// The rows from the shelf on are being taken into memory again.
    pub(super) fn unshelve(&mut self, lane: Lane) {
        if self.parked.remove(&lane).is_some() {
            self.blocked -= usize::from(lane.is_ordered());
        }
        if let Some(waiting) = self.waiting.get_mut(&lane) {
            waiting.shelf = None;
        }
        self.settle_down(lane);
    }

    /// Nothing of the lane is in memory any more: what is left of it is its shelf, if any.
    pub(super) fn settle_down(&mut self, lane: Lane) {
        if self.waiting.get(&lane).is_some_and(Waiting::is_over) {
            self.waiting.remove(&lane);
        }
    }

    /// A pass that began at `start` came to the end: what it should have met and did not is
    /// no longer there.
    pub(super) fn pass_ended(&mut self, start: i64, pass: u64) {
        let stale = |shelf: &Shelf| shelf.from > start && shelf.pass < pass;
        self.parked.retain(|_, shelf| !stale(shelf));
        self.count_blocked();
        for waiting in self.waiting.values_mut() {
            waiting.shelf = waiting.shelf.filter(|shelf| !stale(shelf));
        }
        self.waiting.retain(|_, waiting| !waiting.is_over());
    }

    /// Nothing is known any more of the keys of these partitions.
    pub(super) fn forget(&mut self, partitions: &PartitionSet) {
        self.waiting.retain(|lane, _| !lane.is_within(partitions));
        self.parked.retain(|lane, _| !lane.is_within(partitions));
        self.count_blocked();
    }

    fn count_blocked(&mut self) {
        self.blocked = self.parked.keys().filter(|lane| lane.is_ordered()).count();
    }

    /// How many ordering keys are held back.
    pub(super) fn blocked_keys(&self) -> usize {
        self.blocked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_commit_takes_its_place_by_id() {
        let mut lane = Waiting::default();
        for id in [5, 9, 7] {
            lane.enqueue(RowId(id));
        }
        let turns: Vec<_> = std::iter::from_fn(|| {
            let turn = lane.advance()?;
            lane.remove(turn);
            Some(turn.0)
        })
        .collect();
        assert_eq!(turns, [5, 7, 9]);
    }

    #[test]
    fn only_one_row_of_a_lane_has_the_turn() {
        let mut lane = Waiting::default();
        lane.enqueue(RowId(1));
        lane.enqueue(RowId(2));
        assert_eq!(lane.advance(), Some(RowId(1)));
        assert_eq!(lane.advance(), None);
    }

    #[test]
    fn only_parked_keys_count_as_held_back_and_each_once() {
        let (mut lanes, key) = (Lanes::default(), Lane::key(2));
        let shelf = |from| Shelf { from, pass: 1 };
        lanes.shelve(key, shelf(7));
        lanes.shelve(key, shelf(5));
        lanes.shelve(Lane::key(3), shelf(8));
        lanes.shelve(Lane::destination("orders", "created"), shelf(9));
        assert_eq!(lanes.blocked_keys(), 2);
        lanes.unshelve(key);
        lanes.unshelve(key);
        assert_eq!(lanes.blocked_keys(), 1);
        lanes.pass_ended(0, 2);
        assert_eq!(lanes.blocked_keys(), 0);
    }

    #[test]
    fn keys_and_destinations_never_share_a_lane() {
        assert!(Lane::key(2).is_ordered());
        assert!(!Lane::destination("orders", "created").is_ordered());
    }
}
