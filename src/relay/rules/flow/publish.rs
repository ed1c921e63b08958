//! Choosing what is published next.

use std::sync::Arc;

use super::super::gate::{Passage, exchange_gate};
use super::super::ledger::{Content, Entry, State};
use super::super::{ChannelNo, Fetched, Lane, Tenet, holds};
use super::judge::Refusal;
use super::read::{FETCH_BYTES, FETCH_ROWS};
use super::{Exchange, Flow};
use crate::message::{OutboxRow, Publication, ReasonClass, RowId, Unfit};
use crate::runtime::Moment;

/// Publications for each channel, in order.
pub type Batches = Vec<(ChannelNo, Vec<Arc<Publication>>)>;

impl Flow {
    /// What may be published now, for each channel in order. What is returned counts as in
    /// flight from here on.
    pub fn publications(&mut self, now: Moment) -> Batches {
        let mut batches = Batches::new();
        if !self.may_publish(now) {
            return batches;
        }
        self.send_alone(now, &mut batches);
        self.feed_starved();
        while self.channels.in_flight() < self.limits.max_in_flight {
            let Some(id) = self.ready.pop_front() else {
                break;
            };
            if self
                .ledger
                .get(id)
                .is_none_or(|entry| entry.state != State::Ready)
            {
                continue;
            }
            if !self.passes(id, now) || !self.has_exchange(id) || !self.has_body(id) {
                continue;
            }
            if let Some(solitude) = self.goes_alone(id, now) {
                self.queue_alone(id, solitude, now);
                continue;
            }
            let Some(channel) = self.channels.least_loaded() else {
                self.ready.push_front(id);
                break;
            };
            self.send(channel, id, &mut batches);
        }
        self.send_alone(now, &mut batches);
        batches
    }

    /// Since when the row, which is in memory, could have been sent.
    #[must_use]
    pub fn due_since(&self, id: RowId) -> Option<Moment> {
        self.ledger.get(id).map(|entry| entry.waiting_since)
    }

    /// Sends the next row that is to go alone.
    fn send_alone(&mut self, now: Moment, batches: &mut Batches) {
        while let Some((channel, id)) = self.channels.next_alone() {
            // It may have been forgotten and taken in anew meanwhile; and what another suspect
            // has found out needs no second channel to be closed over it.
            let ready = |entry: &Entry| entry.state == State::Ready;
            if self.ledger.get(id).is_some_and(ready) && self.passes(id, now) {
                self.send(channel, id, batches);
            }
        }
    }

    /// Exchanges that the broker is to be asked for.
    pub fn take_questions(&mut self) -> Vec<String> {
        std::mem::take(&mut self.questions)
    }

    /// The broker's answer.
    pub fn exchange_answered(&mut self, exchange: &str, exists: bool, now: Moment) {
        let gate = exchange_gate(exchange);
        let Some(Exchange::Asked(rows)) = self.exchanges.remove(&gate) else {
            return;
        };
        if exists {
            self.exchanges.insert(gate, Exchange::Exists);
            for id in rows.into_iter().rev() {
                self.ready.push_front(id);
            }
            return;
        }
        let reason = format!(
            "404 NOT_FOUND: there is no exchange `{exchange}`; declare it, or correct the row"
        );
        for id in rows {
            self.refuse(id, gate, Refusal::Destination(&reason), now);
        }
    }

    /// Bodies that were asked for.
    pub fn fetched(&mut self, bodies: Vec<(RowId, Fetched)>) {
        self.fetching = false;
        self.fetching_bytes = 0;
        for (id, fetched) in bodies.into_iter().rev() {
            let Some(entry) = self.ledger.get_mut(id) else {
                continue;
            };
            let content = std::mem::replace(&mut entry.content, Content::Spent);
            let Content::Bodiless(mut row, _) = content else {
                entry.content = content;
                continue;
            };
            match fetched {
                Fetched::Body(body) => {
                    row.payload = body;
                    self.complete(id, *row);
                }
                Fetched::NoRoom(size) => {
                    entry.content = Content::Bodiless(row, size);
                    self.starved.push_front(id);
                }
                // Another row may have its id by now, and was taken for this one when it was read.
                Fetched::Gone => {
                    let lane = self.ledger.get(id).map(|entry| entry.lane);
                    self.vanished(id);
                    if let Some(lane) = lane {
                        self.look_again(id, lane);
                    }
                }
            }
        }
    }

