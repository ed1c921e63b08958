//! A relay's settling connection: settlements, signs of life, and what becomes of leases.

use std::time::{Duration, SystemTime};

use super::dice::Dice;
use super::node::Node;
use crate::relay::rules::{Leases, PartitionSet, SettleReport, Settlement, Take};
use crate::runtime::Moment;
use crate::store::Announcement;
use crate::store::memory::Table;

/// So short that it ends often.
pub(super) const LEASE: Duration = Duration::from_secs(6);

/// What the engine wants done about leases.
pub(super) enum Order {
    Look,
    Take(Take),
    Release(PartitionSet),
}

/// Work on its way to the settling connection and back.
pub(super) enum Settling {
    Settle(Vec<Settlement>),
    Settled(Vec<Settlement>, SettleReport),
    /// A sign of life, and when it was sent.
    Announce(Moment),
    Order(Order),
    /// Done; now who owns what is to be read.
    Look {
        renewed: Option<Moment>,
        released: PartitionSet,
    },
    Looked {
        leases: Leases,
        renewed: Option<Moment>,
        released: PartitionSet,
    },
}

impl Node {
    /// Something reaches the database over the settling connection, or its answer the relay.
    pub(super) fn settle(&mut self, table: &mut Table, now: Moment, wall: SystemTime) {
        self.settling = match self.settling.take() {
            Some(Settling::Settle(batch)) => {
                let report = table.settle(self.token, &batch);
                Some(Settling::Settled(batch, report))
            }
            Some(Settling::Settled(batch, report)) => {
                self.flow.settled(&report);
                let locked = |one: &Settlement| report.locked.contains(&one.ticket);
                let stuck: Vec<_> = batch.into_iter().filter(locked).collect();
                let partitions = stuck.iter().map(|one| one.partition).collect();
                self.flow.stuck(stuck.len(), partitions, now);
                self.to_settle.extend(stuck);
                None
            }
            Some(Settling::Announce(sent)) => {
                let at = table.now();
                table.leases.announce(&self.sign(), at);
                let (renewed, released) = (Some(sent), PartitionSet::NONE);
                Some(Settling::Look { renewed, released })
            }
            Some(Settling::Order(order)) => {
                let released = self.obey(&order, table);
                let renewed = None;
                Some(Settling::Look { renewed, released })
            }
            Some(Settling::Look { renewed, released }) => Some(Settling::Looked {
                leases: table.leases.look(table.now()),
                renewed,
                released,
            }),
            Some(Settling::Looked {
                leases,
                renewed,
                released,
            }) => {
                self.flow.released(&released);
                self.saw(&leases, renewed, now, wall);
                None
            }
            None => self.next_errand(now),
        };
    }

    fn next_errand(&mut self, now: Moment) -> Option<Settling> {
        let pace = LEASE / 3;
        if self.announced.is_none_or(|last| now.since(last) >= pace) {
            self.announced = Some(now);
            return Some(Settling::Announce(now));
        }
        if let Some(order) = self.orders.pop_front() {
            return Some(Settling::Order(order));
        }
        let any = !self.to_settle.is_empty();
        any.then(|| Settling::Settle(self.to_settle.drain(..).collect()))
    }

    fn obey(&self, order: &Order, table: &mut Table) -> PartitionSet {
        match order {
            Order::Look => PartitionSet::NONE,
            Order::Take(take) => {
                table.leases.take(self.token, take);
                PartitionSet::NONE
            }
            Order::Release(partitions) => {
                table.leases.release(self.token, partitions);
                *partitions
            }
        }
    }

    fn sign(&self) -> Announcement {
        let connected = ("connected".to_owned(), String::new());
        let (instance, lease) = (self.token, LEASE);
        Announcement {
            instance,
            name: String::new(),
            version: String::new(),
            ready: true,
            waits_for: None,
            database: connected.clone(),
            broker: connected,
            last_confirm: None,
            lease,
            partitions: 0,
            held_back: Vec::new(),
        }
    }

    fn saw(&mut self, leases: &Leases, renewed: Option<Moment>, now: Moment, wall: SystemTime) {
        let plan = self.ownership.look(leases, &self.flow.leaving(), now, wall);
        let fence = renewed.map_or(Moment::ORIGIN, |sent| self.ownership.fence(sent));
        self.flow.hold(plan.held, fence);
        self.look_at = Some(plan.look_at);
        if self.draining {
            return;
        }
        self.flow.hand_over(&plan.surplus);
        if let Some(take) = plan.take {
            self.orders.push_back(Order::Take(take));
        }
    }

    /// The settling connection breaks: what was on its way was done or not, and nobody knows.
    pub(super) fn lose_settler(&mut self, table: &mut Table, dice: &mut Dice) {
        let done = dice.once_in(2);
        let batch = match self.settling.take() {
            Some(Settling::Settle(batch)) => {
                if done {
                    table.settle(self.token, &batch);
                }
                batch
            }
            Some(Settling::Settled(batch, _)) => batch,
            Some(Settling::Order(order)) => {
                if done {
                    self.obey(&order, table);
                }
                Vec::new()
            }
            Some(Settling::Announce(_) | Settling::Look { .. } | Settling::Looked { .. })
            | None => Vec::new(),
        };
        for settlement in batch.into_iter().rev() {
            self.to_settle.push_front(settlement);
        }
        self.flow.settler(false);
        self.flow.settler(true);
        self.look_at = None;
        self.announced = None;
    }
}
