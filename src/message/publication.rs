//! A validated message, ready for a channel.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::field::{FieldTable, FieldValue, ShortText};
use super::properties::Properties;
use super::reason::{ReasonClass, Unfit, quoted};
use super::{Body, OutboxRow, RowId, direct_reply, pattern};

/// A message that passed validation. The broker half turns it into frames.
#[derive(Clone, PartialEq)]
pub struct Publication {
    id: RowId,
    exchange: ShortText,
    routing_key: ShortText,
    mandatory: bool,
    properties: Properties,
    payload: Bytes,
    header_len: usize,
    created_at: SystemTime,
}

/// What the configuration and the negotiated connection demand of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// `relay.max_message_size`, in bytes.
    pub max_message_size: u64,
    /// Negotiated AMQP frame size: a content header must fit in one frame.
    pub frame_max: u32,
    /// `relay.mandatory`.
    pub mandatory: bool,
    /// `relay.optional_exchanges`: patterns published without `mandatory`.
    pub optional_exchanges: Vec<String>,
    /// `relay.allowed_exchanges`: patterns; a row outside is unfit.
    pub allowed_exchanges: Vec<String>,
    /// Content type of a row that names none, from the payload's SQL type.
    pub default_content_type: &'static str,
    /// The broker's user as whom the relay is logged in, if it is known. RabbitMQ closes the
    /// channel when a message's `user_id` is somebody else's.
    pub login: Option<String>,
}

impl Rules {
    /// Is the exchange published without `mandatory`?
    fn is_optional(&self, exchange: &str) -> bool {
        pattern::any_matches(&self.optional_exchanges, exchange)
    }
}

/// Bytes of a frame that are not its payload: type, channel, size and end mark (AMQP 0-9-1
/// §4.2.3).
const FRAME_OVERHEAD: usize = 8;

/// Memory of a publication beside its payload and its encoded header: the structs and the
/// allocator's share, measured roughly and rounded up.
const STRUCTURE: usize = 512;

/// The one internal exchange that every virtual host has. RabbitMQ answers 403 on the channel to
/// whoever publishes to one; of others only the broker knows
/// (<https://www.rabbitmq.com/docs/firehose>).
const INTERNAL_EXCHANGE: &str = "amq.rabbitmq.trace";

impl Publication {
    /// The header that holds the row's id, and by which a returned message is recognised.
    pub const ID_HEADER: &'static str = "x-outbox-id";
    /// The header that holds the ordering key.
    pub const KEY_HEADER: &'static str = "x-outbox-key";

    /// Validates a row.
    ///
    /// # Errors
    /// [`Unfit`] names what can never be sent, its size and the limit.
    pub fn from_row(mut row: OutboxRow, rules: &Rules) -> Result<Self, Unfit> {
        let (id, created_at) = (row.id, row.created_at);
        let exchange = exchange(std::mem::take(&mut row.exchange), rules)?;
        let routing_key = std::mem::take(&mut row.routing_key);
        let class = ReasonClass::InvalidRoutingKey;
        let routing_key = short(routing_key, "routing_key", class)?;
        let payload = payload(std::mem::replace(&mut row.payload, Body::Null), rules)?;
        let properties = properties(row, rules)?;
        direct_reply::check_destination(
            exchange.as_str(),
            routing_key.as_str(),
            &properties.headers,
        )?;
        let header_len = properties.encoded_len();
        let limit = (rules.frame_max as usize).saturating_sub(FRAME_OVERHEAD);
        if header_len > limit {
            let reason = format!(
                "properties and headers take {header_len} bytes, and the broker's frame_max \
                 leaves {limit} for them; move data into the payload"
            );
            return Err(Unfit::new(ReasonClass::HeadersTooLarge, reason));
        }
        Ok(Self {
            id,
            mandatory: rules.mandatory && !rules.is_optional(exchange.as_str()),
            exchange,
            routing_key,
            properties,
            payload,
            header_len,
            created_at,
        })
    }

    /// The row this is.
    #[must_use]
    pub fn id(&self) -> RowId {
        self.id
    }

    /// When the row was written, to the microsecond; the message itself carries seconds.
    #[must_use]
    pub fn created_at(&self) -> SystemTime {
        self.created_at
    }

    /// Where to; empty for the default exchange.
    #[must_use]
    pub fn exchange(&self) -> &ShortText {
        &self.exchange
    }

    /// By which key.
    #[must_use]
    pub fn routing_key(&self) -> &ShortText {
        &self.routing_key
    }

    /// Must the broker return it if no queue takes it?
    #[must_use]
    pub fn is_mandatory(&self) -> bool {
        self.mandatory
    }

    /// Properties and headers, the relay's own included.
    #[must_use]
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// The body, byte for byte as PostgreSQL stores it.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// Bytes of the encoded content header, which fits in one frame.
    #[must_use]
    pub fn header_len(&self) -> usize {
        self.header_len
    }

    /// Bytes of memory that the publication is accounted for.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.payload.len() + self.header_len + STRUCTURE
    }
}

/// Names the row and its destination; never its payload, headers or properties.
impl fmt::Debug for Publication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publication")
            .field("id", &self.id)
            .field("exchange", &self.exchange.as_str())
            .field("routing_key", &self.routing_key.as_str())
            .field("payload", &format_args!("{} bytes", self.payload.len()))
            .finish_non_exhaustive()
    }
}

