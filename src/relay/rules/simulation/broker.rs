//! A broker that takes what is on the wire, in its own time.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::dice::Dice;
use crate::broker::{ChannelLost, Confirmed, LossCause, Outcome};
use crate::message::{Publication, RowId};

/// What became of one publication at the broker.
enum Fate {
    Routed,
    NoRoute,
    Refused,
}

#[derive(Default)]
struct Wire {
    open: bool,
    /// Sent by the relay, not yet seen by the broker.
    sent: VecDeque<Arc<Publication>>,
    /// Decided by the broker, not yet heard by the relay.
    decided: Vec<(RowId, Fate)>,
    /// Taken by a queue that does not confirm at the moment, with its routing key.
    unconfirmed: Vec<(RowId, String)>,
}

/// The broker, as all relays share it.
#[derive(Default)]
pub(super) struct Broker {
    /// Exchanges that do not exist at the moment.
    pub(super) missing: HashSet<String>,
    /// Routing keys that lead nowhere at the moment.
    pub(super) unbound: HashSet<String>,
    /// Routing keys whose queue is full at the moment.
    pub(super) full: HashSet<String>,
    /// Routing keys whose queue takes messages and confirms none at the moment.
    pub(super) silent: HashSet<String>,
    /// Routing keys behind which everything makes the broker close the connection at the moment.
    pub(super) broken: HashSet<String>,
    /// What consumers got, in order.
    pub(super) delivered: Vec<RowId>,
}

/// One relay's connection to it, and the one apart, which is the last wire's.
pub(super) struct Connection {
    wires: Vec<Wire>,
    pub(super) linked: bool,
}

impl Connection {
    pub(super) fn new(channels: usize) -> Self {
        Self {
            wires: (0..channels).map(|_| Wire::default()).collect(),
            linked: false,
        }
    }

    pub(super) fn channels(&self) -> usize {
        self.wires.len()
    }

    /// The channel that has a connection of its own.
    pub(super) fn apart(&self) -> usize {
        self.wires.len() - 1
    }

    pub(super) fn open(&mut self, no: usize) -> bool {
        !std::mem::replace(&mut self.wires[no].open, true)
    }

    pub(super) fn send(&mut self, no: usize, batch: Vec<Arc<Publication>>) {
        assert!(
            self.wires[no].open,
            "published on a channel that is not open"
        );
        self.wires[no].sent.extend(batch);
    }

    /// The broker works off the next publication of a channel. It may close the channel.
    pub(super) fn work(&mut self, no: usize, broker: &mut Broker) -> Option<ChannelLost> {
        let publication = self.wires[no].sent.pop_front()?;
        let (id, key) = (publication.id(), publication.routing_key().as_str());
        if broker.missing.contains(publication.exchange().as_str()) {
            self.wires[no].sent.push_front(publication);
            return Some(self.close(no, 404));
        }
        if key == "poison" {
            self.wires[no].sent.push_front(publication);
            return Some(self.close(no, 406));
        }
        // Of a mixed destination some rows cannot be read by an exchange, and the others can.
        if broker.broken.contains(key) || key == "mixed" && id.0 % 3 == 0 {
            self.wires[no].sent.push_front(publication);
            return Some(self.fail(no));
        }
        if broker.silent.contains(key) {
            broker.delivered.push(id);
            self.wires[no].unconfirmed.push((id, key.to_owned()));
            return None;
        }
        let fate = if broker.unbound.contains(key) {
            Fate::NoRoute
        } else if broker.full.contains(key) {
            Fate::Refused
        } else {
            broker.delivered.push(id);
            Fate::Routed
        };
        self.wires[no].decided.push((id, fate));
        None
    }

    /// The relay hears of one decided publication, not always the oldest.
    pub(super) fn report(
        &mut self,
        no: usize,
        broker: &Broker,
        dice: &mut Dice,
    ) -> Option<(RowId, Outcome)> {
        let silent = &broker.silent;
        let Wire {
            unconfirmed,
            decided,
            ..
        } = &mut self.wires[no];
        let confirmed = unconfirmed.extract_if(.., |(_, key)| !silent.contains(key));
        decided.extend(confirmed.map(|(id, _)| (id, Fate::Routed)));
        let decided = &mut self.wires[no].decided;
        if decided.is_empty() {
            return None;
        }
        let place = if dice.once_in(3) {
            dice.below(decided.len())
        } else {
            0
        };
        let (id, fate) = decided.remove(place);
        let outcome = match fate {
            Fate::Routed => Outcome::Confirmed(Confirmed::simulated()),
            Fate::NoRoute => Outcome::Returned {
                code: 312,
                text: "NO_ROUTE".to_owned(),
            },
            Fate::Refused => Outcome::Nacked,
        };
        Some((id, outcome))
    }

    /// The relay has heard everything there was to hear, and has waited too long for the rest.
    pub(super) fn time_out(&mut self, no: usize) -> Option<ChannelLost> {
        let wire = &self.wires[no];
        if wire.unconfirmed.is_empty() || !wire.decided.is_empty() {
            return None;
        }
        let unknown = self.abandon(no);
        let later_confirmed = false;
        let cause = LossCause::Silent { later_confirmed };
        Some(ChannelLost { cause, unknown })
    }

    /// The broker closes the connection; its other channels report their losses themselves.
    fn fail(&mut self, no: usize) -> ChannelLost {
        let text = "INTERNAL_ERROR".to_owned();
        let cause = LossCause::ConnectionClosed { code: 541, text };
        let unknown = self.abandon(no);
        ChannelLost { cause, unknown }
    }

    /// What becomes of another channel of a connection that the broker closed.
    pub(super) fn fail_too(&mut self, no: usize) -> Option<ChannelLost> {
        self.wires[no].open.then(|| self.fail(no))
    }

    fn close(&mut self, no: usize, code: u16) -> ChannelLost {
        let unknown = self.abandon(no);
        ChannelLost {
            cause: LossCause::Closed {
                code,
                text: "simulated".to_owned(),
            },
            unknown,
        }
    }

    /// The channel is gone; what the broker had taken from the wire it keeps.
    pub(super) fn cut(
        &mut self,
        no: usize,
        broker: &mut Broker,
        dice: &mut Dice,
    ) -> Option<ChannelLost> {
        if !self.wires[no].open {
            return None;
        }
        let taken = dice.below(self.wires[no].sent.len() + 1);
        for _ in 0..taken {
            if let Some(lost) = self.work(no, broker) {
                let cause = LossCause::Connection {
                    reason: "simulated".to_owned(),
                };
                return Some(ChannelLost { cause, ..lost });
            }
        }
        let unknown = self.abandon(no);
        Some(ChannelLost {
            cause: LossCause::Connection {
                reason: "cut".to_owned(),
            },
            unknown,
        })
    }

    /// Ids in flight in the order of publishing; none of them will be heard of again.
    fn abandon(&mut self, no: usize) -> Vec<RowId> {
        let wire = std::mem::take(&mut self.wires[no]);
        let decided = wire.decided.into_iter().map(|(id, _)| id);
        let unconfirmed = wire.unconfirmed.into_iter().map(|(id, _)| id);
        unconfirmed
            .chain(decided)
            .chain(wire.sent.into_iter().map(|publication| publication.id()))
            .collect()
    }
}
