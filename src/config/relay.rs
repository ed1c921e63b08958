//! `[relay]`: how much at once, in which order, for how long.

use std::time::Duration;

use super::ByteSize;
use super::reader::{Reader, accept, not_empty, within};
use super::setting::Choice;

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

impl Choice for Ordering {
    const WORDS: &'static [(&'static str, Self)] = &[("key", Self::Key), ("none", Self::None)];
}

impl RelaySection {
    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        let defaults = Self::default();
        let patterns = |items: &Vec<String>| items.iter().try_for_each(not_empty);
        let section = Self {
            batch_size: reader.value("relay.batch_size", defaults.batch_size, within(1, 10_000)),
            max_in_flight: reader.value(
                "relay.max_in_flight",
                defaults.max_in_flight,
                within(1, 100_000),
            ),
            channels: reader.value("relay.channels", defaults.channels, within(1, 256)),
            max_buffered_bytes: reader.value(
                "relay.max_buffered_bytes",
                defaults.max_buffered_bytes,
                within(ByteSize::from_mib(1), ByteSize::from_mib(1 << 20)),
            ),
            max_message_size: reader.value(
                "relay.max_message_size",
                defaults.max_message_size,
                within(ByteSize::from_bytes(1), ByteSize::from_mib(512)),
            ),
            poll_interval: reader.value(
                "relay.poll_interval",
                defaults.poll_interval,
                within(Duration::from_millis(10), Duration::from_secs(600)),
            ),
            ordering: reader.value("relay.ordering", defaults.ordering, accept),
            lease: reader.value(
                "relay.lease",
                defaults.lease,
                within(Duration::from_secs(1), Duration::from_secs(600)),
            ),
            shutdown_grace: reader.value(
                "relay.shutdown_grace",
                defaults.shutdown_grace,
                within(Duration::from_secs(1), Duration::from_secs(3600)),
            ),
            mandatory: reader.value("relay.mandatory", defaults.mandatory, accept),
            optional_exchanges: reader.value(
                "relay.optional_exchanges",
                defaults.optional_exchanges,
                patterns,
            ),
            allowed_exchanges: reader.value(
                "relay.allowed_exchanges",
                defaults.allowed_exchanges,
                patterns,
            ),
        };
        section.check(reader);
        section
    }

    fn check(&self, reader: &mut Reader<'_>) {
        let (window, channels) = (self.max_in_flight, self.channels);
        reader.rule(
            &["relay.max_in_flight", "relay.channels"],
            window >= channels,
            || {
                format!(
                    "max_in_flight ({window}) must not be smaller than channels ({channels}): each \
                     channel needs room for one message"
                )
            },
        );
        let (message, buffer) = (self.max_message_size, self.max_buffered_bytes);
        reader.rule(
            &["relay.max_message_size", "relay.max_buffered_bytes"],
            message <= buffer,
            || {
                format!(
                    "max_message_size ({message}) must not be larger than max_buffered_bytes \
                     ({buffer}): such a message could never be read"
                )
            },
        );
        reader.rule(
            &["relay.allowed_exchanges"],
            !self.allowed_exchanges.is_empty(),
            || {
                "must not be empty, or nothing could be sent; \"*\" allows every exchange"
                    .to_owned()
            },
        );
    }
}
