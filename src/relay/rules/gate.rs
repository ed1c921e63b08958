//! Gates: before an exchange and before a destination. A gate closes when what lies behind it
//! refuses a row, and opens when one row, the probe, got through.
//!
//! While a gate is closed exactly one row knocks at it, ever more seldom. Neither it nor the
//! others are kept in memory: it comes back as due, they when the gate opens. A dead exchange
//! with a million rows so costs an id.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::lane::destination_hash;
use crate::message::RowId;
use crate::runtime::Moment;

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

/// A gate that is closed.
#[derive(Debug, Clone)]
pub(super) struct Closed {
    /// Nobody knocks before this.
    pub(super) until: Moment,
    /// Failures in a row.
    pub(super) failures: u32,
    /// The row that will knock, or is knocking.
    pub(super) probe: Option<RowId>,
    /// The lowest row not kept in memory because of this gate.
    pub(super) shelved_from: Option<i64>,
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

/// All gates that are closed; every other is open.
#[derive(Debug, Default)]
pub(super) struct Gates(HashMap<u64, Closed>);

impl Gates {
    /// Whether `id` may pass both gates. It becomes the probe of a closed gate that has none,
    /// but only if no other gate shuts it out: two rows, each waiting at the gate that the other
    /// knocks at, would wait for ever.
    pub(super) fn passage(&mut self, gates: [u64; 2], id: RowId) -> Passage {
        if self.shut_out(gates, id) {
            return Passage::Shut;
        }
        let mut at: Option<Moment> = None;
        for gate in gates {
            if let Some(closed) = self.0.get_mut(&gate) {
                closed.probe = Some(id);
                at = at.max(Some(closed.until));
            }
        }
        at.map_or(Passage::Free, Passage::Probe)
    }

    /// Is one of these closed, with another row to knock at it?
    pub(super) fn shut_out(&self, gates: [u64; 2], id: RowId) -> bool {
        let probes = gates.iter().filter_map(|gate| self.0.get(gate)?.probe);
        probes.into_iter().any(|probe| probe != id)
    }

    /// Notes that rows from this id on are not kept because one of these is closed.
    pub(super) fn shelve(&mut self, gates: [u64; 2], id: i64) {
        for gate in gates {
            if let Some(closed) = self.0.get_mut(&gate) {
                closed.shelved_from = Some(closed.shelved_from.map_or(id, |from| from.min(id)));
            }
        }
    }

    /// What lies behind refused. Only the probe's failure counts once the gate is closed.
    /// Returns when to knock again if this row is, or became, the probe.
    pub(super) fn refused(
        &mut self,
        gate: u64,
        id: RowId,
        now: Moment,
        delay: impl FnOnce(u32) -> Duration,
    ) -> Option<Moment> {
        let fresh = Closed {
            until: now,
            failures: 0,
            probe: Some(id),
            shelved_from: None,
        };
        let closed = self.0.entry(gate).or_insert(fresh);
        if *closed.probe.get_or_insert(id) != id {
            return None;
        }
        closed.failures = closed.failures.saturating_add(1);
        closed.until = now + delay(closed.failures);
        Some(closed.until)
    }

    /// Gates at which somebody should have knocked by then, and who.
    pub(super) fn overdue(&self, by: Moment) -> Vec<(u64, RowId)> {
        let overdue = self.0.iter().filter(|(_, closed)| closed.until <= by);
        overdue
            .filter_map(|(gate, closed)| Some((*gate, closed.probe?)))
            .collect()
    }

    /// A row got through: the gate opens. Returns what it was, if it had been closed.
    pub(super) fn passed(&mut self, gate: u64) -> Option<Closed> {
        if self.0.is_empty() {
            None
        } else {
            self.0.remove(&gate)
        }
    }

    /// The row will not knock any more. Returns from where on another is to be found.
    pub(super) fn withdrew(&mut self, gates: [u64; 2], id: RowId) -> Option<i64> {
        let mut from: Option<i64> = None;
        for gate in gates {
            let Some(closed) = self.0.get_mut(&gate) else {
                continue;
            };
            if closed.probe == Some(id) {
                closed.probe = None;
                if let Some(shelved) = closed.shelved_from.take() {
                    from = Some(from.map_or(shelved, |from| from.min(shelved)));
                } else {
                    self.0.remove(&gate);
                }
            }
        }
        from
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn closed(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn one_row_knocks_and_the_others_are_held_back() {
        let mut gates = Gates::default();
        let now = Moment::ORIGIN;
        assert!(gates.refused(7, RowId(3), now, |n| SECOND * n).is_some());
        assert!(gates.refused(7, RowId(4), now, |n| SECOND * n).is_none());
        assert_eq!(
            gates.passage([1, 7], RowId(3)),
            Passage::Probe(now + SECOND)
        );
        assert_eq!(gates.passage([1, 7], RowId(5)), Passage::Shut);
        assert_eq!(gates.passage([1, 2], RowId(5)), Passage::Free);
        gates.shelve([1, 7], 5);
        gates.shelve([1, 7], 4);
        assert_eq!(gates.passed(7).and_then(|gate| gate.shelved_from), Some(4));
        assert_eq!(gates.closed(), 0);
    }

    #[test]
    fn a_gate_without_a_probe_takes_the_next_row_as_one() {
        let mut gates = Gates::default();
        let now = Moment::ORIGIN;
        gates.refused(7, RowId(3), now, |n| SECOND * n);
        gates.shelve([1, 7], 8);
        assert_eq!(gates.withdrew([1, 7], RowId(3)), Some(8));
        assert_eq!(
            gates.passage([1, 7], RowId(8)),
            Passage::Probe(now + SECOND)
        );
        assert_eq!(gates.passage([1, 7], RowId(9)), Passage::Shut);
    }
}
