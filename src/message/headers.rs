//! Turns the `headers` column into an AMQP table.
//!
//! Refuses what the broker would refuse or silently change; the size of the result is judged
//! by `publication`, together with the properties.

use super::field::{FieldTable, FieldValue, ShortText};
use super::json::{Json, is_integer};
use super::reason::{ReasonClass, Unfit, quoted};

/// Names that belong to the relay. RabbitMQ's names are case-sensitive, but a consumer's
/// library may not be, so no spelling of it is left to the row.
pub(super) const RESERVED: &str = "x-outbox-";

/// How deeply objects and lists may nest. Client libraries read tables recursively.
const NESTING: usize = 32;

/// Headers through which a publisher names further routing keys for the same exchange
/// (<https://www.rabbitmq.com/docs/sender-selected>).
///
/// They are allowed: they reach no exchange that the row could not name itself, and the message
/// is returned only if *none* of the keys routes it. RabbitMQ closes the channel if such a
/// header is no list, and silently ignores what is no string in it, so both are refused here.
pub(super) const FURTHER_KEYS: [&str; 2] = ["CC", "BCC"];

/// A text this many times `frame_max` is refused unread: what it would become cannot fit.
const TEXT_PER_FRAME: u64 = 16;

/// Reads the column. JSON `null` means no headers.
pub(super) fn read(text: &str, frame_max: u32) -> Result<FieldTable, Unfit> {
    let limit = TEXT_PER_FRAME * u64::from(frame_max);
    if text.len() as u64 > limit {
        let reason = format!(
            "headers are {} bytes of JSON; the largest frame (frame_max) is {frame_max} bytes",
            text.len()
        );
        return Err(Unfit::new(ReasonClass::HeadersTooLarge, reason));
    }
    let entries = match Json::parse(text) {
        Ok(Json::Object(entries)) => entries,
        Ok(Json::Null) => return Ok(FieldTable::default()),
        Ok(other) => {
            let reason = format!("headers are {}, not an object", other.kind());
            return Err(Unfit::new(ReasonClass::InvalidHeaders, reason));
        }
        Err(error) => {
            let reason = format!("headers are not JSON: {}", position(&error));
            return Err(Unfit::new(ReasonClass::InvalidHeaders, reason));
        }
    };
    let names = entries.iter().map(|(name, _)| name);
    if let Some(name) = names.into_iter().find(|name| is_reserved(name)) {
        let name = quoted(name);
        let reason = format!("header {name} belongs to the relay: the row may not set it");
        return Err(Unfit::new(ReasonClass::ReservedHeader, reason));
    }
    let table = table(&entries, 1).map_err(Trouble::into_unfit)?;
    for name in FURTHER_KEYS {
        check_further_keys(name, table.get(name))?;
    }
    Ok(table)
}

fn is_reserved(name: &str) -> bool {
    let start = name.as_bytes().get(..RESERVED.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(RESERVED.as_bytes()))
}

fn check_further_keys(name: &str, value: Option<&FieldValue>) -> Result<(), Unfit> {
    let strings = match value {
        None => true,
        Some(FieldValue::List(items)) => items.iter().all(|v| matches!(v, FieldValue::Text(_))),
        Some(_) => false,
    };
    if strings {
        return Ok(());
    }
    let reason = format!("header {name} holds further routing keys and must be a list of strings");
    Err(Unfit::new(ReasonClass::InvalidHeaders, reason))
}

/// serde_json's words may quote a piece of the text; where it went wrong is enough.
pub(super) fn position(error: &serde_json::Error) -> String {
    format!("line {}, column {}", error.line(), error.column())
}

/// What is wrong, and where: names and indexes from the inside to the outside.
struct Trouble {
    path: Vec<String>,
    what: String,
}

impl Trouble {
    fn new(what: impl Into<String>) -> Self {
        Self {
            path: Vec::new(),
            what: what.into(),
        }
    }

    fn under(mut self, step: impl FnOnce() -> String) -> Self {
        self.path.push(step());
        self
    }

