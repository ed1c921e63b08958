//! How one value is read from text (environment, flags) or from a typed value (file).
//!
//! Text is never guessed at: a password of `0123` stays `0123`.

use std::net::SocketAddr;
use std::num::IntErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use config::{Value, ValueKind};

use super::nearest::{any_of, nearest};
use super::{ByteSize, duration};

/// A type that a key can have. Errors say what would be right; the caller adds key and source.
pub(super) trait Setting: Sized {
    /// From the environment or a flag.
    fn from_text(text: &str) -> Result<Self, String>;

    /// From the file. Most types are written as a TOML string.
    fn from_typed(value: &Written<'_>) -> Result<Self, String> {
        match value.text() {
            Some(text) => Self::from_text(text),
            None => Err(Self::wrong_type(value)),
        }
    }

    /// What to say when the TOML type is wrong.
    fn wrong_type(value: &Written<'_>) -> String;

    /// As it would be written, for people.
    fn shown(&self) -> String;
}

/// An enumeration with one word for each value.
pub(super) trait Choice: Copy + PartialEq + 'static {
    const WORDS: &'static [(&'static str, Self)];
}

impl<T: Choice> Setting for T {
    fn from_text(text: &str) -> Result<Self, String> {
        if let Some((_, value)) = T::WORDS.iter().find(|(word, _)| *word == text) {
            return Ok(*value);
        }
        let mut problem = must_be_a_word::<T>();
        if let Some(word) = nearest(text, T::WORDS.iter().map(|(word, _)| *word)) {
            problem.push_str(&format!("; did you mean \"{word}\"?"));
        }
        Err(problem)
    }

    fn wrong_type(_: &Written<'_>) -> String {
        must_be_a_word::<T>()
    }

    fn shown(&self) -> String {
        let word = T::WORDS.iter().find(|(_, value)| value == self);
        word.map_or_else(String::new, |(word, _)| (*word).to_owned())
    }
}

fn must_be_a_word<T: Choice>() -> String {
    let words: Vec<String> = T::WORDS.iter().map(|(w, _)| format!("\"{w}\"")).collect();
    format!("must be {}", any_of(&words))
}

impl Setting for String {
    fn from_text(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }

    fn wrong_type(value: &Written<'_>) -> String {
        quote_it(value)
    }

    fn shown(&self) -> String {
        self.clone()
    }
}

impl Setting for PathBuf {
    fn from_text(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("must be the path of a file".to_owned());
        }
        if text.contains("://") {
            return Err("must be the path of a file, not a URL".to_owned());
        }
        Ok(Self::from(text))
    }

    fn wrong_type(value: &Written<'_>) -> String {
        quote_it(value)
    }

    fn shown(&self) -> String {
        self.display().to_string()
    }
}

impl Setting for bool {
    fn from_text(text: &str) -> Result<Self, String> {
        match text {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err("must be true or false".to_owned()),
        }
    }

    fn from_typed(value: &Written<'_>) -> Result<Self, String> {
        if let Written::Truth(truth) = value {
            Ok(*truth)
        } else {
            Err(Self::wrong_type(value))
        }
    }

    fn wrong_type(_: &Written<'_>) -> String {
        "must be true or false, without quotes".to_owned()
    }

    fn shown(&self) -> String {
        self.to_string()
    }
}

