//! Reads JSON text level by level without losing what serde_json's own value type loses:
//! repeated names and the digits of large numbers.
//!
//! Knows nothing of AMQP.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// One level of a JSON value; what is nested is still text.
pub(super) enum Json<'a> {
    Null,
    Bool(bool),
    /// As it is written.
    Number(&'a str),
    Text(String),
    List(Vec<&'a RawValue>),
    /// In order, with repeated names.
    Object(Vec<(String, &'a RawValue)>),
}

impl<'a> Json<'a> {
    /// Reads the outermost level of a text.
    pub(super) fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        let text = text.trim_ascii();
        Ok(match text.as_bytes().first() {
            Some(b'{') => Self::Object(serde_json::from_str::<Entries<'a>>(text)?.0),
            Some(b'[') => Self::List(serde_json::from_str(text)?),
            Some(b'"') => Self::Text(serde_json::from_str(text)?),
            Some(b't' | b'f') => Self::Bool(serde_json::from_str(text)?),
            Some(b'n') => {
                serde_json::from_str::<()>(text)?;
                Self::Null
            }
            Some(_) | None => Self::Number(serde_json::from_str::<&RawValue>(text)?.get()),
        })
    }

    /// What kind of value it is, for people.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
        }
    }
}

/// Is the number written without fraction and exponent?
pub(super) fn is_integer(number: &str) -> bool {
    !number.contains(['.', 'e', 'E'])
}

struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor).map(Entries)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_names_and_large_numbers_survive() {
        let text = r#" {"a": 1e400, "a": 123456789012345678901234567890} "#;
        let Json::Object(entries) = Json::parse(text).unwrap() else {
            panic!("an object")
        };
        let read: Vec<_> = entries.iter().map(|(n, v)| (n.as_str(), v.get())).collect();
        assert_eq!(
            read,
            [("a", "1e400"), ("a", "123456789012345678901234567890")]
        );
    }

    #[test]
    fn what_is_not_json_is_refused() {
        for text in [
            "",
            "{",
            "nul",
            "tru",
            "'a'",
            "[1,]",
            "{\"a\":1,}",
            "NaN",
            "1 2",
            "01",
        ] {
            assert!(Json::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_hundred_thousand_levels_do_not_overflow_the_stack() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        assert!(matches!(Json::parse(&deep), Ok(Json::List(_))));
    }
}
