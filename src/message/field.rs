//! The values an AMQP message header can hold, and how many bytes they take on the wire.
//!
//! Types follow RabbitMQ's reading of AMQP 0-9-1, which differs from the specification's
//! (<https://www.rabbitmq.com/docs/specification>, "AMQP 0-9-1 errata", field value types).

use std::borrow::Cow;
use std::fmt;

/// A text of at most 255 bytes, AMQP's short string. It cannot be made longer: the client
/// library panics on one that is.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShortText(Cow<'static, str>);

/// A text that is longer than a [`ShortText`] may be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} bytes, and an AMQP short string holds at most {}",
    text.len(),
    ShortText::MAX
)]
pub struct TooLong {
    /// What it is. Its size counts in bytes, of which text beyond ASCII has more than characters.
    pub text: String,
}

impl ShortText {
    /// The longest short string, in bytes.
    pub const MAX: usize = 255;

    /// Takes a text if it is short enough.
    ///
    /// # Errors
    /// [`TooLong`] gives it back and says how long it is.
    pub fn new(text: impl Into<String>) -> Result<Self, TooLong> {
        let text = text.into();
        if text.len() > Self::MAX {
            return Err(TooLong { text });
        }
        Ok(Self(Cow::Owned(text)))
    }

    /// A word of the program's own, of which everybody can see that it is short.
    pub(super) fn known(word: &'static str) -> Self {
        debug_assert!(word.len() <= Self::MAX);
        Self(Cow::Borrowed(word))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Bytes on the wire: one for the length, then the text.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        1 + self.0.len()
    }
}

impl fmt::Display for ShortText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One value of a header table.
#[derive(Clone, Debug, PartialEq)]
pub enum FieldValue {
    /// JSON `null`; AMQP `V`.
    Void,
    /// AMQP `t`.
    Bool(bool),
    /// Every JSON integer; AMQP `l`, which RabbitMQ reads as signed 64 bit.
    Integer(i64),
    /// A JSON number with a fraction or an exponent; AMQP `d`. Always finite: RabbitMQ cannot
    /// read anything else.
    Float(f64),
    /// AMQP `S`.
    Text(String),
    /// AMQP `A`.
    List(Vec<FieldValue>),
    /// AMQP `F`.
    Table(FieldTable),
}

impl FieldValue {
    /// Bytes on the wire: one for the type, then the value.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        1 + match self {
            Self::Void => 0,
            Self::Bool(_) => 1,
            Self::Integer(_) | Self::Float(_) => 8,
            Self::Text(text) => 4 + text.len(),
            Self::List(items) => 4 + items.iter().map(Self::encoded_len).sum::<usize>(),
            Self::Table(table) => table.encoded_len(),
        }
    }
}

/// Names and values in the order they were written. The names are unique.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldTable(Vec<(ShortText, FieldValue)>);

impl FieldTable {
    /// Appends an entry, of which the caller knows that its name is not there yet.
    pub(super) fn push(&mut self, name: ShortText, value: FieldValue) {
        self.0.push((name, value));
    }

    /// Names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&ShortText, &FieldValue)> {
        self.0.iter().map(|(name, value)| (name, value))
    }

    /// The value of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&FieldValue> {
        let entry = self.0.iter().find(|(key, _)| key.as_str() == name)?;
        Some(&entry.1)
    }

    /// Bytes on the wire: four for the length, then the entries.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let entries = self.0.iter();
        4 + entries
            .map(|(name, value)| name.encoded_len() + value.encoded_len())
            .sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_text_is_measured_in_bytes() {
        assert!(ShortText::new("a".repeat(255)).is_ok());
        let text = "a".repeat(256);
        assert_eq!(ShortText::new(text.clone()), Err(TooLong { text }));
        assert_eq!(
            ShortText::new("é".repeat(128)).unwrap_err().to_string(),
            "256 bytes, and an AMQP short string holds at most 255"
        );
    }
}
