//! A message to be written. Checks nothing: the SQL function does, by the same rules for everybody.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tokio_postgres::types::{Json, ToSql, Type};

/// A message, with the defaults of the columns of `outbox.message`.
///
/// The payload is to have the type that the outbox was made with (`outbox-relay migrate --payload`,
/// `json` if nothing was said).
#[derive(Clone, Debug)]
pub struct Message {
    payload: Payload,
    pub(super) exchange: String,
    pub(super) routing_key: String,
    pub(super) ordering_key: Option<String>,
    pub(super) headers: Option<Json<BTreeMap<String, Value>>>,
    pub(super) message_type: Option<String>,
    pub(super) correlation_id: Option<String>,
    pub(super) content_type: Option<String>,
    pub(super) properties: Option<Json<BTreeMap<String, Value>>>,
    pub(super) available_at: Option<SystemTime>,
    pub(super) message_id: Option<String>,
}

#[derive(Clone, Debug)]
enum Payload {
    Json(Json<Box<RawValue>>),
    Jsonb(Json<Box<RawValue>>),
    Text(String),
    Bytes(Vec<u8>),
}

impl Message {
    /// A payload for an outbox of type `json`: published as it is serialised here, byte for byte.
    ///
    /// # Errors
    /// The value cannot be serialised.
    pub fn json<T: Serialize + ?Sized>(payload: &T) -> serde_json::Result<Self> {
        let payload = to_raw_value(payload)?;
        Ok(Self::of(Payload::Json(Json(payload))))
    }

    /// A payload for an outbox of type `jsonb`: published as PostgreSQL writes it.
    ///
    /// # Errors
    /// The value cannot be serialised.
    pub fn jsonb<T: Serialize + ?Sized>(payload: &T) -> serde_json::Result<Self> {
        let payload = to_raw_value(payload)?;
        Ok(Self::of(Payload::Jsonb(Json(payload))))
    }

    /// A payload for an outbox of type `text`.
    pub fn text(payload: impl Into<String>) -> Self {
        Self::of(Payload::Text(payload.into()))
    }

    /// A payload for an outbox of type `bytea`.
    pub fn bytes(payload: impl Into<Vec<u8>>) -> Self {
        Self::of(Payload::Bytes(payload.into()))
    }

    fn of(payload: Payload) -> Self {
        Self {
            payload,
            exchange: String::new(),
            routing_key: String::new(),
            ordering_key: None,
            headers: None,
            message_type: None,
            correlation_id: None,
            content_type: None,
            properties: None,
            available_at: None,
            message_id: None,
        }
    }

    /// Where to; the default exchange if nothing is said, whose routing key is a queue's name.
    #[must_use]
    pub fn exchange(mut self, exchange: impl Into<String>) -> Self {
        self.exchange = exchange.into();
        self
    }

    /// By which routing key.
    #[must_use]
    pub fn routing_key(mut self, key: impl Into<String>) -> Self {
        self.routing_key = key.into();
        self
    }

    /// Messages of one key are delivered in the order in which they were committed. Write the
    /// message after taking the lock that serialises the key's writers.
    #[must_use]
    pub fn ordering_key(mut self, key: impl Into<String>) -> Self {
        self.ordering_key = Some(key.into());
        self
    }

    /// An AMQP header; strings, integers, floats, booleans, null, objects and lists keep their
    /// types. The last one of a name counts.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        let headers = self.headers.get_or_insert_with(|| Json(BTreeMap::new()));
        headers.0.insert(name.into(), value.into());
        self
    }

    /// The AMQP property `type`.
    #[must_use]
    pub fn message_type(mut self, message_type: impl Into<String>) -> Self {
        self.message_type = Some(message_type.into());
        self
    }

    /// The AMQP property `correlation-id`.
    #[must_use]
    pub fn correlation_id(mut self, id: impl Into<String>) -> Self {
        self.correlation_id = Some(id.into());
        self
    }

    /// The AMQP property `content-type`; that of the payload's type if nothing is said.
    #[must_use]
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// One of the rarer AMQP properties, under the name that it has in the column `properties`:
    /// `priority`, `expiration`, `app_id`, `reply_to`, `content_encoding`, `delivery_mode` …
    #[must_use]
    pub fn property(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        let properties = self.properties.get_or_insert_with(|| Json(BTreeMap::new()));
        properties.0.insert(name.into(), value.into());
        self
    }

    /// Not before this time, by the database's clock.
    #[must_use]
    pub fn available_at(mut self, time: SystemTime) -> Self {
        self.available_at = Some(time);
        self
    }

    /// The AMQP property `message-id`, by which consumers know copies; a random one if nothing is
    /// said. A business key such as `invoice:842:send` makes writing twice harmless, too.
    #[must_use]
    pub fn message_id(mut self, id: impl Into<String>) -> Self {
        self.message_id = Some(id.into());
        self
    }

    /// The payload and its type.
    pub(super) fn payload(&self) -> (&(dyn ToSql + Sync), Type) {
        match &self.payload {
            Payload::Json(json) => (json, Type::JSON),
            Payload::Jsonb(json) => (json, Type::JSONB),
            Payload::Text(text) => (text, Type::TEXT),
            Payload::Bytes(bytes) => (bytes, Type::BYTEA),
        }
    }
}
