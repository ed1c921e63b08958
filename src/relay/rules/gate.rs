//! Gates: before an exchange and before a destination. A gate closes when what lies behind it
//! refuses a row, and opens when one row, the probe, got through.
//!
//! While a gate is closed exactly one row knocks at it, ever more seldom. Neither it nor the
//! others are kept in memory: it comes back as due, they when the gate opens. A dead exchange
//! with a million rows so costs an id.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::Pause;
use super::channels::Solitude;
use super::held_back::{HeldBack, TOLD, Withheld};
use super::lane::destination_hash;
use crate::message::RowId;
use crate::runtime::{Map, Moment};

/// The gates a row has to pass: its exchange's and its destination's. They stand for names
/// within this process only and are never stored.
pub(super) fn gates_of(exchange: &str, routing_key: &str) -> [u64; 2] {
    [
        exchange_gate(exchange),
        destination_hash(exchange, routing_key),
    ]
}

/// The gate before an exchange.
pub(super) fn exchange_gate(exchange: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    ("exchange", exchange, 0_u8).hash(&mut hasher);
    hasher.finish()
}

/// What a gate shuts, and why.
#[derive(Debug, Clone, Default)]
pub(super) struct Sign {
    pub(super) exchange: String,
    /// `None` for all of the exchange.
    pub(super) routing_key: Option<String>,
    pub(super) why: String,
}

/// Gates that have a sign, so that many that are closed take little room.
const SIGNS: usize = 1000;

/// A gate that is closed.
#[derive(Debug, Clone)]
pub(super) struct Closed {
    /// Nobody knocks before this.
    pub(super) until: Moment,
    /// Failures in a row.
    pub(super) failures: u32,
    /// Since when it has been closed.
    since: Moment,
    /// How long what lies behind it may refuse a row before the row is given up.
    patience: Duration,
    /// What its last refusal cost, if it did: the broker closed that, or no answer came at all.
    cost: Option<Solitude>,
    /// Its patience is over, and the rows held back have been let come.
    expired: bool,
    /// The row that will knock, or is knocking.
    pub(super) probe: Option<RowId>,
    /// The lowest row not kept in memory because of this gate.
    pub(super) shelved_from: Option<i64>,
    /// Only the first ones have one.
    sign: Option<Box<Sign>>,
}

impl Closed {
    /// Does nobody knock or wait here?
    fn is_deserted(&self) -> bool {
        self.probe.is_none() && self.shelved_from.is_none()
    }

    /// Does its being closed not concern this row?
    fn passes_by(&self, row: Traveller) -> bool {
        row.convict && self.cost == Some(Solitude::Connection)
    }

    /// Is the patience with this row over: has it waited, and has the gate been closed, for so
    /// long? Then it may pass, and if it is refused again it is given up.
    fn gives_up(&self, row: Traveller) -> bool {
        row.now.since(self.since) >= self.patience
            && row.now.since(row.waiting_since) >= self.patience
    }
}

/// A row that comes to its gates.
#[derive(Debug, Clone, Copy)]
pub(super) struct Traveller {
    pub(super) id: RowId,
    /// Since when it could have been sent.
    pub(super) waiting_since: Moment,
    /// It ended a connection itself: it is tried in its own time, and proves nothing about where it goes.
    pub(super) convict: bool,
    pub(super) now: Moment,
}

/// What a refusal means for the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// It knocks again at this moment.
    KnockAgain(Moment),
    /// Another row knocks: it is held back.
    HeldBack,
    /// It has been refused for too long.
    GivenUp,
}

/// May a row pass?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Passage {
    /// Yes.
    Free,
    /// It is the one that knocks; at this moment.
    Probe(Moment),
    /// No: it is held back.
    Shut,
}

/// The gate that every row passes: barred while everything is paused.
const EVERYTHING: u64 = 0;

/// All gates that are closed or barred; every other is open.
#[derive(Debug, Default)]
pub(super) struct Gates {
    closed: Map<u64, Closed>,
    /// Gates before exchanges that an operator paused. Nobody knocks at these. The lowest row
    /// not kept in memory because of each.
    barred: Map<u64, Option<i64>>,
}

