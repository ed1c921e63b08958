//! Turns what was received into JSON, for keeping in `jsonb`.
//!
//! What JSON or PostgreSQL cannot hold is kept as near as possible: U+0000 becomes U+FFFD, bytes
//! that are not UTF-8 become `{"base16": …}`, and a number that is none becomes its name.

use lapin::BasicProperties;
use lapin::types::AMQPValue;
use serde_json::{Map, Number, Value, json};

/// Deeper levels of nested headers are dropped, so that no header can overflow the stack.
const DEEPEST: usize = 64;

/// The headers as an object.
pub(super) fn headers(properties: &BasicProperties) -> Value {
    let mut object = Map::new();
    if let Some(table) = properties.headers().as_ref() {
        for (name, value) in table.inner() {
            object.insert(text(name.as_str()), json_of(value, DEEPEST));
        }
    }
    Value::Object(object)
}

/// The properties that are set, other than headers and message-id, by their names in AMQP with
/// underscores.
pub(super) fn properties(properties: &BasicProperties) -> Value {
    let mut object = Map::new();
    for (name, value) in [
        ("content_type", properties.content_type()),
        ("content_encoding", properties.content_encoding()),
        ("correlation_id", properties.correlation_id()),
        ("reply_to", properties.reply_to()),
        ("expiration", properties.expiration()),
        ("type", properties.kind()),
        ("user_id", properties.user_id()),
        ("app_id", properties.app_id()),
        ("cluster_id", properties.cluster_id()),
    ] {
        if let Some(value) = value {
            object.insert(name.to_owned(), Value::String(text(value.as_str())));
        }
    }
    for (name, value) in [
        ("delivery_mode", properties.delivery_mode().map(u64::from)),
        ("priority", properties.priority().map(u64::from)),
        ("timestamp", *properties.timestamp()),
    ] {
        if let Some(value) = value {
            object.insert(name.to_owned(), json!(value));
        }
    }
    Value::Object(object)
}

fn json_of(value: &AMQPValue, deepest: usize) -> Value {
    let Some(deepest) = deepest.checked_sub(1) else {
        return Value::Null;
    };
    match value {
        AMQPValue::Boolean(value) => json!(value),
        AMQPValue::ShortShortInt(value) => json!(value),
        AMQPValue::ShortShortUInt(value) => json!(value),
        AMQPValue::ShortInt(value) => json!(value),
        AMQPValue::ShortUInt(value) => json!(value),
        AMQPValue::LongInt(value) => json!(value),
        AMQPValue::LongUInt(value) => json!(value),
        AMQPValue::LongLongInt(value) => json!(value),
        AMQPValue::Timestamp(value) => json!(value),
        AMQPValue::Float(value) => float(f64::from(*value)),
        AMQPValue::Double(value) => float(*value),
        AMQPValue::DecimalValue(value) => {
            json!({"decimal": value.value, "scale": value.scale})
        }
        AMQPValue::ShortString(value) => Value::String(text(value.as_str())),
        AMQPValue::LongString(value) => bytes(value.as_bytes()),
        AMQPValue::ByteArray(value) => bytes(value.as_slice()),
        AMQPValue::FieldArray(list) => {
            let list = list.as_slice().iter();
            Value::Array(list.map(|value| json_of(value, deepest)).collect())
        }
        AMQPValue::FieldTable(table) => {
            let entries = table.inner().iter();
            let entry = |(name, value): (&lapin::types::ShortString, _)| {
                (text(name.as_str()), json_of(value, deepest))
            };
            Value::Object(entries.map(entry).collect())
        }
        AMQPValue::Void => Value::Null,
    }
}

/// JSON has no infinity and no NaN.
fn float(value: f64) -> Value {
    Number::from_f64(value).map_or_else(|| Value::String(value.to_string()), Value::Number)
}

fn bytes(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(utf8) => Value::String(text(utf8)),
        Err(_) => {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            json!({ "base16": digits })
        }
    }
}

/// `jsonb` refuses U+0000 (PostgreSQL manual, "JSON Types").
fn text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use lapin::types::{FieldArray, FieldTable, LongString};

    use super::*;

    fn with(name: &str, value: AMQPValue) -> Value {
        let mut table = FieldTable::default();
        table.insert(name.into(), value);
        headers(&BasicProperties::default().with_headers(table))
    }

    #[test]
    fn types_are_kept() {
        let mut nested = FieldArray::default();
        nested.push(AMQPValue::Void);
        nested.push(AMQPValue::Double(0.5));
        for (value, expected) in [
            (AMQPValue::LongLongInt(-7), json!(-7)),
            (AMQPValue::Boolean(true), json!(true)),
            (AMQPValue::LongString(LongString::from("ü")), json!("ü")),
            (AMQPValue::FieldArray(nested), json!([null, 0.5])),
            (AMQPValue::Double(f64::NAN), json!("NaN")),
            (
                AMQPValue::ByteArray(vec![0xff, 0].into()),
                json!({"base16": "ff00"}),
            ),
        ] {
            assert_eq!(with("h", value), json!({ "h": expected }));
        }
        assert_eq!(headers(&BasicProperties::default()), json!({}));
    }

    #[test]
    fn nothing_is_left_that_postgresql_refuses() {
        let value = AMQPValue::LongString(LongString::from("a\0b"));
        assert_eq!(with("n\0", value), json!({"n\u{fffd}": "a\u{fffd}b"}));
    }

    #[test]
    fn deep_nesting_is_cut() {
        let mut value = AMQPValue::Boolean(true);
        for _ in 0..500 {
            let mut list = FieldArray::default();
            list.push(value);
            value = AMQPValue::FieldArray(list);
        }
        assert!(with("deep", value).to_string().len() < 200);
    }

    #[test]
    fn properties_have_the_names_of_the_outbox() {
        let set = BasicProperties::default()
            .with_type("paid".into())
            .with_priority(3)
            .with_timestamp(1_700_000_000);
        let expected = json!({"type": "paid", "priority": 3, "timestamp": 1_700_000_000});
        assert_eq!(properties(&set), expected);
    }
}
