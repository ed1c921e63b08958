//! `[relay]`: how much at once, in which order, for how long.

use std::time::Duration;

use super::ByteSize;

/// Whether rows of one ordering key keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordering {
    /// One unconfirmed row per ordering key.
    Key,
    /// No order; also right for relations without a bigint identity.
    None,
}

/// The keys of `[relay]`.
#[derive(Clone, Debug)]
pub struct RelaySection {
    /// `batch_size`: rows of one read or settlement.
    pub batch_size: usize,
    /// `max_in_flight`: published and unconfirmed rows of all channels together.
    pub max_in_flight: usize,
    /// `channels`: AMQP channels that publish side by side.
    pub channels: usize,
    /// `max_buffered_bytes`: message bytes held in memory at once.
    pub max_buffered_bytes: ByteSize,
    /// `max_message_size`: a larger payload is quarantined without being fetched.
    pub max_message_size: ByteSize,
    /// `poll_interval`: the longest time between two reads.
    pub poll_interval: Duration,
    /// `ordering`.
    pub ordering: Ordering,
    /// `lease`: how long partitions stay with a relay that no longer renews.
    pub lease: Duration,
    /// `shutdown_grace`: how long a drain may take.
    pub shutdown_grace: Duration,
    /// `mandatory`: whether a message that reaches no queue is refused.
    pub mandatory: bool,
    /// `optional_exchanges`: patterns published without `mandatory`.
    pub optional_exchanges: Vec<String>,
    /// `allowed_exchanges`: patterns; a row outside is quarantined.
    pub allowed_exchanges: Vec<String>,
}

impl Default for RelaySection {
    fn default() -> Self {
        Self {
            batch_size: 500,
            max_in_flight: 1000,
            channels: 4,
            max_buffered_bytes: ByteSize::from_mib(64),
            max_message_size: ByteSize::from_mib(16),
            poll_interval: Duration::from_secs(1),
            ordering: Ordering::Key,
            lease: Duration::from_secs(15),
            shutdown_grace: Duration::from_secs(25),
            mandatory: true,
            optional_exchanges: Vec::new(),
            allowed_exchanges: vec!["*".to_owned()],
        }
    }
}
