//! What an outcome means for a row, its key and its destination.

use std::time::Duration;

use super::super::channels::Solitude;
use super::super::gate::Refused;
use super::super::ledger::{Fate, State};
use super::super::{ChannelNo, Partition, SettleReport, Settlement, Ticket, Verdict};
use super::fault::{Fault, NOT_FOUND, fault_of, remedy_of};
use super::{Exchange, Flow};
use crate::broker::{ChannelLost, LossCause, Outcome};
use crate::message::{ReasonClass, RowId, Unfit};
use crate::runtime::Moment;

/// Why a destination did not take a row, in words for people. Both are a matter of time.
#[derive(Clone, Copy)]
pub(super) enum Refusal<'a> {
    /// No queue was bound: bindings appear late.
    Unroutable(&'a str),
    /// A full queue, a missing exchange, a right that was taken away.
    Destination(&'a str),
    /// It did not answer at all: a queue without a leader, perhaps.
    Silent(&'a str),
    /// The broker closed the channel over it.
    Closed(&'a str),
}

impl Flow {
    /// A channel was opened.
    pub fn channel_open(&mut self, channel: ChannelNo) {
        self.channels.opened(channel);
    }

    /// The certain fate of publications.
    pub fn judged(&mut self, channel: ChannelNo, outcomes: Vec<(RowId, Outcome)>, now: Moment) {
        self.settlements.reserve(outcomes.len());
        for (id, outcome) in outcomes {
            self.channels.judged(channel);
            let entry = self.ledger.get(id);
            let gates = entry.map(|entry| [entry.exchange, entry.destination]);
            if !matches!(outcome, Outcome::Confirmed(_)) && self.is_strangers(id) {
                self.drop_stranger(id);
                continue;
            }
            match outcome {
                Outcome::Confirmed(proof) => {
                    let ticket = self.settle(id, Verdict::Sent(proof));
                    self.confirmed(id, ticket);
                }
                Outcome::Returned { code, text } => {
                    self.exchange_took_it(gates);
                    let reason = format!(
                        "returned by the broker: {code} {text}; bind a queue, or correct the row"
                    );
                    self.refuse_behind(gates, id, Refusal::Unroutable(&reason), now);
                }
                Outcome::Nacked => {
                    self.exchange_took_it(gates);
                    let reason = "refused by a queue (basic.nack); it may be full with overflow reject-publish";
                    self.refuse_behind(gates, id, Refusal::Destination(reason), now);
                }
            }
        }
    }

    /// A channel ended. What was in flight on it is unknown: it stays pending and keeps its order.
    pub fn lost(&mut self, channel: ChannelNo, lost: ChannelLost, now: Moment) {
        self.channels.lost(channel);
        let ChannelLost { cause, mut unknown } = lost;
        self.forget_strangers(&mut unknown);
        for id in &unknown {
            self.ledger.set_state(*id, State::Ready);
        }
        match cause {
            LossCause::Closed { code, text } => match unknown.as_slice() {
                [id] => self.blame(*id, code, &text, now),
                _ => self.channels.suspect(unknown, Solitude::Channel),
            },
            LossCause::ConnectionClosed { code, text } => match unknown.as_slice() {
                // Nobody else's publication was on that connection.
                [id] if self.channels.is_apart(channel) => self.convict(*id, code, &text, now),
                _ => self.channels.suspect(unknown, Solitude::Connection),
            },
            LossCause::Silent { .. } => {
                // The oldest is what nobody answered; the others had no time, or share its
                // destination and are held back with it.
                let mut unknown = unknown.into_iter();
                let silent = unknown.next();
                self.send_again(unknown);
                if let Some(id) = silent {
                    self.blame_silence(id, now);
                }
            }
            LossCause::Connection { .. } => self.send_again_as(channel, unknown),
        }
    }

    /// Handed to a channel, and not published because the lease might have been over by then.
    pub fn unsent(&mut self, channel: ChannelNo, mut ids: Vec<RowId>) {
        for id in &ids {
            self.channels.judged(channel);
            self.ledger.set_state(*id, State::Ready);
        }
        self.forget_strangers(&mut ids);
        self.send_again_as(channel, ids);
    }

    /// As before: what was tried apart stays suspect.
    fn send_again_as(&mut self, channel: ChannelNo, ids: Vec<RowId>) {
        if self.channels.is_apart(channel) {
            self.channels.suspect(ids, Solitude::Connection);
        } else {
            self.send_again(ids.into_iter());
        }
    }

    /// These go next, in this order.
    fn send_again(&mut self, ids: impl DoubleEndedIterator<Item = RowId>) {
        for id in ids.rev() {
            self.ready.push_front(id);
        }
    }

    fn blame_silence(&mut self, id: RowId, now: Moment) {
        let Some(entry) = self.ledger.get(id) else {
            return;
        };
        let destination = entry.destination;
        let reason = "no confirm came in time; the queue may have no leader or be overloaded";
        self.refuse(id, destination, Refusal::Silent(reason), now);
    }

    /// What is to be written down, in the order of decision.
    pub fn take_settlements(&mut self) -> Vec<Settlement> {
        std::mem::take(&mut self.settlements)
    }

    /// What was written down.
    pub fn settled(&mut self, report: &SettleReport) {
        for (id, ticket) in &report.written {
            self.written(*id, *ticket);
        }
        self.disowned(report);
        for (id, ticket) in &report.gone {
            let Some(entry) = self.ledger.get_mut(*id) else {
                continue;
            };
            // Another row may have its id by now, and was taken for this one when it was read.
            entry.missed = true;
            let lane = entry.lane;
            match entry.fate {
                Fate::Waits => {
                    self.vanished(*id);
                    self.look_again(*id, lane);
                }
                Fate::Open | Fate::Sent | Fate::Condemned => self.written(*id, *ticket),
            }
        }
    }

    fn written(&mut self, id: RowId, ticket: Ticket) {
        let Some(entry) = self.ledger.get(id) else {
            return;
        };
        if entry.state != State::Settling(ticket) {
            return;
        }
        if entry.missed && entry.fate == Fate::Waits {
            let lane = entry.lane;
            self.ledger.remove(id);
            self.look_again(id, lane);
            return;
        }
        let (lane, fate) = (entry.lane, entry.fate);
        self.ledger.settled(id, self.reads);
        if fate == Fate::Condemned {
            self.hold_successors(lane, id);
            self.leave_lane(lane, id);
        }
    }

    /// Notes what is to be written down.
    pub(super) fn settle(&mut self, id: RowId, verdict: Verdict) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let entry = self.ledger.get(id);
        let partition = entry.map_or(Partition(0), |entry| entry.partition);
        let fingerprint = entry.and_then(|entry| entry.fingerprint);
        self.settlements.push(Settlement {
            id,
            partition,
            fingerprint,
            ticket,
            verdict,
        });
        ticket
    }

    fn confirmed(&mut self, id: RowId, ticket: Ticket) {
        self.works = true;
        let Some(entry) = self.ledger.get(id) else {
            return;
        };
        let (lane, gates) = (entry.lane, [entry.exchange, entry.destination]);
        self.hazards.passed(id, entry.destination);
        self.ledger.decide(id, ticket, Fate::Sent);
        for gate in gates {
            self.open_gate(gate);
        }
        self.leave_lane(lane, id);
    }

    /// Whatever became of the row behind it, the exchange is there and may be written to.
    fn exchange_took_it(&mut self, gates: Option<[u64; 2]>) {
        if let Some([exchange, _]) = gates {
            self.open_gate(exchange);
        }
    }

    fn open_gate(&mut self, gate: u64) {
        let Some(opened) = self.gates.passed(gate) else {
            return;
        };
        if let Some(from) = opened.shelved_from {
            self.coverage.want_all_after(from - 1);
        }
    }

    fn refuse_behind(
        &mut self,
        gates: Option<[u64; 2]>,
        id: RowId,
        refusal: Refusal<'_>,
        now: Moment,
    ) {
        if let Some([_, destination]) = gates {
            self.refuse(id, destination, refusal, now);
        }
    }

    /// What lies behind this gate refused the row: the gate closes. One row goes on knocking,
    /// the others are held back, until patience with each is over.
    pub(super) fn refuse(&mut self, id: RowId, gate: u64, refusal: Refusal<'_>, now: Moment) {
        let Some((_, row)) = self.traveller(id, now) else {
            return;
        };
        let (class, reason, patience) = match refusal {
            Refusal::Unroutable(reason) => (
                ReasonClass::Unroutable,
                reason,
                self.limits.unroutable_after,
            ),
            Refusal::Destination(reason) | Refusal::Silent(reason) | Refusal::Closed(reason) => (
                ReasonClass::DestinationRefused,
                reason,
                self.limits.destination_after,
            ),
        };
        let sign = self.sign(id, gate, reason);
        let (retry, jitter) = (&self.limits.retry, &mut self.jitter);
        let delay = |failures| retry.delay(failures, jitter);
        match self.gates.refused(gate, row, patience, sign, delay) {
            Refused::KnockAgain(at) => {
                if matches!(refusal, Refusal::Silent(_) | Refusal::Closed(_)) {
                    self.gates.has_cost(gate, Solitude::Channel);
                }
                let reason = reason.to_owned();
                self.wait(id, now.until(at), Unfit { class, reason }, now);
            }
            Refused::HeldBack => self.hold_back(id),
            Refused::GivenUp => {
                let reason = format!("{reason} (so for {} s)", patience.as_secs());
                self.quarantine(id, Unfit { class, reason });
            }
        }
    }

    /// The row waits in the table, and holds its key back meanwhile.
    pub(super) fn wait(&mut self, id: RowId, delay: Duration, why: Unfit, now: Moment) {
        let Some(entry) = self.ledger.get(id) else {
            return;
        };
        let (lane, attempts) = (entry.lane, entry.attempts);
        let ticket = self.settle(
            id,
            Verdict::RetryAt {
                delay,
                attempts,
                class: why.class,
                error: why.reason,
            },
        );
        self.ledger.decide(id, ticket, Fate::Waits);
        self.expect_due(now + delay);
        if lane.is_ordered() {
            self.set_aside(lane, id);
        }
    }

    /// This publication alone made the broker close the channel.
    fn blame(&mut self, id: RowId, code: u16, text: &str, now: Moment) {
        let Some(entry) = self.ledger.get(id) else {
            return;
        };
        let (exchange, destination) = (entry.exchange, entry.destination);
        let reason = format!(
            "the broker closed the channel: {code} {text}{}",
            remedy_of(code, text)
        );
        match fault_of(code, text) {
            Fault::Exchange => {
                if code == NOT_FOUND
                    && matches!(self.exchanges.get(&exchange), Some(Exchange::Exists))
                {
                    self.exchanges.remove(&exchange);
                }
                self.refuse(id, exchange, Refusal::Closed(&reason), now);
            }
            Fault::Topic => {
                self.open_gate(exchange);
                self.refuse(id, destination, Refusal::Closed(&reason), now);
            }
            Fault::Destination => {
                self.refuse(id, destination, Refusal::Closed(&reason), now);
            }
            Fault::Row => self.charge(id, reason, now),
        }
    }

    /// The row itself is at fault: an attempt is charged, and it waits or goes to quarantine.
    pub(super) fn charge(&mut self, id: RowId, reason: String, now: Moment) {
        let Some(entry) = self.ledger.get_mut(id) else {
            return;
        };
        entry.attempts += 1;
        let attempts = entry.attempts;
        let gates = [entry.exchange, entry.destination];
        self.withdraw(gates, id);
        let class = ReasonClass::Refused;
        let why = Unfit { class, reason };
        if attempts >= self.limits.max_attempts {
            self.quarantine(id, why);
            return;
        }
        let delay = self.delay(attempts);
        self.wait(id, delay, why, now);
    }
}