    fn complete(&mut self, id: RowId, row: OutboxRow) {
        let (content, _, unfit) = self.validate(row);
        if let Some(unfit) = unfit {
            self.quarantine(id, unfit);
            return;
        }
        self.ledger.set_content(id, content);
        self.ledger.set_state(id, State::Ready);
        self.ready.push_front(id);
    }

    /// The row is no longer in the table.
    pub(super) fn vanished(&mut self, id: RowId) {
        let Some(entry) = self.ledger.get(id) else {
            return;
        };
        let (lane, gates) = (entry.lane, [entry.exchange, entry.destination]);
        self.ledger.remove(id);
        self.withdraw(gates, id);
        match self.lanes.shelf(lane) {
            Some(shelf) if lane.is_ordered() && shelf.from == id.0 => {
                self.coverage.want_lane(lane, shelf);
            }
            Some(_) | None => self.leave_lane(lane, id),
        }
    }

    fn may_publish(&self, now: Moment) -> bool {
        let fenced = now < self.fence || !holds(Tenet::Fence);
        // A crash sends again what is not written down: not more than another window of it, but for
        // what cannot be.
        let backlog = self.ledger.settling() < self.limits.max_in_flight + self.stuck;
        let allowed = self.can_read && self.can_settle && !self.draining;
        allowed && fenced && self.linked && self.heard && !self.blocked && backlog
    }

    /// A gate whose probe does not come back gets another: the row may have been deleted, be waiting
    /// behind one of its key that this very gate holds back, or be locked, so that it cannot be written
    /// down that it waits.
    pub(super) fn replace_probes(&mut self, now: Moment) {
        self.hazards.expire(now);
        if let Some(from) = self.gates.expire(now) {
            self.coverage.want_all_after(from - 1);
        }
        let patience = self.limits.poll_interval * 3;
        let by = now.checked_sub(patience).unwrap_or(Moment::ORIGIN);
        for (gate, probe) in self.gates.overdue(by) {
            let entry = self.ledger.get(probe);
            if entry.is_none_or(|entry| matches!(entry.state, State::Settling(_))) {
                self.withdraw([gate, gate], probe);
            }
        }
    }

    fn send(&mut self, channel: ChannelNo, id: RowId, batches: &mut Batches) {
        let Some(entry) = self.ledger.get(id) else {
            return;
        };
        let Content::Publication(publication) = &entry.content else {
            return;
        };
        let publication = Arc::clone(publication);
        self.ledger.set_state(id, State::InFlight(channel));
        self.channels.published(channel);
        match batches.iter_mut().find(|(no, _)| *no == channel) {
            Some((_, batch)) => batch.push(publication),
            None => {
                let mut batch = Vec::with_capacity(1 + self.ready.len() / self.limits.channels);
                batch.push(publication);
                batches.push((channel, batch));
            }
        }
    }

    /// Do its gates let the row through? If not it is held back.
    fn passes(&mut self, id: RowId, now: Moment) -> bool {
        let Some((gates, row)) = self.traveller(id, now) else {
            return false;
        };
        match self.gates.passage(gates, row) {
            Passage::Free => true,
            Passage::Probe(at) if at <= now => true,
            Passage::Probe(at) => {
                // The database's clock is ahead of ours: nothing knocks early.
                let why = Unfit {
                    class: ReasonClass::DestinationRefused,
                    reason: "waiting for its destination".to_owned(),
                };
                self.wait(id, now.until(at), why, now);
                false
            }
            Passage::Shut => {
                self.hold_back(id);
                false
            }
        }
    }