impl Gates {
    /// Whether `id` may pass both gates. It becomes the probe of a closed gate that has none,
    /// but only if no other gate shuts it out: two rows, each waiting at the gate that the other
    /// knocks at, would wait for ever.
    pub(super) fn passage(&mut self, gates: [u64; 2], row: Traveller) -> Passage {
        if self.shut_out(gates, row) {
            return Passage::Shut;
        }
        let mut at: Option<Moment> = None;
        for gate in gates {
            if let Some(closed) = self
                .closed
                .get_mut(&gate)
                .filter(|closed| !closed.gives_up(row) && !closed.passes_by(row))
            {
                closed.probe = Some(row.id);
                at = at.max(Some(closed.until));
            }
        }
        at.map_or(Passage::Free, Passage::Probe)
    }

    /// Bars the gates of what is paused, and no others. Returns from where on rows are to be
    /// found that may come again.
    pub(super) fn bar(&mut self, pauses: &[Pause]) -> Option<i64> {
        let gate = |pause: &Pause| pause.exchange.as_deref().map_or(EVERYTHING, exchange_gate);
        let mut lifted = std::mem::take(&mut self.barred);
        for gate in pauses.iter().map(gate) {
            let from = lifted.remove(&gate).flatten();
            self.barred.insert(gate, from);
        }
        lifted.into_values().flatten().min()
    }

    /// Is one of these barred?
    pub(super) fn is_barred(&self, [exchange, _]: [u64; 2]) -> bool {
        let barred = |gate| self.barred.contains_key(gate);
        !self.barred.is_empty() && (barred(&EVERYTHING) || barred(&exchange))
    }

    /// Is one of these barred, or closed with another row to knock at it?
    pub(super) fn shut_out(&self, gates: [u64; 2], row: Traveller) -> bool {
        if self.is_barred(gates) {
            return true;
        }
        let shut = |closed: &Closed| closed.probe.is_some_and(|probe| probe != row.id);
        let mut closed = gates.iter().filter_map(|gate| self.closed.get(gate));
        closed.any(|closed| shut(closed) && !closed.gives_up(row) && !closed.passes_by(row))
    }

    /// Notes that rows from this id on are not kept because one of these is closed or barred.
    pub(super) fn shelve(&mut self, gates: [u64; 2], id: i64) {
        for gate in [EVERYTHING, gates[0]] {
            if let Some(from) = self.barred.get_mut(&gate) {
                *from = Some(from.map_or(id, |from| from.min(id)));
            }
        }
        for gate in gates {
            if let Some(closed) = self.closed.get_mut(&gate) {
                closed.shelved_from = Some(closed.shelved_from.map_or(id, |from| from.min(id)));
            }
        }
    }

    /// What lies behind refused. Only the probe's failure counts once the gate is closed.
    pub(super) fn refused(
        &mut self,
        gate: u64,
        row: Traveller,
        patience: Duration,
        sign: Sign,
        delay: impl FnOnce(u32) -> Duration,
    ) -> Refused {
        let room = self.closed.len() < SIGNS;
        let closed = self.closed.entry(gate).or_insert(Closed {
            until: row.now,
            failures: 0,
            since: row.now,
            patience,
            cost: None,
            expired: false,
            probe: Some(row.id),
            shelved_from: None,
            sign: None,
        });
        closed.patience = patience;
        if closed.gives_up(row) {
            return Refused::GivenUp;
        }
        if *closed.probe.get_or_insert(row.id) != row.id {
            return Refused::HeldBack;
        }
        closed.cost = None;
        if room || closed.sign.is_some() {
            closed.sign = Some(Box::new(sign));
        }
        closed.failures = closed.failures.saturating_add(1);
        closed.until = row.now + delay(closed.failures);
        Refused::KnockAgain(closed.until)
    }

    /// Too many wait for their turn on the connection apart: the rest of this destination is held back
    /// until this row, which has its turn, got through.
    pub(super) fn hold(&mut self, gate: u64, row: Traveller, patience: Duration, sign: Sign) {
        let sign = (self.closed.len() < SIGNS).then(|| Box::new(sign));
        self.closed.entry(gate).or_insert(Closed {
            until: row.now,
            failures: 0,
            since: row.now,
            patience,
            cost: Some(Solitude::Connection),
            expired: false,
            probe: Some(row.id),
            shelved_from: None,
            sign,
        });
    }

    /// The refusal just told cost this.
    pub(super) fn has_cost(&mut self, gate: u64, cost: Solitude) {
        if let Some(closed) = self.closed.get_mut(&gate) {
            closed.cost = Some(cost);
        }
    }