    fn into_unfit(self) -> Unfit {
        /// How many steps of a path are named. Deeper ones are cut.
        const STEPS: usize = 4;
        let mut reason = String::from("headers");
        for step in self.path.iter().rev().take(STEPS) {
            reason.push_str(step);
        }
        if self.path.len() > STEPS {
            reason.push('…');
        }
        reason.push_str(": ");
        reason.push_str(&self.what);
        Unfit::new(ReasonClass::InvalidHeaders, reason)
    }
}

fn table(
    entries: &[(String, &serde_json::value::RawValue)],
    depth: usize,
) -> Result<FieldTable, Trouble> {
    let mut seen = std::collections::HashSet::with_capacity(entries.len());
    let mut table = FieldTable::default();
    for (name, text) in entries {
        let step = || format!("[{}]", quoted(name));
        if !seen.insert(name.as_str()) {
            return Err(Trouble::new("the name occurs twice").under(step));
        }
        let name = ShortText::new(name.as_str())
            .map_err(|error| Trouble::new(format!("the name is {error}")).under(step))?;
        let value = value(text.get(), depth).map_err(|trouble| trouble.under(step))?;
        table.push(name, value);
    }
    Ok(table)
}

fn value(text: &str, depth: usize) -> Result<FieldValue, Trouble> {
    let json =
        Json::parse(text).map_err(|e| Trouble::new(format!("not JSON: {}", position(&e))))?;
    if depth >= NESTING && matches!(json, Json::List(_) | Json::Object(_)) {
        let what = format!("nested more than {NESTING} levels deep");
        return Err(Trouble::new(what));
    }
    Ok(match json {
        Json::Null => FieldValue::Void,
        Json::Bool(bool) => FieldValue::Bool(bool),
        Json::Number(number) => self::number(number)?,
        Json::Text(text) => FieldValue::Text(text),
        Json::List(items) => {
            let read = |(index, item): (usize, &&serde_json::value::RawValue)| {
                value(item.get(), depth + 1).map_err(|t| t.under(|| format!("[{index}]")))
            };
            FieldValue::List(
                items
                    .iter()
                    .enumerate()
                    .map(read)
                    .collect::<Result<_, _>>()?,
            )
        }
        Json::Object(entries) => FieldValue::Table(table(&entries, depth + 1)?),
    })
}

