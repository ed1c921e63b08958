//! Whose turn it is in a lane.

use super::super::Lane;
use super::super::ledger::State;
use super::Flow;
use crate::message::RowId;

impl Flow {
    /// The row is through with its lane: the next one of its key has its turn.
    pub(super) fn leave_lane(&mut self, lane: Lane, id: RowId) {
        if let Some(waiting) = self.lanes.waiting(lane) {
            waiting.remove(id);
            self.give_turn(lane);
        }
    }

    /// Gives the turn to the next row of an ordered lane, if nobody has it, and looks for more
    /// rows when few are left.
    pub(super) fn give_turn(&mut self, lane: Lane) {
        let low = self.max_lane() / 8;
        let Some(waiting) = self.lanes.waiting(lane) else {
            return;
        };
        let next = waiting.advance();
        let shelf = waiting.shelf.filter(|_| waiting.len() <= low);
        if let Some(next) = next {
            self.turn_of(next);
        }
        if let Some(shelf) = shelf {
            self.coverage.want_lane(lane, shelf);
        }
        self.lanes.settle_down(lane);
    }

    /// The row may go as soon as there is room, unless it is decided already.
    pub(super) fn turn_of(&mut self, id: RowId) {
        if self
            .ledger
            .get(id)
            .is_some_and(|entry| entry.state == State::Queued)
        {
            self.ledger.set_state(id, State::Ready);
            self.ready.push_back(id);
        }
    }
}
