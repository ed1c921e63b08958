//! Reads a delivery's envelope. Pure: the body is the handler's business.

use bytes::Bytes;
use serde_json::Value;

use crate::broker::Received;

/// A quarter of what RabbitMQ 4 allows unless told otherwise.
const MANY_RETURNS: u64 = 5;

/// What of a delivery is kept in the inbox.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Envelope {
    pub(super) message_id: String,
    pub(super) ordering_key: Option<String>,
    pub(super) payload: Bytes,
    pub(super) headers: Value,
    pub(super) properties: Value,
    pub(super) exchange: String,
    pub(super) routing_key: String,
}

/// A delivery's envelope and, if it cannot be worked with, why.
pub(super) fn read(received: &Received) -> (Envelope, Option<String>) {
    let plain = |text: &str| text.replace('\0', "\u{fffd}");
    let mut envelope = Envelope {
        message_id: String::new(),
        ordering_key: None,
        payload: received.payload.clone(),
        headers: received.headers.clone(),
        properties: received.properties.clone(),
        exchange: plain(&received.exchange),
        routing_key: plain(&received.routing_key),
    };
    let mut faults = Vec::new();
    match identity(received.message_id.as_deref()) {
        Ok(id) => envelope.message_id = id,
        Err(fault) => faults.push(fault),
    }
    match ordering_key(received.headers.get("x-outbox-key")) {
        Ok(key) => envelope.ordering_key = key,
        Err(fault) => faults.push(fault),
    }
    let fault = (!faults.is_empty()).then(|| faults.join("; "));
    (envelope, fault)
}

impl Envelope {
    /// Whether the broker had it back so often that it may soon give it up: somebody crashes again
    /// and again, with this one among his deliveries. Quorum queues count, others have no limit.
    pub(super) fn was_returned_often(&self) -> bool {
        let returns = self.headers.get("x-delivery-count").and_then(Value::as_u64);
        returns >= Some(MANY_RETURNS)
    }

    /// What any inbox can hold, whatever the database's encoding: the body, and the message id if
    /// it is plain.
    pub(super) fn bare(&self) -> Self {
        let id = self.message_id.as_str();
        Self {
            message_id: if id.is_ascii() { id } else { "" }.to_owned(),
            ordering_key: None,
            payload: self.payload.clone(),
            headers: Value::Null,
            properties: Value::Null,
            exchange: String::new(),
            routing_key: String::new(),
        }
    }
}

fn identity(message_id: Option<&str>) -> Result<String, String> {
    match message_id {
        None | Some("") => Err(
            "the property message-id is missing: without it copies of a message \
                                cannot be told from other messages"
                .to_owned(),
        ),
        Some(id) if id.contains('\0') => {
            Err("the property message-id contains the character U+0000 or is not UTF-8".to_owned())
        }
        Some(id) => Ok(id.to_owned()),
    }
}

fn ordering_key(header: Option<&Value>) -> Result<Option<String>, String> {
    let key = match header {
        None | Some(Value::Null) => None,
        Some(Value::String(key)) => Some(key.clone()),
        Some(Value::Number(key)) => Some(key.to_string()),
        Some(Value::Bool(_) | Value::Array(_) | Value::Object(_)) => {
            return Err("the header x-outbox-key is not a text".to_owned());
        }
    };
    Ok(key.filter(|key| !key.is_empty()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_message_without_identity_cannot_be_worked_with() {
        for id in [None, Some(""), Some("a\0b")] {
            assert!(identity(id).is_err(), "{id:?}");
        }
        assert_eq!(
            identity(Some("invoice:842:send")),
            Ok("invoice:842:send".to_owned())
        );
    }

    #[test]
    fn a_key_is_a_text() {
        for (header, key) in [
            (None, None),
            (Some(json!(null)), None),
            (Some(json!("")), None),
            (Some(json!("order 7")), Some("order 7")),
            (Some(json!(7)), Some("7")),
        ] {
            assert_eq!(ordering_key(header.as_ref()), Ok(key.map(str::to_owned)));
        }
        for header in [json!(true), json!([]), json!({})] {
            assert!(ordering_key(Some(&header)).is_err(), "{header}");
        }
    }
}
