//! What is sent apart from the others, because it may cost its channel or its connection.

use super::super::channels::Solitude;
use super::super::gate::{Refused, Traveller};
use super::Flow;
use crate::message::{ReasonClass, RowId, Unfit};
use crate::runtime::Moment;

/// Rows that may wait for their turn on the connection apart before others are held back.
const APART: usize = 100;

/// Why, then.
const CROWDED: &str =
    "more wait for their turn on a connection of their own than are kept in memory";

impl Flow {
    /// Has it, or has what lies behind its gate, cost a channel or a connection before? Then it
    /// takes nobody's confirm with it but its own.
    pub(super) fn goes_alone(&self, id: RowId, now: Moment) -> Option<Solitude> {
        let (gates, row) = self.traveller(id, now)?;
        if row.convict || self.hazards.is_hazardous(gates[1], now) {
            return Some(Solitude::Connection);
        }
        self.gates.cost_of_passing(gates, id)
    }

    /// It is not to fill the memory with those behind it.
    pub(super) fn queue_alone(&mut self, id: RowId, solitude: Solitude, now: Moment) {
        self.channels.knock(id, solitude);
        if solitude == Solitude::Connection
            && self.channels.apart() >= APART
            && let Some(([_, destination], row)) = self.traveller(id, now)
            && !row.convict
        {
            let patience = self.limits.destination_after;
            let sign = self.sign(id, destination, CROWDED);
            self.gates.hold(destination, row, patience, sign);
        }
    }

    /// The row's gates, and the row as they see it.
    pub(super) fn traveller(&self, id: RowId, now: Moment) -> Option<([u64; 2], Traveller)> {
        let entry = self.ledger.get(id)?;
        let row = Traveller {
            id,
            waiting_since: entry.waiting_since,
            convict: self.hazards.is_convict(id, entry.attempts),
            now,
        };
        Some(([entry.exchange, entry.destination], row))
    }

    /// Is there something to be sent on a connection of its own, which is to be made for it?
    #[must_use]
    pub fn wants_connection(&self) -> bool {
        self.linked && !self.draining && self.channels.wants_connection()
    }

    /// This publication alone made the broker end its connection. The row is charged; of a broker that
    /// has confirmed nothing meanwhile it may be the fault of the broker, and nobody is charged for
    /// that. If row after row to a destination does it, its gate closes, too, and others have to show,
    /// in their time, whether it takes any.
    pub(super) fn convict(&mut self, id: RowId, code: u16, text: &str, now: Moment) {
        let Some((gates, row)) = self.traveller(id, now) else {
            return;
        };
        let reason = format!(
            "the broker closed the connection: {code} {text}; its log says over what: correct the row, \
             or mend its destination"
        );
        let works = std::mem::replace(&mut self.works, false);
        let (times, blamed) = self.hazards.convict(row, gates[1]);
        let closes = blamed || self.gates.probes(gates[1], id);
        let over = now.since(row.waiting_since) >= self.limits.destination_after;
        let given_up = closes && self.close(gates[1], row, &reason) || over && !works;
        let class = ReasonClass::DestinationRefused;
        if given_up {
            self.quarantine(id, Unfit { class, reason });
        } else if works {
            self.charge(id, reason, now);
        } else {
            self.withdraw(gates, id);
            let delay = self.delay(times);
            let reason = format!("{reason}; not charged, as nothing else was confirmed since");
            self.wait(id, delay, Unfit { class, reason }, now);
        }
    }

    /// Closes the gate over this row. Is the patience with the row over?
    fn close(&mut self, gate: u64, row: Traveller, reason: &str) -> bool {
        let sign = self.sign(row.id, gate, reason);
        let (retry, jitter) = (&self.limits.retry, &mut self.jitter);
        let delay = |failures| retry.delay(failures, jitter);
        let patience = self.limits.destination_after;
        match self.gates.refused(gate, row, patience, sign, delay) {
            Refused::KnockAgain(_) => {
                self.gates.has_cost(gate, Solitude::Connection);
                false
            }
            Refused::HeldBack => false,
            Refused::GivenUp => true,
        }
    }
}
