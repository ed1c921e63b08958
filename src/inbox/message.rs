//! What a handler is given.

use std::fmt;

use bytes::Bytes;
use serde_json::Value;

/// One message, in one attempt.
#[derive(Clone, PartialEq)]
pub struct Message {
    /// Its identity, the same on every attempt, restart and replay: the key to ask a downstream
    /// service with.
    pub message_id: String,
    /// Header `x-outbox-key`: messages of one key are handled one at a time, in order.
    pub ordering_key: Option<String>,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// An earlier owner vanished: it may have acted, and nobody knows. Ask the downstream service,
    /// or repeat the request with the same key if it honours keys.
    pub taken_over: bool,
    /// Body.
    pub payload: Bytes,
    /// Headers, a JSON object.
    pub headers: Value,
    /// The other properties, a JSON object: `type`, `content_type`, `correlation_id` …
    pub properties: Value,
    /// Exchange it was published to.
    pub exchange: String,
    /// Its routing key.
    pub routing_key: String,
    /// Header `schema-version`, where the application sets it.
    pub schema_version: Option<String>,
}

impl Message {
    /// The property `type`.
    #[must_use]
    pub fn kind(&self) -> Option<&str> {
        self.properties.get("type").and_then(Value::as_str)
    }
}

/// Without the contents, which may not reach a log.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("message_id", &self.message_id)
            .field("ordering_key", &self.ordering_key)
            .field("attempt", &self.attempt)
            .field("taken_over", &self.taken_over)
            .field("bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn contents_are_not_shown() {
        let message = Message {
            message_id: "m".to_owned(),
            ordering_key: None,
            attempt: 1,
            taken_over: false,
            payload: Bytes::from_static(b"canary"),
            headers: json!({"h": "canary"}),
            properties: json!({"type": "paid"}),
            exchange: String::new(),
            routing_key: String::new(),
            schema_version: None,
        };
        assert!(!format!("{message:?}").contains("canary"));
        assert_eq!(message.kind(), Some("paid"));
    }
}
