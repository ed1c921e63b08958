//! The AMQP properties of a message, and the `properties` column.
//!
//! What RabbitMQ checks when it takes a message is checked here, because there a fault closes
//! the channel under every other message on it.

use std::collections::HashSet;

use super::direct_reply;
use super::field::{FieldTable, ShortText};
use super::headers::position;
use super::json::{Json, is_integer};
use super::reason::{ReasonClass, Unfit, quoted};

/// Whether a durable queue keeps the message over a restart of the broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeliveryMode {
    /// 1: it may be lost.
    Transient,
    /// 2, the default.
    #[default]
    Persistent,
}

impl DeliveryMode {
    /// The number on the wire.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Transient => 1,
            Self::Persistent => 2,
        }
    }
}

/// The properties of AMQP's class `basic`, each already valid.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Properties {
    /// `content-type`.
    pub content_type: Option<ShortText>,
    /// `content-encoding`.
    pub content_encoding: Option<ShortText>,
    /// `headers`, the relay's own included.
    pub headers: FieldTable,
    /// `delivery-mode`.
    pub delivery_mode: DeliveryMode,
    /// `priority`.
    pub priority: Option<u8>,
    /// `correlation-id`.
    pub correlation_id: Option<ShortText>,
    /// `reply-to`.
    pub reply_to: Option<ShortText>,
    /// `expiration`: milliseconds, in digits.
    pub expiration: Option<ShortText>,
    /// `message-id`.
    pub message_id: Option<ShortText>,
    /// `timestamp`: seconds since 1970.
    pub timestamp: Option<u64>,
    /// `type`.
    pub message_type: Option<ShortText>,
    /// `user-id`.
    pub user_id: Option<ShortText>,
    /// `app-id`.
    pub app_id: Option<ShortText>,
    /// `cluster-id`, which AMQP deprecated and RabbitMQ passes on.
    pub cluster_id: Option<ShortText>,
}

impl Properties {
    /// Bytes of the content header's payload: class, weight, body size and flags (14 bytes,
    /// AMQP 0-9-1 §4.2.6.1), then the properties that are set.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let texts = [
            &self.content_type,
            &self.content_encoding,
            &self.correlation_id,
            &self.reply_to,
            &self.expiration,
            &self.message_id,
            &self.message_type,
            &self.user_id,
            &self.app_id,
            &self.cluster_id,
        ];
        let texts = texts.into_iter().flatten().map(ShortText::encoded_len);
        14 + texts.sum::<usize>()
            + self.headers.encoded_len()
            + 1
            + self.priority.map_or(0, |_| 1)
            + self.timestamp.map_or(0, |_| 8)
    }

    /// Sets what the `properties` column names. JSON `null` names nothing.
    pub(super) fn read(&mut self, text: &str) -> Result<(), Unfit> {
        let entries = match Json::parse(text) {
            Ok(Json::Object(entries)) => entries,
            Ok(Json::Null) => return Ok(()),
            Ok(other) => return invalid(format!("properties are {}, not an object", other.kind())),
            Err(error) => return invalid(format!("properties are not JSON: {}", position(&error))),
        };
        let mut seen = HashSet::new();
        for (name, text) in &entries {
            if !seen.insert(name) {
                return invalid(format!("property {} occurs twice", quoted(name)));
            }
            self.set(name, text.get())?;
        }
        Ok(())
    }

    fn set(&mut self, name: &str, text: &str) -> Result<(), Unfit> {
        let value = Value { name, text };
        match name {
            "content_encoding" => self.content_encoding = value.text()?,
            "delivery_mode" => self.delivery_mode = value.delivery_mode()?,
            "priority" => self.priority = value.priority()?,
            "reply_to" => self.reply_to = value.reply_to()?,
            "expiration" => self.expiration = value.expiration()?,
            "user_id" => self.user_id = value.text()?,
            "app_id" => self.app_id = value.text()?,
            "cluster_id" => self.cluster_id = value.text()?,
            "type" => value.unless_column(&mut self.message_type)?,
            "correlation_id" => value.unless_column(&mut self.correlation_id)?,
            "content_type" => value.unless_column(&mut self.content_type)?,
            "message_id" | "headers" => {
                return invalid(format!("property {name} comes from the column {name}"));
            }
            "timestamp" => return invalid("property timestamp comes from the column created_at"),
            _ => return unknown(name),
        }
        Ok(())
    }
}

/// The names that the `properties` column may hold.
const NAMES: [&str; 11] = [
    "app_id",
    "cluster_id",
    "content_encoding",
    "content_type",
    "correlation_id",
    "delivery_mode",
    "expiration",
    "priority",
    "reply_to",
    "type",
    "user_id",
];

fn invalid<T>(reason: impl Into<String>) -> Result<T, Unfit> {
    Err(Unfit::new(ReasonClass::InvalidProperties, reason))
}