    /// The row, and what follows it in its lane, is not kept: the gates remember from where on.
    pub(super) fn hold_back(&mut self, id: RowId) {
        let Some(entry) = self.ledger.get(id) else {
            return;
        };
        let (lane, gates) = (entry.lane, [entry.exchange, entry.destination]);
        // It cannot knock at one gate while it waits at another.
        self.withdraw(gates, id);
        self.set_aside(lane, id);
        self.shelve_behind(gates, lane, id);
    }

    /// The row will not knock at these gates any more; another has to be found.
    pub(super) fn withdraw(&mut self, gates: [u64; 2], id: RowId) {
        if let Some(from) = self.gates.withdrew(gates, id) {
            self.coverage.want_all_after(from - 1);
        }
    }

    /// The row and what follows it in its lane leaves memory.
    pub(super) fn set_aside(&mut self, lane: Lane, id: RowId) {
        self.clear_lane(lane);
        if let Some(waiting) = self.lanes.waiting(lane) {
            waiting.remove(id);
        }
        self.lanes.settle_down(lane);
        if self
            .ledger
            .get(id)
            .is_some_and(|entry| !matches!(entry.state, State::Settling(_)))
        {
            self.ledger.remove(id);
        }
        self.shelve(lane, id);
    }

    /// What waits in the lane leaves memory.
    fn clear_lane(&mut self, lane: Lane) {
        let Some(waiting) = self.lanes.waiting(lane) else {
            return;
        };
        let followers = waiting.drain();
        if let Some(first) = followers.front().copied() {
            for id in followers {
                self.ledger.remove(id);
            }
            self.shelve(lane, first);
        }
    }

    /// Is the exchange known to be there? If not it is asked for, and the row waits.
    fn has_exchange(&mut self, id: RowId) -> bool {
        let Some(entry) = self.ledger.get(id) else {
            return false;
        };
        let exchange = match &entry.content {
            Content::Publication(publication) => publication.exchange().as_str(),
            Content::Bodiless(row, _) => row.exchange.as_str(),
            Content::Spent => return false,
        };
        if exchange.is_empty() {
            return true;
        }
        match self.exchanges.get_mut(&entry.exchange) {
            Some(Exchange::Exists) => true,
            Some(Exchange::Asked(rows)) => {
                rows.push(id);
                false
            }
            None => {
                self.questions.push(exchange.to_owned());
                self.exchanges
                    .insert(entry.exchange, Exchange::Asked(vec![id]));
                false
            }
        }
    }

    /// Is the body here? If not it is fetched, once there is room for it.
    fn has_body(&mut self, id: RowId) -> bool {
        let bodiless = |content: &Content| matches!(content, Content::Bodiless(..));
        if !self
            .ledger
            .get(id)
            .is_some_and(|entry| bodiless(&entry.content))
        {
            return true;
        }
        self.ledger.set_state(id, State::Fetching);
        self.starved.push_back(id);
        self.feed_starved();
        false
    }

    /// Nothing is under way that would make room.
    fn nothing_moves(&self) -> bool {
        let fetching = self.fetching || !self.to_fetch.is_empty();
        self.channels.in_flight() == 0 && self.ready.is_empty() && !fetching
    }

    /// Lets those fetch their body for whom there is room; one always may, if nothing that
    /// moves can make room for it.
    fn feed_starved(&mut self) {
        while !self.fetching
            && self.to_fetch.len() < FETCH_ROWS
            && let Some(id) = self.starved.front().copied()
        {
            let Some(entry) = self.ledger.get(id) else {
                self.starved.pop_front();
                continue;
            };
            let Content::Bodiless(_, size) = entry.content else {
                self.starved.pop_front();
                continue;
            };
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            let taken = self.ledger.buffered_bytes() + self.fetching_bytes;
            let together = self.fetching_bytes.saturating_add(size) <= FETCH_BYTES;
            if !self.to_fetch.is_empty() && !together {
                break;
            }
            // While it arrives it is in memory twice: in PostgreSQL's answer, and out of it.
            let room = size.saturating_mul(2);
            let fits = taken.saturating_add(room) <= self.limits.max_buffered_bytes;
            if !fits && !self.nothing_moves() {
                break;
            }
            self.starved.pop_front();
            self.fetching_bytes += size;
            self.to_fetch.push(id);
        }
    }
}
