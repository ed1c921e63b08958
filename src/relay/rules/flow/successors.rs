//! Rows behind a quarantined one of their key, where they are to wait for an operator's decision.
//!
//! The table says who has to wait: a read tells with each row whether an earlier one of its key is
//! in quarantine. The first such row of a key knocks, ever more seldom, by its `retry_at`; those
//! behind it wait for it as for any row that waits. So a key that is held costs an id, and a relay
//! that takes over finds it as it finds every key that is held back.

use std::time::Duration;

use super::super::gate::gates_of;
use super::super::ledger::{Content, Entry, Fate, State};
use super::super::{Found, Lane};
use super::Flow;
use crate::message::{ReasonClass, RowId, Unfit};
use crate::runtime::Moment;

/// What `last_error` says of the first row behind a quarantined one. The same for all of them: by
/// it `status` counts them and operators' acts find them.
pub const BEHIND_QUARANTINED: &str = "an earlier row of its ordering key is in quarantine, and \
     quarantine.successors is \"wait\"; replay or discard that one";

impl Flow {
    /// An earlier row of the key has been in quarantine for `since`.
    pub(super) fn wait_behind(&mut self, found: &Found, lane: Lane, since: Duration, now: Moment) {
        let id = found.id();
        if self.lanes.waiting_or_new(lane).len() > 0 {
            // Not its turn yet, whatever holds it then.
            self.shelve(lane, id);
            return;
        }
        let [exchange, destination] = gates_of(found.exchange(), found.routing_key());
        let entry = Entry {
            lane,
            partition: found.partition,
            fingerprint: found.fingerprint,
            state: State::Queued,
            content: Content::Spent,
            exchange,
            destination,
            attempts: found.attempts(),
            waiting_since: now.checked_sub(found.age).unwrap_or(Moment::ORIGIN),
            missed: false,
            fate: Fate::Open,
        };
        self.ledger.insert(id, entry);
        // Twice as long each time, and no counter that a restart would forget.
        let doublings = since.as_secs().max(1).ilog2();
        let delay = self.delay(doublings + 1);
        let (class, reason) = (
            ReasonClass::BehindQuarantined,
            BEHIND_QUARANTINED.to_owned(),
        );
        self.wait(id, delay, Unfit { class, reason }, now);
    }

    /// The row is in quarantine. What is in memory of its key behind it was read when it was not
    /// yet: it is read again, and then waits if it still has to. So does what reads that are
    /// under way will bring.
    pub(super) fn hold_successors(&mut self, lane: Lane, id: RowId) {
        if !self.limits.successors_wait || !lane.is_ordered() {
            return;
        }
        let behind = self.lanes.waiting_or_new(lane).drain_behind(id);
        for follower in behind {
            self.ledger.remove(follower);
        }
        // From the row itself on: it is back as soon as it is replayed.
        self.shelve(lane, id);
        if let Some(shelf) = self.lanes.shelf(lane) {
            self.coverage.want_lane(lane, shelf);
        }
    }
}
