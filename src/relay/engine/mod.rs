//! The tasks around the rules: connect, carry out, report back.
//!
//! One engine task owns the [`Flow`](super::rules) and does what it decides. The reader, the
//! settler, the link and one task for each channel do the waiting; every wait has a deadline,
//! every failed connection is tried again with backoff and jitter, for ever.

mod adjust;
mod apart;
mod backlog;
mod board;
mod channel;
mod desk;
mod end;
mod event;
mod flights;
mod herald;
mod link;
mod news;
mod obedience;
mod observer;
mod obstacles;
mod pace;
mod ration;
mod reader;
mod refusals;
mod renewal;
mod retry;
mod rhythm;
mod run;
mod sessions;
mod settler;
mod start;
mod tenure;
mod tray;
mod upkeep;

use std::sync::Arc;
use std::time::Duration;

use crate::broker::Broker;
use crate::message::Rules;
use crate::relay::rules::FlowLimits;
use crate::runtime::Health;
use crate::store::Store;

pub use adjust::Adjuster;
pub use end::{Ended, Mode};
pub use herald::{HEARTBEAT, Identity};
pub use observer::{Fate, Landing, Observer, Server};

/// What an engine is told at its start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What bounds the flow.
    pub limits: FlowLimits,
    /// What a message must be like. Frame size and content type are found out on connecting.
    pub rules: Rules,
    /// Who this relay is.
    pub identity: Identity,
    /// How long sent rows are kept.
    pub retention: Duration,
    /// How long a stop may take, from the first word to the end of the last task.
    pub shutdown_grace: Duration,
}

impl Settings {
    /// What of the grace period is left for goodbyes to both servers, after the drain. They take
    /// a round trip each, unless a server says nothing.
    pub(super) fn goodbye(&self) -> Duration {
        (self.shutdown_grace / 5).min(Duration::from_secs(3))
    }
}

/// A relay between a store and a broker.
pub struct Relay<S, B> {
    settings: Settings,
    store: S,
    broker: B,
    health: Health,
    adjuster: Adjuster,
    observer: Arc<dyn Observer>,
}

impl<S: Store, B: Broker> Relay<S, B> {
    /// A relay that is not running yet. It tells `health` how it is doing.
    pub fn new(settings: Settings, store: S, broker: B, health: Health) -> Self {
        let adjuster = Adjuster::new(settings.limits.clone());
        Self {
            settings,
            store,
            broker,
            health,
            adjuster,
            observer: Arc::new(observer::Nobody),
        }
    }

    /// Tells this one what happens.
    #[must_use]
    pub fn observed_by(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = observer;
        self
    }

    /// Reaches into this relay while it runs.
    #[must_use]
    pub fn adjuster(&self) -> Adjuster {
        self.adjuster.clone()
    }
}