macro_rules! whole_numbers {
    ($($number:ty),*) => {$(
        impl Setting for $number {
            fn from_text(text: &str) -> Result<Self, String> {
                text.parse().map_err(|error: std::num::ParseIntError| match error.kind() {
                    IntErrorKind::PosOverflow => beyond(false),
                    _ if text.starts_with('-') => beyond(true),
                    _ => "must be a whole number".to_owned(),
                })
            }

            fn from_typed(value: &Written<'_>) -> Result<Self, String> {
                if let Written::Whole(number) = value {
                    Self::try_from(*number).map_err(|_| beyond(*number < 0))
                } else {
                    Err(Self::wrong_type(value))
                }
            }

            fn wrong_type(value: &Written<'_>) -> String {
                match value.text() {
                    Some(_) => "must be a whole number, without quotes".to_owned(),
                    None => "must be a whole number".to_owned(),
                }
            }

            fn shown(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

whole_numbers!(usize, u32, u16);

impl Setting for f64 {
    fn from_text(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| "must be a number".to_owned())
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "settings are far below 2^53, and bounds are checked after"
    )]
    fn from_typed(value: &Written<'_>) -> Result<Self, String> {
        match value {
            Written::Real(number) => Ok(*number),
            Written::Whole(number) => Ok(*number as Self),
            Written::Text(_) | Written::Truth(_) | Written::List(_) | Written::Strange => {
                Err(Self::wrong_type(value))
            }
        }
    }

    fn wrong_type(value: &Written<'_>) -> String {
        match value.text() {
            Some(_) => "must be a number, without quotes".to_owned(),
            None => "must be a number".to_owned(),
        }
    }

    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Setting for Duration {
    fn from_text(text: &str) -> Result<Self, String> {
        duration::parse(text)
    }

    fn from_typed(value: &Written<'_>) -> Result<Self, String> {
        match (value.number(), value.text()) {
            (Some(number), _) if number == "0" => Ok(Self::ZERO),
            (_, Some(text)) => Self::from_text(text),
            (Some(_) | None, None) => Err(Self::wrong_type(value)),
        }
    }

    fn wrong_type(value: &Written<'_>) -> String {
        match value.number() {
            Some(number) => format!("a duration needs a unit: write \"{number}s\""),
            None => "must be a duration, such as \"5s\"".to_owned(),
        }
    }

    fn shown(&self) -> String {
        duration::shown(*self)
    }
}

impl Setting for ByteSize {
    fn from_text(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }

    fn from_typed(value: &Written<'_>) -> Result<Self, String> {
        match (value.number(), value.text()) {
            (Some(number), _) if number == "0" => Ok(Self::from_bytes(0)),
            (_, Some(text)) => Self::from_text(text),
            (Some(_) | None, None) => Err(Self::wrong_type(value)),
        }
    }

    fn wrong_type(value: &Written<'_>) -> String {
        match value.number() {
            Some(number) => format!(
                "a size needs a unit: write \"{number}B\", \"{number}KiB\" or \"{number}MiB\""
            ),
            None => "must be a size, such as \"64MiB\"".to_owned(),
        }
    }

    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Setting for SocketAddr {
    fn from_text(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| must_be_an_address())
    }

    fn wrong_type(_: &Written<'_>) -> String {
        must_be_an_address()
    }

    fn shown(&self) -> String {
        self.to_string()
    }
}

fn must_be_an_address() -> String {
    "must be an IP address and a port, such as \"127.0.0.1:9845\" or \"[::]:9845\"".to_owned()
}

/// A list; a single value stands for a list of one, and text is split at commas.
impl<T: Setting> Setting for Vec<T> {
    fn from_text(text: &str) -> Result<Self, String> {
        text.split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
            .map(T::from_text)
            .collect()
    }

    fn from_typed(value: &Written<'_>) -> Result<Self, String> {
        let Written::List(items) = value else {
            return T::from_typed(value).map(|value| vec![value]);
        };
        items
            .iter()
            .map(|item| T::from_typed(&Written::of(&item.kind)))
            .collect::<Result<_, _>>()
            .map_err(|problem| format!("in the list: {problem}"))
    }

    fn wrong_type(value: &Written<'_>) -> String {
        T::wrong_type(value)
    }

    fn shown(&self) -> String {
        let items: Vec<String> = self.iter().map(Setting::shown).collect();
        items.join(",")
    }
}

/// What the file holds, as far as keys can have it.
pub(super) enum Written<'a> {
    Text(&'a str),
    Whole(i64),
    Real(f64),
    Truth(bool),
    List(&'a [Value]),
    /// A date, a table.
    Strange,
}

impl<'a> Written<'a> {
    pub fn of(kind: &'a ValueKind) -> Self {
        match kind {
            ValueKind::String(text) => Self::Text(text),
            ValueKind::I64(number) => Self::Whole(*number),
            ValueKind::Float(number) => Self::Real(*number),
            ValueKind::Boolean(truth) => Self::Truth(*truth),
            ValueKind::Array(items) => Self::List(items),
            ValueKind::Nil
            | ValueKind::I128(_)
            | ValueKind::U64(_)
            | ValueKind::U128(_)
            | ValueKind::Table(_) => Self::Strange,
        }
    }

    pub fn text(&self) -> Option<&'a str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Whole(_) | Self::Real(_) | Self::Truth(_) | Self::List(_) | Self::Strange => None,
        }
    }

    fn number(&self) -> Option<String> {
        match self {
            Self::Whole(number) => Some(number.to_string()),
            Self::Real(number) => Some(number.to_string()),
            Self::Text(_) | Self::Truth(_) | Self::List(_) | Self::Strange => None,
        }
    }
}

fn beyond(negative: bool) -> String {
    let problem = if negative {
        "must not be negative"
    } else {
        "is too large"
    };
    problem.to_owned()
}

fn quote_it(value: &Written<'_>) -> String {
    match value.number() {
        Some(number) => format!("must be text, in quotes: write \"{number}\""),
        None => "must be text, in quotes".to_owned(),
    }
}
