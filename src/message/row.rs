//! A row of the outbox as the store read it: plain values, nothing judged yet.

use std::fmt;
use std::time::SystemTime;

use bytes::Bytes;

/// The row's `id`: its place in insertion order, and what settlements and returns refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowId(pub i64);

impl fmt::Display for RowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The payload column of a row.
#[derive(Clone, PartialEq, Eq)]
pub enum Body {
    /// The bytes as PostgreSQL stores them; published without re-encoding.
    Bytes(Bytes),
    /// SQL NULL, which the outbox table forbids but a user's own relation may hold.
    Null,
    /// Larger than `max_message_size`; measured in bytes and deliberately not fetched.
    Oversized(u64),
}

impl Body {
    /// How many bytes of memory the body occupies in the relay.
    #[must_use]
    pub fn buffered(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Null | Self::Oversized(_) => 0,
        }
    }
}

/// Prints sizes only: a payload never reaches a log.
impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "Bytes({} bytes)", bytes.len()),
            Self::Null => f.write_str("Null"),
            Self::Oversized(size) => write!(f, "Oversized({size} bytes)"),
        }
    }
}

/// A committed, pending row of the outbox. `headers` and `properties` are the JSON text of
/// their `jsonb` columns; reading them is the business of validation, so that one malformed
/// row is its own fault only.
#[derive(Clone, PartialEq, Eq)]
pub struct OutboxRow {
    /// `id`.
    pub id: RowId,
    /// `message_id`: the AMQP message-id, the same on every attempt.
    pub message_id: String,
    /// `exchange`; empty for the default exchange.
    pub exchange: String,
    /// `routing_key`.
    pub routing_key: String,
    /// `ordering_key`; `None` for an unordered row.
    pub ordering_key: Option<String>,
    /// `payload`.
    pub payload: Body,
    /// `headers` as JSON text.
    pub headers: Option<String>,
    /// `type`.
    pub message_type: Option<String>,
    /// `correlation_id`.
    pub correlation_id: Option<String>,
    /// `content_type`; `None` takes the default of the payload's SQL type.
    pub content_type: Option<String>,
    /// `properties` as JSON text: the rarer AMQP properties.
    pub properties: Option<String>,
    /// `created_at`, by the database's clock.
    pub created_at: SystemTime,
    /// `attempts`: charged attempts so far.
    pub attempts: u32,
}

/// Names the row and its destination; never its payload, headers or properties.
impl fmt::Debug for OutboxRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxRow")
            .field("id", &self.id)
            .field("message_id", &self.message_id)
            .field("exchange", &self.exchange)
            .field("routing_key", &self.routing_key)
            .field("payload", &self.payload)
            .field("attempts", &self.attempts)
            .finish_non_exhaustive()
    }
}
