//! What the tasks report to the engine, and how it hands decisions to them.

use std::sync::Arc;

use tokio::sync::mpsc;
use tracing::warn;

use crate::broker::{ChannelLost, Outcome};
use crate::message::{Publication, RowId};
use crate::relay::rules::{ChannelNo, Fetched, FlowLimits, Reading, SettleReport};
use crate::store::StoreError;

/// News for the engine.
pub(super) enum Event {
    /// A reading session stands; the content type of rows that name none.
    ReaderReady { content_type: &'static str },
    /// A reading session stands, but another relay publishes.
    StandBy,
    /// There is none, and why.
    ReaderLost(StoreError),
    /// What a read brought.
    Read(Reading),
    /// What a fetch brought.
    Fetched(Vec<(RowId, Fetched)>),
    /// A settling session stands.
    SettlerReady,
    /// There is none, and why.
    SettlerLost(StoreError),
    /// What was written down.
    Settled(SettleReport),
    /// A connection to the broker stands.
    LinkUp { frame_max: u32 },
    /// There is none, and why.
    LinkLost(String),
    /// The broker blocks the connection, and why, or no longer does.
    Blocked(Option<String>),
    /// A channel is open; publications for it go here.
    ChannelOpen {
        no: ChannelNo,
        publications: mpsc::UnboundedSender<Vec<Arc<Publication>>>,
    },
    /// Fates that are certain.
    Judged {
        no: ChannelNo,
        outcomes: Vec<(RowId, Outcome)>,
    },
    /// A channel ended. Publications that never reached it are among the unknown.
    ChannelLost { no: ChannelNo, lost: ChannelLost },
    /// Attempts are repeated by other rules from now on.
    Adjusted(FlowLimits),
    /// An exchange exists, or does not.
    ExchangeAnswered { exchange: String, exists: bool },
}

/// Where events go. The engine outlives its tasks, but for the moment of its end.
#[derive(Clone)]
pub(super) struct Events(mpsc::UnboundedSender<Event>);

impl Events {
    pub(super) fn channel() -> (Self, mpsc::UnboundedReceiver<Event>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    /// Reports. After the engine's end nobody listens any more, and nothing is lost by it: what
    /// was not settled is still pending.
    pub(super) fn report(&self, event: Event) {
        if self.0.send(event).is_err() {
            tracing::debug!("the engine has ended; late news is dropped");
        }
    }
}

/// Hands over. The tasks outlive the engine's turns, so that somebody listens.
pub(super) fn tell<T>(outlet: &mpsc::UnboundedSender<T>, decision: T) {
    if outlet.send(decision).is_err() {
        warn!("a task of the relay ended early");
    }
}
