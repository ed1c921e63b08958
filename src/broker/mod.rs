//! The publisher seam: what the relay needs from a broker, and nothing of how it is done.
//!
//! Two implementations exist, the real one over AMQP (`amqp`) and an in-memory twin
//! (`memory`); `tests/contract` runs one suite against both.

mod amqp;
pub mod memory;
mod outcome;
mod patience;

use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;

use crate::message::{Publication, RowId};

pub use amqp::{
    AmqpBroker, AmqpChannel, AmqpLink, Greeting, Receipt, Received, Returned, Subscription,
    Wanted as WantedQueue,
};
pub use outcome::{
    BrokerError, ChannelLost, Confirmed, LinkState, LossCause, Outcome, TCP_CONNECT,
};

/// A place that can be connected to.
pub trait Broker: Send + Sync + 'static {
    /// One established connection.
    type Link: Link;

    /// Connects, authenticates and negotiates, each within its deadline.
    ///
    /// # Errors
    /// [`BrokerError`] names the host, the step that failed and why.
    fn connect(&self) -> impl Future<Output = Result<Self::Link, BrokerError>> + Send;
}

/// One connection to the broker.
pub trait Link: Send + Sync + 'static {
    /// A channel in confirm mode.
    type Channel: Channel;

    /// Opens a channel and puts it into confirm mode. The deadline stands while the broker
    /// blocks. Cancel safe.
    ///
    /// # Errors
    /// [`BrokerError`] if the connection is gone or does not answer in time.
    fn open_channel(&self) -> impl Future<Output = Result<Self::Channel, BrokerError>> + Send;

    /// Asks by passive declaration, on a side channel, whether the exchange exists.
    /// The default exchange (`""`) always does and is not asked for. The deadline stands while
    /// the broker blocks. Cancel safe.
    ///
    /// # Errors
    /// [`BrokerError`] if no answer could be had.
    fn exchange_exists(
        &self,
        exchange: &str,
    ) -> impl Future<Output = Result<bool, BrokerError>> + Send;

    /// The negotiated largest frame, in bytes.
    fn frame_max(&self) -> u32;

    /// The user as whom the connection is logged in, if it is known: what a message's `user_id`
    /// must be. A client certificate does not tell.
    fn login(&self) -> Option<&str> {
        None
    }

    /// Open, blocked by an alarm, or lost; the last word is always `Lost`.
    fn state(&self) -> watch::Receiver<LinkState>;

    /// Says goodbye within a bounded time, then drops the connection whatever was answered.
    fn close(self) -> impl Future<Output = ()> + Send;
}

/// One channel in confirm mode, owned by one task and never shared: a lapin channel cloned
/// between tasks attaches confirms to the wrong messages.
pub trait Channel: Send + 'static {
    /// Hands a batch to the channel in order. A row must not be in flight twice on one channel:
    /// returned messages are told apart by the row's id. Does not wait for the socket, let alone for
    /// confirms: [`Channel::judged`] drives both.
    fn publish(&mut self, batch: Vec<Arc<Publication>>) -> impl Future<Output = ()> + Send;

    /// Waits until the fate of at least one publication is certain. Every publication is
    /// reported exactly once, either here or in `ChannelLost::unknown`. With nothing in flight
    /// it waits until the channel is lost. Cancel safe.
    ///
    /// # Errors
    /// [`ChannelLost`], after which the channel must be thrown away.
    fn judged(&mut self)
    -> impl Future<Output = Result<Vec<(RowId, Outcome)>, ChannelLost>> + Send;
}
