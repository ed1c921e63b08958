//! What is sent apart from the others, because it may cost its channel or its connection.

use super::super::channels::Solitude;
use super::super::gate::{Refused, Traveller};
use super::Flow;
use crate::message::{ReasonClass, RowId, Unfit};
use crate::runtime::Moment;

/// Rows that may wait for their turn on the connection apart before others are held back.
const APART: usize = 100;

impl Flow {
    /// Has it, or has what lies behind its gate, cost a channel or a connection before? Then it
    /// takes nobody's confirm with it but its own. Of a charged row nobody remembers which it was.
    pub(super) fn goes_alone(&self, id: RowId, now: Moment) -> Option<Solitude> {
        let entry = self.ledger.get(id)?;
        let costly = entry.attempts > 0 || self.hazards.is_hazardous(entry.destination, now);
        if costly || self.hazards.is_convict(id) {
            return Some(Solitude::Connection);
        }
        let gates = [entry.exchange, entry.destination];
        self.gates.cost_of_passing(gates, id)
    }

    /// It is not to fill the memory with those behind it.
    pub(super) fn queue_alone(&mut self, id: RowId, solitude: Solitude, now: Moment) {
        let entry = self.ledger.get(id);
        let destination = entry.map(|entry| entry.destination);
        self.channels.knock(id, solitude);
        if let (Some(gate), Some(row)) = (destination, self.traveller(id, now))
            && solitude == Solitude::Connection
            && !row.convict
            && self.channels.apart() >= APART
        {
            self.gates.hold(gate, row, self.limits.destination_after);
        }
    }

    /// The row as its gates see it.
    pub(super) fn traveller(&self, id: RowId, now: Moment) -> Option<Traveller> {
        let entry = self.ledger.get(id)?;
        Some(Traveller {
            id,
            waiting_since: entry.waiting_since,
            convict: entry.attempts > 0 || self.hazards.is_convict(id),
            now,
        })
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
        let Some(row) = self.traveller(id, now) else {
            return;
        };
        let Some((gates, attempts)) = self.ledger.get(id).map(|entry| {
            let gates = [entry.exchange, entry.destination];
            (gates, entry.attempts)
        }) else {
            return;
        };
        let [_, gate] = gates;
        let reason = format!(
            "the broker closed the connection: {code} {text}; its log says over what: correct the row, \
             or mend its destination"
        );
        let works = std::mem::replace(&mut self.works, false);
        let (times, blamed) = self.hazards.convict(id, gate, attempts > 0, now);
        if blamed || self.gates.probes(gate, id) {
            let (retry, jitter) = (&self.limits.retry, &mut self.jitter);
            let delay = |failures| retry.delay(failures, jitter);
            let patience = self.limits.destination_after;
            match self.gates.refused(gate, row, patience, delay) {
                Refused::KnockAgain(_) => self.gates.has_cost(gate, Solitude::Connection),
                Refused::HeldBack => {}
                Refused::GivenUp => {
                    let class = ReasonClass::DestinationRefused;
                    self.quarantine(id, Unfit { class, reason });
                    return;
                }
            }
        }
        if works {
            self.charge(id, reason, now);
            return;
        }
        self.withdraw(gates, id);
        let class = ReasonClass::DestinationRefused;
        if now.since(row.waiting_since) >= self.limits.destination_after {
            self.quarantine(id, Unfit { class, reason });
            return;
        }
        let delay = self.delay(times);
        self.wait(id, delay, Unfit { class, reason }, now);
    }
}
