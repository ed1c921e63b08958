//! Why a row can never be sent as it is: a bounded class for counting, a sentence for people.
//!
//! The sentence is stored with the quarantined row and logged, so it never holds a payload or
//! a header's value, and what it does quote is cut short and free of control characters.

use std::fmt;

/// What kind of thing makes a row unfit. A bounded set: it becomes a metric label and the
/// `reason_class` of a quarantined row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReasonClass {
    /// The exchange matches no pattern of `relay.allowed_exchanges`.
    NotAllowed,
    /// The payload is SQL NULL.
    NullPayload,
    /// The payload is larger than `relay.max_message_size`.
    TooLarge,
    /// `exchange` is no AMQP short string.
    InvalidExchange,
    /// `routing_key` is no AMQP short string.
    InvalidRoutingKey,
    /// `message_id` is no AMQP short string.
    InvalidMessageId,
    /// `type` is no AMQP short string.
    InvalidType,
    /// `correlation_id` is no AMQP short string.
    InvalidCorrelationId,
    /// `content_type` is no AMQP short string.
    InvalidContentType,
    /// `created_at` cannot be an AMQP timestamp.
    InvalidCreatedAt,
    /// `headers` cannot be an AMQP table.
    InvalidHeaders,
    /// `headers` sets a name that belongs to the relay.
    ReservedHeader,
    /// All properties and headers together exceed one frame.
    HeadersTooLarge,
    /// `properties` names something unknown or holds a value the broker refuses.
    InvalidProperties,
    /// The broker refused this very message time and again.
    Refused,
    /// It reached no queue for `retry.unroutable_after`.
    Unroutable,
    /// Its destination was missing or refused it for `retry.destination_after`.
    DestinationRefused,
    /// An earlier row of its key is in quarantine. Only ever a reason to wait, with
    /// `quarantine.successors = "wait"`.
    BehindQuarantined,
}

impl ReasonClass {
    /// Every class, for metrics that want to exist before their first count.
    pub const ALL: [Self; 18] = [
        Self::NotAllowed,
        Self::NullPayload,
        Self::TooLarge,
        Self::InvalidExchange,
        Self::InvalidRoutingKey,
        Self::InvalidMessageId,
        Self::InvalidType,
        Self::InvalidCorrelationId,
        Self::InvalidContentType,
        Self::InvalidCreatedAt,
        Self::InvalidHeaders,
        Self::ReservedHeader,
        Self::HeadersTooLarge,
        Self::InvalidProperties,
        Self::Refused,
        Self::Unroutable,
        Self::DestinationRefused,
        Self::BehindQuarantined,
    ];

    /// The word stored in `reason_class` and used as a label. Never changes within 1.x.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotAllowed => "not_allowed",
            Self::NullPayload => "null_payload",
            Self::TooLarge => "too_large",
            Self::InvalidExchange => "invalid_exchange",
            Self::InvalidRoutingKey => "invalid_routing_key",
            Self::InvalidMessageId => "invalid_message_id",
            Self::InvalidType => "invalid_type",
            Self::InvalidCorrelationId => "invalid_correlation_id",
            Self::InvalidContentType => "invalid_content_type",
            Self::InvalidCreatedAt => "invalid_created_at",
            Self::InvalidHeaders => "invalid_headers",
            Self::ReservedHeader => "reserved_header",
            Self::HeadersTooLarge => "headers_too_large",
            Self::InvalidProperties => "invalid_properties",
            Self::Refused => "refused",
            Self::Unroutable => "unroutable",
            Self::DestinationRefused => "destination_refused",
            Self::BehindQuarantined => "behind_quarantined",
        }
    }
}

impl fmt::Display for ReasonClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a row can never be sent as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{class}: {reason}")]
pub struct Unfit {
    /// For counting.
    pub class: ReasonClass,
    /// Names the value, its size and the limit; safe to store and to log.
    pub reason: String,
}

impl Unfit {
    pub(super) fn new(class: ReasonClass, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self { class, reason }
    }
}

/// How much of a value a reason quotes, in characters.
const QUOTED: usize = 64;

/// A value in quotes: control characters and quotes escaped, cut after 64 characters.
pub(super) fn quoted(value: &str) -> String {
    let mut text = String::with_capacity(value.len().min(QUOTED) + 4);
    text.push('"');
    let mut characters = value.chars();
    for character in characters.by_ref().take(QUOTED) {
        text.extend(character.escape_debug());
    }
    if characters.next().is_some() {
        text.push('…');
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_quoted_value_is_short_and_printable() {
        assert_eq!(quoted("orders"), r#""orders""#);
        assert_eq!(quoted("a\n\u{1b}[31m\"b"), r#""a\n\u{1b}[31m\"b""#);
        let long = quoted(&"é".repeat(1000));
        assert_eq!(long.chars().count(), QUOTED + 3);
        assert!(long.ends_with("…\""));
        assert_eq!(quoted(&"x".repeat(QUOTED)).chars().count(), QUOTED + 2);
    }

    #[test]
    fn every_class_has_its_own_word() {
        let words: BTreeSet<_> = ReasonClass::ALL.iter().map(|c| c.as_str()).collect();
        assert_eq!(words.len(), ReasonClass::ALL.len());
        for word in words {
            assert!(word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
        }
    }
}