/// An integer must fit in 64 bit; a number with a fraction takes the nearest double, unless it
/// is beyond what a double can express at all.
fn number(text: &str) -> Result<FieldValue, Trouble> {
    if is_integer(text) {
        return text.parse().map(FieldValue::Integer).map_err(|_| {
            let digits = text.trim_start_matches('-').len();
            let range = "AMQP integers are signed 64 bit; send it as a string";
            Trouble::new(format!(
                "an integer of {digits} digits is too large: {range}"
            ))
        });
    }
    let significand = text.split(['e', 'E']).next().unwrap_or_default();
    let is_zero = !significand.contains(|c: char| ('1'..='9').contains(&c));
    match text.parse::<f64>() {
        Ok(float) if float.is_finite() && (float != 0.0 || is_zero) => Ok(FieldValue::Float(float)),
        Ok(_) | Err(_) => Err(Trouble::new(
            "the number is beyond a 64-bit float; send it as a string",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME_MAX: u32 = 131_072;

    fn reason(text: &str) -> (ReasonClass, String) {
        let unfit = read(text, FRAME_MAX).unwrap_err();
        (unfit.class, unfit.reason)
    }

    #[test]
    fn json_types_keep_their_meaning() {
        let text = r#"{"s": "é", "i": -9223372036854775808, "u": 9223372036854775807, "f": 1.5,
            "w": 1.0, "e": 1e3, "z": -0.0, "t": true, "n": null,
            "l": [1, "a", [], {"x": false}], "o": {}}"#;
        let table = read(text, FRAME_MAX).unwrap();
        let get = |name| table.get(name).unwrap().clone();
        assert_eq!(get("s"), FieldValue::Text("é".into()));
        assert_eq!(get("i"), FieldValue::Integer(i64::MIN));
        assert_eq!(get("u"), FieldValue::Integer(i64::MAX));
        assert_eq!(get("f"), FieldValue::Float(1.5));
        assert_eq!(get("w"), FieldValue::Float(1.0));
        assert_eq!(get("e"), FieldValue::Float(1000.0));
        assert_eq!(get("z"), FieldValue::Float(-0.0));
        assert_eq!(get("t"), FieldValue::Bool(true));
        assert_eq!(get("n"), FieldValue::Void);
        assert_eq!(get("o"), FieldValue::Table(FieldTable::default()));
        let FieldValue::List(items) = get("l") else {
            panic!("a list")
        };
        assert_eq!(items.len(), 4);
        assert_eq!(read("null", FRAME_MAX).unwrap(), FieldTable::default());
    }

    #[test]
    fn numbers_that_amqp_cannot_hold_are_refused() {
        let large = "1".repeat(400);
        for text in ["9223372036854775808", "-9223372036854775809", &large] {
            let (class, reason) = reason(&format!("{{\"a\": [0, {text}]}}"));
            assert_eq!(class, ReasonClass::InvalidHeaders);
            assert!(
                reason.starts_with(r#"headers["a"][1]: an integer of "#),
                "{reason}"
            );
        }
        for text in ["1e400", "-1.5e309", "1e-400", "0.1e-999"] {
            let (_, reason) = reason(&format!("{{\"a\": {text}}}"));
            assert!(reason.contains("beyond a 64-bit float"), "{reason}");
        }
        assert!(read(r#"{"a": 0e400, "b": 0.0e-400, "c": 4.9e-324}"#, FRAME_MAX).is_ok());
    }

    #[test]
    fn names_must_be_short_unique_and_not_the_relays() {
        let long = "k".repeat(256);
        let (_, text) = reason(&format!("{{\"{long}\": 1}}"));
        assert!(text.contains("the name is 256 bytes"), "{text}");
        let (_, text) = reason(r#"{"o": {"a": 1, "a": 2}}"#);
        assert_eq!(text, r#"headers["o"]["a"]: the name occurs twice"#);
        for name in ["x-outbox-id", "X-Outbox-Key", "x-outbox-"] {
            let (class, text) = reason(&format!("{{\"{name}\": 1}}"));
            assert_eq!(class, ReasonClass::ReservedHeader);
            assert!(text.contains(name), "{text}");
        }
        assert!(read(r#"{"x-outbox": 1, "o": {"x-outbox-id": 1}}"#, FRAME_MAX).is_ok());
    }

    #[test]
    fn further_routing_keys_must_be_a_list_of_strings() {
        assert!(read(r#"{"CC": ["a", "b"], "BCC": [], "cc": 1}"#, FRAME_MAX).is_ok());
        for text in [r#"{"CC": "a"}"#, r#"{"BCC": ["a", 1]}"#, r#"{"CC": null}"#] {
            let (class, text) = reason(text);
            assert_eq!(class, ReasonClass::InvalidHeaders);
            assert!(text.contains("must be a list of strings"), "{text}");
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let nest =
            |levels: usize| format!("{{\"a\": {}{}}}", "[".repeat(levels), "]".repeat(levels));
        assert!(read(&nest(NESTING - 1), FRAME_MAX).is_ok());
        let (_, text) = reason(&nest(NESTING));
        assert!(text.contains("more than 32 levels"), "{text}");
        assert!(text.len() < 300, "{text}");
        reason(&nest(100_000));
    }

    #[test]
    fn a_reason_never_quotes_a_value() {
        for text in [
            r#"{"token": "canary", "token": 1}"#,
            r#"{"a": 4242424242424242424242}"#,
            r#"{"a": "canary"#,
            r#""canary""#,
            r#"{"CC": "canary"}"#,
        ] {
            let (_, reason) = reason(text);
            assert!(
                !reason.contains("canary") && !reason.contains("4242"),
                "{reason}"
            );
        }
    }

    #[test]
    fn what_is_no_object_is_refused() {
        assert_eq!(reason("[1]").1, "headers are a list, not an object");
        assert_eq!(
            reason("{\"a\" 1}").1,
            "headers are not JSON: line 1, column 6"
        );
        let huge = format!("{{\"a\": \"{}\"}}", "x".repeat(16 * 131_072));
        assert_eq!(reason(&huge).0, ReasonClass::HeadersTooLarge);
    }
}
