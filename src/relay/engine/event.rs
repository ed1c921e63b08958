//! What the tasks report to the engine, and how it hands decisions to them.

use tokio::sync::mpsc;
use tracing::warn;

use super::channel::Batch;
use crate::broker::{ChannelLost, Outcome};
use crate::message::RowId;
use crate::relay::rules::{
    ChannelNo, Fetched, FlowLimits, Leases, PartitionSet, Reading, SettleReport,
};
use crate::runtime::Moment;
use crate::store::StoreError;

/// News for the engine.
pub(super) enum Event {
    /// A reading session stands; the content type of rows that name none.
    ReaderReady { content_type: &'static str },
    /// There is none, because none is wanted.
    ReaderAway,
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
    /// So many rows, of these partitions, were tried and cannot be written down for now.
    Stuck {
        rows: usize,
        partitions: PartitionSet,
    },
    /// Who is alive, and who owns what.
    Leases {
        leases: Leases,
        /// When the renewal was sent that it came after, if it did.
        renewed: Option<Moment>,
        /// What was given back before.
        released: PartitionSet,
    },
    /// A connection to the broker stands.
    LinkUp { frame_max: u32 },
    /// There is none, and why.
    LinkLost(String),
    /// The broker blocks the connection, and why, or no longer does.
    Blocked(Option<String>),
    /// A channel is open; what it is to publish goes here.
    ChannelOpen {
        no: ChannelNo,
        batches: mpsc::UnboundedSender<Batch>,
    },
    /// Handed to a channel and not published: it was too late.
    Unsent { no: ChannelNo, ids: Vec<RowId> },
    /// Fates that are certain.
    Judged {
        no: ChannelNo,
        outcomes: Vec<(RowId, Outcome)>,
    },
    /// A channel ended. Publications that never reached it are among the unknown.
    ChannelLost { no: ChannelNo, lost: ChannelLost },
    /// A connection apart could be made, or not, and why.
    Apart(Option<String>),
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