fn short(text: String, column: &str, class: ReasonClass) -> Result<ShortText, Unfit> {
    ShortText::new(text).map_err(|error| {
        let reason = format!("{column} {} is {error}", quoted(&error.text));
        Unfit::new(class, reason)
    })
}

fn optional(
    text: Option<String>,
    column: &str,
    class: ReasonClass,
) -> Result<Option<ShortText>, Unfit> {
    text.map(|text| short(text, column, class)).transpose()
}

fn exchange(exchange: String, rules: &Rules) -> Result<ShortText, Unfit> {
    let exchange = short(exchange, "exchange", ReasonClass::InvalidExchange)?;
    if !pattern::any_matches(&rules.allowed_exchanges, exchange.as_str()) {
        let exchange = quoted(exchange.as_str());
        let reason = format!("exchange {exchange} matches nothing in relay.allowed_exchanges");
        return Err(Unfit::new(ReasonClass::NotAllowed, reason));
    }
    if exchange.as_str() == INTERNAL_EXCHANGE {
        let reason =
            format!("exchange {INTERNAL_EXCHANGE} is the broker's own; nobody may publish to it");
        return Err(Unfit::new(ReasonClass::InvalidExchange, reason));
    }
    Ok(exchange)
}

fn payload(body: Body, rules: &Rules) -> Result<Bytes, Unfit> {
    let limit = rules.max_message_size;
    let size = match body {
        Body::Null => {
            let reason = "payload is NULL; write an empty one if that is what is meant";
            return Err(Unfit::new(ReasonClass::NullPayload, reason));
        }
        Body::Bytes(bytes) if bytes.len() as u64 <= limit => return Ok(bytes),
        Body::Bytes(bytes) => bytes.len() as u64,
        Body::Oversized(size) => size,
    };
    let reason = format!("payload is {size} bytes; relay.max_message_size is {limit}");
    Err(Unfit::new(ReasonClass::TooLarge, reason))
}

fn properties(row: OutboxRow, rules: &Rules) -> Result<Properties, Unfit> {
    let timestamp = timestamp(&row);
    let message_type = optional(row.message_type, "type", ReasonClass::InvalidType)?;
    let message_id = message_id(row.message_id)?;
    let class = ReasonClass::InvalidCorrelationId;
    let correlation_id = optional(row.correlation_id, "correlation_id", class)?;
    let class = ReasonClass::InvalidContentType;
    let content_type = optional(row.content_type, "content_type", class)?;
    let mut properties = Properties {
        message_id: Some(message_id),
        message_type,
        correlation_id,
        content_type,
        timestamp: Some(timestamp?),
        headers: row_headers(row.id, row.headers.as_deref(), row.ordering_key, rules)?,
        ..Properties::default()
    };
    if let Some(text) = &row.properties {
        properties.read(text)?;
    }
    if properties.content_type.is_none() {
        properties.content_type = Some(ShortText::known(rules.default_content_type));
    }
    check_user(properties.user_id.as_ref(), rules.login.as_deref())?;
    Ok(properties)
}

/// A consumer that meets an empty one cannot tell copies of a message from other messages.
fn message_id(text: String) -> Result<ShortText, Unfit> {
    let class = ReasonClass::InvalidMessageId;
    if text.is_empty() {
        let reason = "message_id is empty, so that no consumer could recognise a copy; leave the \
             column out for a random one";
        return Err(Unfit::new(class, reason));
    }
    short(text, "message_id", class)
}

/// RabbitMQ answers 406 on the channel unless the two agree
/// (<https://www.rabbitmq.com/docs/validated-user-id>).
fn check_user(user: Option<&ShortText>, login: Option<&str>) -> Result<(), Unfit> {
    match (user, login) {
        (Some(user), Some(login)) if user.as_str() != login => {
            let (user, login) = (quoted(user.as_str()), quoted(login));
            let reason = format!("property user_id is {user}, but the relay logs in as {login}");
            Err(Unfit::new(ReasonClass::InvalidProperties, reason))
        }
        (Some(_) | None, Some(_) | None) => Ok(()),
    }
}

/// AMQP counts seconds from 1970 on and knows nothing before.
fn timestamp(row: &OutboxRow) -> Result<u64, Unfit> {
    match row.created_at.duration_since(UNIX_EPOCH) {
        Ok(since) => Ok(since.as_secs()),
        Err(_) => {
            let reason = "created_at is before 1970, which an AMQP timestamp cannot express";
            Err(Unfit::new(ReasonClass::InvalidCreatedAt, reason))
        }
    }
}

fn row_headers(
    id: RowId,
    headers: Option<&str>,
    ordering_key: Option<String>,
    rules: &Rules,
) -> Result<FieldTable, Unfit> {
    let mut table = match headers {
        Some(text) => super::headers::read(text, rules.frame_max)?,
        None => FieldTable::default(),
    };
    let id = FieldValue::Integer(id.0);
    table.push(ShortText::known(Publication::ID_HEADER), id);
    if let Some(key) = ordering_key {
        let key = FieldValue::Text(key);
        table.push(ShortText::known(Publication::KEY_HEADER), key);
    }
    Ok(table)
}

#[cfg(test)]
pub(super) mod tests;
