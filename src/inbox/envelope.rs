//! Reads a delivery's envelope. Pure: the body is the handler's business.

use bytes::Bytes;
use serde_json::Value;

use crate::broker::Received;

/// Longest ordering key that `inbox.claim` takes, in bytes.
const LONGEST_KEY: usize = 1024;

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
    let parts = identity(received.message_id.as_deref())
        .and_then(|id| Ok((id, ordering_key(received.headers.get("x-outbox-key"))?)));
    match parts {
        Ok((id, key)) => {
            envelope.message_id = id;
            envelope.ordering_key = key;
            (envelope, None)
        }
        Err(fault) => (envelope, Some(fault)),
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
            Err("the property message-id contains the character U+0000".to_owned())
        }
        Some(id) => Ok(id.to_owned()),
    }
}

fn ordering_key(header: Option<&Value>) -> Result<Option<String>, String> {
    let key = match header {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(key)) => key.clone(),
        Some(Value::Number(key)) => key.to_string(),
        Some(Value::Bool(_) | Value::Array(_) | Value::Object(_)) => {
            return Err("the header x-outbox-key is not a text".to_owned());
        }
    };
    if key.len() > LONGEST_KEY {
        let bytes = key.len();
        return Err(format!(
            "the header x-outbox-key has {bytes} bytes; at most {LONGEST_KEY} are taken"
        ));
    }
    Ok(Some(key).filter(|key| !key.is_empty()))
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
    fn a_key_is_a_text_of_bounded_length() {
        for (header, key) in [
            (None, None),
            (Some(json!(null)), None),
            (Some(json!("")), None),
            (Some(json!("order 7")), Some("order 7")),
            (Some(json!(7)), Some("7")),
        ] {
            assert_eq!(ordering_key(header.as_ref()), Ok(key.map(str::to_owned)));
        }
        for header in [json!(true), json!([]), json!({}), json!("k".repeat(1025))] {
            assert!(ordering_key(Some(&header)).is_err(), "{header}");
        }
    }
}