fn unknown<T>(name: &str) -> Result<T, Unfit> {
    /// The shortest similarity (Jaro-Winkler) at which a guess is a help and not a joke.
    const SIMILAR: f64 = 0.75;
    // A name beyond any of ours is not worth the comparison.
    let plain: String = name.chars().take(64).collect::<String>().to_lowercase();
    let plain = plain.replace(['-', ' '], "_");
    let near = NAMES.map(|known| (strsim::jaro_winkler(known, &plain), known));
    let best = near.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
    let hint = match best {
        Some((similarity, known)) if similarity >= SIMILAR => format!("did you mean {known}?"),
        Some(_) | None => format!("known are {}", NAMES.join(", ")),
    };
    invalid(format!("property {} is unknown; {hint}", quoted(name)))
}

/// A property as it is written.
struct Value<'a> {
    name: &'a str,
    text: &'a str,
}

impl Value<'_> {
    fn json(&self) -> Result<Json<'_>, Unfit> {
        Json::parse(self.text).or_else(|error| {
            invalid(format!(
                "property {} is not JSON: {}",
                self.name,
                position(&error)
            ))
        })
    }

    fn wrong<T>(&self, found: &str, wanted: &str) -> Result<T, Unfit> {
        invalid(format!(
            "property {} is {found}; it must be {wanted}",
            self.name
        ))
    }

    fn text(&self) -> Result<Option<ShortText>, Unfit> {
        match self.json()? {
            Json::Null => Ok(None),
            Json::Text(text) => ShortText::new(text)
                .map(Some)
                .or_else(|error| invalid(format!("property {} is {error}", self.name))),
            other @ (Json::Bool(_) | Json::Number(_) | Json::List(_) | Json::Object(_)) => {
                self.wrong(other.kind(), "a string")
            }
        }
    }

    fn reply_to(&self) -> Result<Option<ShortText>, Unfit> {
        let text = self.text()?;
        if let Some(queue) = &text {
            direct_reply::check_reply_to(queue.as_str())?;
        }
        Ok(text)
    }

    /// For properties that have a column of their own: two values would be a guess.
    fn unless_column(&self, target: &mut Option<ShortText>) -> Result<(), Unfit> {
        let Some(value) = self.text()? else {
            return Ok(());
        };
        if target.replace(value).is_some() {
            let name = self.name;
            return invalid(format!("property {name} is set by the column {name} too"));
        }
        Ok(())
    }

    fn integer(&self, number: &str, max: u64, wanted: &str) -> Result<u64, Unfit> {
        match number.parse::<u64>() {
            Ok(value) if is_integer(number) && value <= max => Ok(value),
            Ok(_) | Err(_) => self.wrong(&quoted(number), wanted),
        }
    }

    fn priority(&self) -> Result<Option<u8>, Unfit> {
        let wanted = "an integer from 0 to 255";
        match self.json()? {
            Json::Null => Ok(None),
            Json::Number(number) => {
                let value = self.integer(number, u64::from(u8::MAX), wanted)?;
                Ok(u8::try_from(value).ok())
            }
            other @ (Json::Bool(_) | Json::Text(_) | Json::List(_) | Json::Object(_)) => {
                self.wrong(other.kind(), wanted)
            }
        }
    }

    fn delivery_mode(&self) -> Result<DeliveryMode, Unfit> {
        let wanted = "1 (transient) or 2 (persistent)";
        match self.json()? {
            Json::Null | Json::Number("2") => Ok(DeliveryMode::Persistent),
            Json::Number("1") => Ok(DeliveryMode::Transient),
            Json::Number(number) => self.wrong(&quoted(number), wanted),
            other @ (Json::Bool(_) | Json::Text(_) | Json::List(_) | Json::Object(_)) => {
                self.wrong(other.kind(), wanted)
            }
        }
    }

    /// RabbitMQ takes decimal digits up to 2³² − 1 (`rabbit_basic:parse_expiration`,
    /// `MAX_EXPIRY_TIMER`) and answers anything else with 406 on the channel.
    fn expiration(&self) -> Result<Option<ShortText>, Unfit> {
        let wanted = "milliseconds in digits, at most 4294967295";
        let digits = match self.json()? {
            Json::Null => return Ok(None),
            Json::Number(number) => number.to_owned(),
            Json::Text(text) => text,
            other @ (Json::Bool(_) | Json::List(_) | Json::Object(_)) => {
                return self.wrong(other.kind(), wanted);
            }
        };
        // `parse` alone would take a leading plus sign.
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return self.wrong(&quoted(&digits), wanted);
        }
        let value = self.integer(&digits, u64::from(u32::MAX), wanted)?;
        ShortText::new(value.to_string())
            .map(Some)
            .or_else(|error| invalid(format!("property {} is {error}", self.name)))
    }
}

#[cfg(test)]
mod tests;
