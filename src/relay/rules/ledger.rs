//! The rows in memory, each in exactly one state, and the room they take.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{ChannelNo, Fingerprint, Lane, Partition, PartitionSet, Tenet, Ticket, holds};
use crate::message::{OutboxRow, Publication, RowId};
use crate::runtime::{Map, Moment};

/// What a row in memory is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Waits for its turn in its lane.
    Queued,
    /// May be published as soon as there is room.
    Ready,
    /// Waits for its body, or for room for it.
    Fetching,
    /// Published, not yet confirmed.
    InFlight(ChannelNo),
    /// Decided; being written down.
    Settling(Ticket),
    /// Written down. Forgotten once a read that started after `read` began has been taken in:
    /// an earlier one may still show it as pending.
    Settled {
        /// The last read that had been started when the settlement was acknowledged.
        read: u64,
    },
}

/// What there is to send.
pub(super) enum Content {
    /// Validated and ready.
    Publication(Arc<Publication>),
    /// All but the body; its size as stored, or as measured once that is known.
    Bodiless(Box<OutboxRow>, u64),
    /// Nothing any more: it is decided.
    Spent,
}

/// What a decision means for the rows behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// None was made.
    Open,
    /// Sent: its key goes on.
    Sent,
    /// It waits in the table; its key waits with it.
    Waits,
    /// It is being quarantined, and holds its lane until that is durable: should it not be, the
    /// row might still be sent, and nothing of its key may have gone ahead.
    Condemned,
}

/// A row in memory.
pub(super) struct Entry {
    pub(super) lane: Lane,
    pub(super) partition: Partition,
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) state: State,
    pub(super) content: Content,
    /// Gate of the exchange.
    pub(super) exchange: u64,
    /// Gate of exchange and routing key.
    pub(super) destination: u64,
    pub(super) attempts: u32,
    /// Since when it could have been sent.
    pub(super) waiting_since: Moment,
    /// A read showed it while it was being written down that it waits, or goes to quarantine: it
    /// may have fallen due, or have been replayed, unnoticed and must be looked for again.
    pub(super) missed: bool,
    /// What was decided, as far as its key is concerned.
    pub(super) fate: Fate,
}

/// What a row under way holds of its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// It has the turn.
    Turn,
    /// It waits in the table: the lane is shelved from it on.
    Shelf,
}

impl Entry {
    fn hold(&self) -> Option<Hold> {
        match (self.state, self.fate) {
            (State::InFlight(_), _) | (State::Settling(_), Fate::Condemned) => Some(Hold::Turn),
            (State::Settling(_) | State::Settled { .. }, Fate::Waits) => Some(Hold::Shelf),
            (State::Queued | State::Ready | State::Fetching, _)
            | (State::Settling(_) | State::Settled { .. }, _) => None,
        }
    }

    fn buffered(&self) -> usize {
        match &self.content {
            Content::Publication(publication) => publication.buffered(),
            Content::Bodiless(..) | Content::Spent => 0,
        }
    }
}

/// All rows in memory.
#[derive(Default)]
pub(super) struct Ledger {
    entries: Map<RowId, Entry>,
    /// Settled rows in the order of their settlement, with the read that must pass.
    leaving: VecDeque<(u64, RowId)>,
    buffered_bytes: usize,
    settling: usize,
}

impl Ledger {
    pub(super) fn get(&self, id: RowId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    /// For changing what does not count: neither state nor content.
    pub(super) fn get_mut(&mut self, id: RowId) -> Option<&mut Entry> {
        self.entries.get_mut(&id)
    }

    pub(super) fn contains(&self, id: RowId) -> bool {
        self.entries.contains_key(&id)
    }

    pub(super) fn insert(&mut self, id: RowId, entry: Entry) {
        self.buffered_bytes += entry.buffered();
        let old = self.entries.insert(id, entry);
        debug_assert!(old.is_none(), "row {id} taken in twice");
    }

    pub(super) fn remove(&mut self, id: RowId) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        self.buffered_bytes -= entry.buffered();
        self.settling -= usize::from(matches!(entry.state, State::Settling(_)));
        Some(entry)
    }

    pub(super) fn set_content(&mut self, id: RowId, content: Content) {
        if let Some(entry) = self.entries.get_mut(&id) {
            self.buffered_bytes -= entry.buffered();
            entry.content = content;
            self.buffered_bytes += entry.buffered();
        }
    }

    pub(super) fn set_state(&mut self, id: RowId, state: State) {
        if let Some(entry) = self.entries.get_mut(&id) {
            self.settling -= usize::from(matches!(entry.state, State::Settling(_)));
            self.settling += usize::from(matches!(state, State::Settling(_)));
            entry.state = state;
        }
    }

