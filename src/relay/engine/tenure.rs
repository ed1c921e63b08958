//! Carries out what the rules of ownership decide: what is held, taken, handed over.

use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use super::event::tell;
use super::herald::Identity;
use super::settler::Order;
use crate::relay::rules::{Flow, Leases, Ownership, Plan};
use crate::runtime::{Clock, Moment};

/// This relay's leases.
pub(super) struct Tenure {
    ownership: Ownership,
    orders: mpsc::UnboundedSender<Order>,
    /// A reading session is wanted.
    reads: watch::Sender<bool>,
    /// When to look again; `None` while an order is on its way, whose end tells.
    look_at: Option<Moment>,
    /// What this relay does not own is owned by others who are certainly alive.
    settled: bool,
    stands_by: bool,
}

/// What came of a look at the leases.
pub(super) struct Changed {
    /// Lost to others without having been handed over.
    pub(super) lost: usize,
    /// Other relays own everything.
    pub(super) stands_by: bool,
}

impl Tenure {
    pub(super) fn new(
        identity: &Identity,
        orders: mpsc::UnboundedSender<Order>,
        reads: watch::Sender<bool>,
    ) -> Self {
        Self {
            ownership: Ownership::new(identity.instance, identity.lease),
            orders,
            reads,
            look_at: None,
            settled: false,
            stands_by: false,
        }
    }

    /// Somebody looked at the leases.
    pub(super) fn saw(
        &mut self,
        flow: &mut Flow,
        leases: &Leases,
        renewed: Option<Moment>,
        draining: bool,
        now: Moment,
    ) -> Changed {
        let plan = self
            .ownership
            .look(leases, &flow.leaving(), now, Clock.wall());
        let fence = renewed.map_or(Moment::ORIGIN, |sent| self.ownership.fence(sent));
        let before = flow.owned();
        let lost = flow.hold(plan.held, fence).len();
        if lost > 0 {
            warn!(partitions = lost, "other relays took partitions over");
        }
        self.settled = plan.settled;
        self.look_at = Some(plan.look_at);
        if !draining {
            self.follow(flow, plan);
        }
        let held = flow.owned();
        if held != before && !self.stands_by {
            info!(partitions = held.len(), "owns partitions");
        }
        Changed {
            lost,
            stands_by: self.stands_by,
        }
    }

    fn follow(&mut self, flow: &mut Flow, plan: Plan) {
        if !plan.surplus.is_empty() {
            let partitions = plan.surplus.len();
            info!(partitions, "hands partitions over to other relays");
            flow.hand_over(&plan.surplus);
        }
        if plan.stands_by != std::mem::replace(&mut self.stands_by, plan.stands_by)
            && plan.stands_by
        {
            info!("other relays own everything; standing by");
        }
        let idle = plan.stands_by && flow.leaving().is_empty();
        self.reads.send_if_modified(|reads| {
            let changed = *reads == idle;
            *reads = !idle;
            changed
        });
        if let Some(take) = plan.take {
            if !take.dead.is_empty() {
                let relays = take.dead.len();
                warn!(relays, "takes over from relays that gave no sign of life");
            }
            self.order(Order::Take(take));
        }
    }

    /// Gives back what nothing is under way of any more, and looks again when it is time to.
    pub(super) fn turn(&mut self, flow: &mut Flow, now: Moment) {
        let free = flow.take_releases();
        if !free.is_empty() {
            self.order(Order::Release(free));
        }
        if self.look_at.is_some_and(|at| at <= now) {
            self.order(Order::Look);
        }
    }

    /// A read saw partitions that nobody owns.
    pub(super) fn saw_orphans(&mut self, now: Moment) {
        if let Some(at) = &mut self.look_at {
            *at = now.min(*at);
        }
    }

    /// The session is gone, and orders with it.
    pub(super) fn cut(&mut self) {
        self.look_at = None;
        self.settled = false;
    }

    pub(super) fn look_at(&self) -> Option<Moment> {
        self.look_at
    }

    /// Is every partition in hands that are certainly alive?
    pub(super) fn settled(&self) -> bool {
        self.settled
    }

    fn order(&mut self, order: Order) {
        self.look_at = None;
        tell(&self.orders, order);
    }
}