    /// If this row passes where nobody answered, or where a channel or the connection was closed,
    /// so that it may wait for long and take that with it: what it may cost. Who passes because
    /// patience is over may wait, but is not to cost everybody's connection.
    pub(super) fn cost_of_passing(&self, gates: [u64; 2], id: RowId) -> Option<Solitude> {
        let closed = gates.iter().filter_map(|gate| self.closed.get(gate));
        let costs = |closed: &&Closed| {
            closed.probe == Some(id) || closed.cost == Some(Solitude::Connection)
        };
        closed.filter(costs).filter_map(|closed| closed.cost).max()
    }

    /// Does this row knock at it?
    pub(super) fn probes(&self, gate: u64, id: RowId) -> bool {
        let closed = self.closed.get(&gate);
        closed.is_some_and(|closed| closed.probe == Some(id))
    }

    /// Gates whose patience has just run out: from where on rows are held back at them. Those where
    /// nobody came for as long again are forgotten.
    pub(super) fn expire(&mut self, now: Moment) -> Option<i64> {
        let alive = |closed: &Closed| {
            !closed.is_deserted() || now.since(closed.since) < closed.patience * 2
        };
        self.closed.retain(|_, closed| alive(closed));
        let over =
            |closed: &&mut Closed| !closed.expired && now.since(closed.since) >= closed.patience;
        let mut from: Option<i64> = None;
        for closed in self.closed.values_mut().filter(over) {
            closed.expired = true;
            from = [from, closed.shelved_from].into_iter().flatten().min();
        }
        from
    }

    /// Gates at which somebody should have knocked by then, and who.
    pub(super) fn overdue(&self, by: Moment) -> Vec<(u64, RowId)> {
        let overdue = self.closed.iter().filter(|(_, closed)| closed.until <= by);
        overdue
            .filter_map(|(gate, closed)| Some((*gate, closed.probe?)))
            .collect()
    }

    /// A row got through: the gate opens. Returns what it was, if it had been closed.
    pub(super) fn passed(&mut self, gate: u64) -> Option<Closed> {
        if self.closed.is_empty() {
            None
        } else {
            self.closed.remove(&gate)
        }
    }

    /// The row will not knock any more. Returns from where on another is to be found. A gate that
    /// nobody waits at opens, unless whoever comes next might cost the connection that all share.
    pub(super) fn withdrew(&mut self, gates: [u64; 2], id: RowId) -> Option<i64> {
        let mut from: Option<i64> = None;
        for gate in gates {
            let Some(closed) = self.closed.get_mut(&gate) else {
                continue;
            };
            if closed.probe == Some(id) {
                closed.probe = None;
                if let Some(shelved) = closed.shelved_from.take() {
                    from = Some(from.map_or(shelved, |from| from.min(shelved)));
                } else if closed.cost != Some(Solitude::Connection) {
                    self.closed.remove(&gate);
                }
            }
        }
        from
    }

    /// What those hold back that are closed to somebody, for longest first.
    pub(super) fn held_back(&self, now: Moment) -> Vec<HeldBack> {
        let closed = self.closed.values().filter(|closed| !closed.is_deserted());
        let signed = closed.filter_map(|closed| Some((closed, closed.sign.as_deref()?)));
        let mut signed: Vec<(&Closed, &Sign)> = signed.collect();
        signed.sort_by_key(|(closed, _)| closed.since);
        let told = |(closed, sign): (&Closed, &Sign)| HeldBack {
            what: Withheld::Destination {
                exchange: sign.exchange.clone(),
                routing_key: sign.routing_key.clone(),
                tried_by: closed.probe.map(|id| id.0),
            },
            for_seconds: now.since(closed.since).as_secs(),
            why: sign.why.clone(),
        };
        let others = self.closed().saturating_sub(TOLD.min(signed.len()));
        let others = (others > 0).then(|| HeldBack {
            what: Withheld::Others { others },
            for_seconds: 0,
            why: String::new(),
        });
        signed
            .into_iter()
            .take(TOLD)
            .map(told)
            .chain(others)
            .collect()
    }

    /// Is none closed?
    pub(super) fn is_empty(&self) -> bool {
        self.closed.is_empty()
    }

    /// How many are closed to somebody.
    pub(super) fn closed(&self) -> usize {
        let closed = self.closed.values();
        closed.filter(|closed| !closed.is_deserted()).count()
    }
}

#[cfg(test)]
mod tests;