    /// The row's fate is decided and its body no longer needed.
    pub(super) fn decide(&mut self, id: RowId, ticket: Ticket, fate: Fate) {
        self.set_content(id, Content::Spent);
        self.set_state(id, State::Settling(ticket));
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.fate = fate;
        }
    }

    /// The settlement is durable; `read` is the last read that had been started by then.
    pub(super) fn settled(&mut self, id: RowId, read: u64) {
        if !holds(Tenet::RememberSettled) {
            self.remove(id);
            return;
        }
        self.set_state(id, State::Settled { read });
        self.leaving.push_back((read, id));
    }

    /// Read number `read` has arrived: what was settled before it began may be forgotten.
    /// Returns rows that were read as due meanwhile and so have to be read again.
    pub(super) fn forget_before(&mut self, read: u64) -> Vec<(RowId, Lane)> {
        let mut missed = Vec::new();
        while let Some((settled_at, id)) = self.leaving.front().copied() {
            if settled_at >= read {
                break;
            }
            self.leaving.pop_front();
            let settled = |entry: &Entry| entry.state == State::Settled { read: settled_at };
            if self.get(id).is_some_and(settled)
                && let Some(entry) = self.remove(id).filter(|entry| entry.missed)
            {
                missed.push((id, entry.lane));
            }
        }
        missed
    }

    /// For a failed simulation.
    #[cfg(test)]
    pub(super) fn describe(&self) -> Vec<(RowId, State)> {
        let mut rows: Vec<_> = self
            .entries
            .iter()
            .map(|(id, entry)| (*id, entry.state))
            .collect();
        rows.sort_unstable_by_key(|(id, _)| *id);
        rows
    }

    /// Bytes of bodies in memory.
    pub(super) fn buffered_bytes(&self) -> usize {
        self.buffered_bytes
    }

    /// Rows whose settlement is not yet durable.
    pub(super) fn settling(&self) -> usize {
        self.settling
    }

    /// Rows that still want something: to be published, confirmed or settled.
    pub(super) fn open(&self) -> usize {
        self.entries.len() - self.leaving.len()
    }

    /// Forgets every row of these partitions that is not under way: neither published nor
    /// decided. Returns those with their gates.
    pub(super) fn keep_under_way(&mut self, of: &PartitionSet) -> Vec<(RowId, [u64; 2])> {
        let idle: Vec<(RowId, [u64; 2])> = self
            .of(of)
            .filter(|(_, entry)| {
                matches!(entry.state, State::Queued | State::Ready | State::Fetching)
            })
            .map(|(id, entry)| (id, [entry.exchange, entry.destination]))
            .collect();
        for (id, _) in &idle {
            self.remove(*id);
        }
        idle
    }

    /// What rows of these partitions hold of their ordered lanes, by ascending id.
    pub(super) fn holds(&self, of: &PartitionSet) -> Vec<(RowId, Lane, Hold)> {
        let ordered = self.of(of).filter(|(_, entry)| entry.lane.is_ordered());
        let mut holds: Vec<_> = ordered
            .filter_map(|(id, entry)| Some((id, entry.lane, entry.hold()?)))
            .collect();
        holds.sort_unstable_by_key(|(id, ..)| *id);
        holds
    }

    /// Rows of these that are published and unconfirmed, or decided and not written down.
    #[cfg(test)]
    pub(super) fn under_way_rows(&self, of: &PartitionSet) -> Vec<RowId> {
        let under_way =
            |entry: &Entry| matches!(entry.state, State::InFlight(_) | State::Settling(_));
        let rows = self.of(of).filter(|(_, entry)| under_way(entry));
        rows.map(|(id, _)| id).collect()
    }

    /// Partitions of which rows are published and unconfirmed, or decided and not written down.
    pub(super) fn under_way(&self) -> PartitionSet {
        let under_way =
            |entry: &&Entry| matches!(entry.state, State::InFlight(_) | State::Settling(_));
        let entries = self.entries.values().filter(under_way);
        entries.map(|entry| entry.partition).collect()
    }

    fn of(&self, partitions: &PartitionSet) -> impl Iterator<Item = (RowId, &Entry)> {
        self.entries
            .iter()
            .filter(|(_, entry)| partitions.contains(entry.partition))
            .map(|(id, entry)| (*id, entry))
    }

    /// Rows that wait for their body, by ascending id.
    pub(super) fn fetching(&self) -> impl Iterator<Item = RowId> {
        let waits = |entry: &Entry| entry.state == State::Fetching;
        let mut ids: Vec<RowId> = self
            .entries
            .iter()
            .filter(|(_, entry)| waits(entry))
            .map(|(id, _)| *id)
            .collect();
        ids.sort_unstable();
        ids.into_iter()
    }
}
