//! The SQL functions of schema `inbox`, called and read. Nothing here decides or retries.

use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::time::timeout;
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{GenericClient, Row};
use uuid::Uuid;

use super::envelope::Envelope;
use super::job::Key;
use super::message::Message;
use super::observer::DeadEntries;
use super::settings::Settings;
use crate::store::error::{Fault, StoreError};
use crate::store::postgres::sqlstate::store_error;

/// What a claim answered.
#[derive(Debug)]
pub(super) enum Claim {
    /// Ours to work on.
    Ours { key: Key, message: Box<Message> },
    /// Done already.
    Duplicate,
    /// Somebody works on it.
    Busy,
    /// Stored until its time or turn.
    Waiting,
    /// Given up already.
    Dead,
}

/// Calls the functions on a session or in a transaction, each within a deadline.
pub(super) struct Functions<'a, C> {
    pub(super) client: &'a C,
    pub(super) longest: Duration,
}

pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

impl<C: GenericClient + Sync> Functions<'_, C> {
    async fn ask(
        &self,
        doing: &str,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        match timeout(self.longest, self.client.query_typed(sql, parameters)).await {
            Ok(answer) => answer.map_err(|error| store_error(doing, &error)),
            Err(_) => {
                let reason = format!("no answer within {} s", self.longest.as_secs());
                Err(StoreError::TimedOut(Fault::new(doing, reason)))
            }
        }
    }

    pub(super) async fn one(
        &self,
        doing: &str,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Row, StoreError> {
        let rows = self.ask(doing, sql, parameters).await?;
        rows.into_iter()
            .next()
            .ok_or_else(|| StoreError::Other(Fault::new(doing, "empty answer")))
    }

    /// `inbox.configure`.
    pub(super) async fn configure(&self, settings: &Settings) -> Result<(), StoreError> {
        let sql = "SELECT inbox.configure($1, $2, make_interval(secs => $3), $4, \
                   make_interval(secs => $5), $6, make_interval(secs => $7), \
                   make_interval(secs => $8))::text";
        let attempts = i32::try_from(settings.max_attempts).unwrap_or(i32::MAX);
        let parameters: [Parameter<'_>; 8] = [
            (&settings.consumer, Type::TEXT),
            (&attempts, Type::INT4),
            (&settings.retry_initial.as_secs_f64(), Type::FLOAT8),
            (&settings.retry_multiplier, Type::FLOAT8),
            (&settings.retry_max_delay.as_secs_f64(), Type::FLOAT8),
            (&settings.retry_jitter, Type::FLOAT8),
            (&settings.done_retention.as_secs_f64(), Type::FLOAT8),
            (&settings.replay_window.as_secs_f64(), Type::FLOAT8),
        ];
        self.ask("inbox.configure", sql, &parameters)
            .await
            .map(drop)
    }

    /// `inbox.claim`.
    pub(super) async fn claim(
        &self,
        settings: &Settings,
        envelope: &Envelope,
    ) -> Result<Claim, StoreError> {
        const DOING: &str = "inbox.claim";
        let sql = "SELECT outcome, owner, attempt FROM inbox.claim($1, $2, \
                   make_interval(secs => $3), $4, $5, $6, $7, $8, coalesce($9, ''))";
        let parameters: [Parameter<'_>; 9] = [
            (&settings.consumer, Type::TEXT),
            (&envelope.message_id, Type::TEXT),
            (&settings.lease.as_secs_f64(), Type::FLOAT8),
            (&envelope.payload.as_ref(), Type::BYTEA),
            (&envelope.headers, Type::JSONB),
            (&envelope.properties, Type::JSONB),
            (&envelope.exchange, Type::TEXT),
            (&envelope.routing_key, Type::TEXT),
            (&envelope.ordering_key, Type::TEXT),
        ];
        let row = self.one(DOING, sql, &parameters).await?;
        let outcome: String = get(DOING, &row, "outcome")?;
        let taken_over = outcome == "taken_over";
        Ok(match outcome.as_str() {
            "claimed" | "taken_over" => Claim::Ours {
                key: Key {
                    message_id: envelope.message_id.clone(),
                    owner: get(DOING, &row, "owner")?,
                },
                message: Box::new(Message {
                    message_id: envelope.message_id.clone(),
                    ordering_key: envelope.ordering_key.clone(),
                    attempt: attempt(DOING, &row)?,
                    taken_over,
                    payload: envelope.payload.clone(),
                    headers: envelope.headers.clone(),
                    properties: envelope.properties.clone(),
                    exchange: envelope.exchange.clone(),
                    routing_key: envelope.routing_key.clone(),
                    schema_version: schema_version(&envelope.headers),
                }),
            },
            "duplicate" => Claim::Duplicate,
            "busy" => Claim::Busy,
            "waiting" => Claim::Waiting,
            "dead" => Claim::Dead,
            other => return Err(unknown(DOING, other)),
        })
    }

    /// `inbox.refuse`: keeps a message that nobody can work on, dead at once.
    pub(super) async fn refuse(
        &self,
        settings: &Settings,
        envelope: &Envelope,
        reason: &str,
    ) -> Result<(), StoreError> {
        let sql = "SELECT inbox.refuse($1, $2, $3, $4, $5, $6, $7, $8)";
        let parameters: [Parameter<'_>; 8] = [
            (&settings.consumer, Type::TEXT),
            (&envelope.message_id, Type::TEXT),
            (&envelope.payload.as_ref(), Type::BYTEA),
            (&reason, Type::TEXT),
            (&envelope.headers, Type::JSONB),
            (&envelope.properties, Type::JSONB),
            (&envelope.exchange, Type::TEXT),
            (&envelope.routing_key, Type::TEXT),
        ];
        self.ask("inbox.refuse", sql, &parameters).await.map(drop)
    }

    /// `inbox.due`.
    pub(super) async fn due(
        &self,
        settings: &Settings,
        limit: usize,
    ) -> Result<Vec<(Key, Message)>, StoreError> {
        const DOING: &str = "inbox.due";
        let sql = "SELECT * FROM inbox.due($1, $2, make_interval(secs => $3))";
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let parameters: [Parameter<'_>; 3] = [
            (&settings.consumer, Type::TEXT),
            (&limit, Type::INT4),
            (&settings.lease.as_secs_f64(), Type::FLOAT8),
        ];
        let rows = self.ask(DOING, sql, &parameters).await?;
        rows.iter().map(|row| stored(DOING, row)).collect()
    }

    /// `inbox.hold`: whether we are still the owner.
    pub(super) async fn hold(&self, consumer: &str, key: &Key) -> Result<bool, StoreError> {
        self.owned("inbox.hold", "SELECT inbox.hold($1, $2, $3)", consumer, key)
            .await
    }

    /// `inbox.renew`: whether we are still the owner.
    pub(super) async fn renew(
        &self,
        consumer: &str,
        key: &Key,
        lease: Duration,
    ) -> Result<bool, StoreError> {
        const DOING: &str = "inbox.renew";
        let sql = "SELECT inbox.renew($1, $2, $3, make_interval(secs => $4))";
        let parameters: [Parameter<'_>; 4] = [
            (&consumer, Type::TEXT),
            (&key.message_id, Type::TEXT),
            (&key.owner, Type::UUID),
            (&lease.as_secs_f64(), Type::FLOAT8),
        ];
        get(DOING, &self.one(DOING, sql, &parameters).await?, 0)
    }

    pub(super) async fn owned(
        &self,
        doing: &str,
        sql: &str,
        consumer: &str,
        key: &Key,
    ) -> Result<bool, StoreError> {
        let parameters: [Parameter<'_>; 3] = [
            (&consumer, Type::TEXT),
            (&key.message_id, Type::TEXT),
            (&key.owner, Type::UUID),
        ];
        get(doing, &self.one(doing, sql, &parameters).await?, 0)
    }

    /// `inbox.complete`: whether it counted.
    pub(super) async fn complete(
        &self,
        consumer: &str,
        key: &Key,
        result: Option<&Value>,
    ) -> Result<bool, StoreError> {
        const DOING: &str = "inbox.complete";
        let sql = "SELECT inbox.complete($1, $2, $3, $4)";
        let parameters: [Parameter<'_>; 4] = [
            (&consumer, Type::TEXT),
            (&key.message_id, Type::TEXT),
            (&key.owner, Type::UUID),
            (&result, Type::JSONB),
        ];
        get(DOING, &self.one(DOING, sql, &parameters).await?, 0)
    }

    /// Whether this owner's result stands: asked after a commit whose answer was lost.
    pub(super) async fn is_done(&self, consumer: &str, key: &Key) -> Result<bool, StoreError> {
        let sql = "SELECT EXISTS (SELECT FROM inbox.message WHERE consumer = $1 \
                   AND message_id = $2 AND owner = $3 AND state = 'done')";
        self.owned("look at an entry", sql, consumer, key).await
    }

    /// `inbox.tidy`: how many were forgotten.
    pub(super) async fn tidy(&self, consumer: &str, limit: i32) -> Result<i32, StoreError> {
        const DOING: &str = "inbox.tidy";
        let parameters: [Parameter<'_>; 2] = [(&consumer, Type::TEXT), (&limit, Type::INT4)];
        let row = self.one(DOING, "SELECT inbox.tidy($1, $2)", &parameters);
        get(DOING, &row.await?, 0)
    }

    /// Dead entries by class.
    pub(super) async fn dead(&self, consumer: &str) -> Result<Vec<DeadEntries>, StoreError> {
        const DOING: &str = "count dead entries";
        let sql = "SELECT coalesce(reason_class, ''), count(*), \
                   greatest(extract(epoch FROM clock_timestamp() - min(done_at)), 0)::float8 \
                   FROM inbox.message WHERE consumer = $1 AND state = 'dead' GROUP BY 1";
        let rows = self.ask(DOING, sql, &[(&consumer, Type::TEXT)]).await?;
        let read = |row: &Row| {
            let rows: i64 = get(DOING, row, 1)?;
            Ok(DeadEntries {
                reason: get(DOING, row, 0)?,
                rows: u64::try_from(rows).unwrap_or(0),
                oldest_age: Duration::try_from_secs_f64(get(DOING, row, 2)?).unwrap_or_default(),
            })
        };
        rows.iter().map(read).collect()
    }
}

fn stored(doing: &str, row: &Row) -> Result<(Key, Message), StoreError> {
    let outcome: String = get(doing, row, "outcome")?;
    let payload: Vec<u8> = get(doing, row, "payload")?;
    let headers: Option<Value> = get(doing, row, "headers")?;
    let properties: Option<Value> = get(doing, row, "properties")?;
    let key = Key {
        message_id: get(doing, row, "message_id")?,
        owner: get(doing, row, "owner")?,
    };
    let message = Message {
        message_id: key.message_id.clone(),
        ordering_key: get(doing, row, "ordering_key")?,
        attempt: attempt(doing, row)?,
        taken_over: outcome == "taken_over",
        payload: Bytes::from(payload),
        headers: headers.unwrap_or_default(),
        properties: properties.unwrap_or_default(),
        exchange: get(doing, row, "exchange")?,
        routing_key: get(doing, row, "routing_key")?,
        schema_version: get(doing, row, "schema_version")?,
    };
    Ok((key, message))
}

/// As SQL's `->>` shows it.
fn schema_version(headers: &Value) -> Option<String> {
    match headers.get("schema-version")? {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            Some(other.to_string())
        }
    }
}

fn attempt(doing: &str, row: &Row) -> Result<u32, StoreError> {
    let attempt: i32 = get(doing, row, "attempt")?;
    Ok(u32::try_from(attempt).unwrap_or(0))
}

pub(super) fn get<'a, T, I>(doing: &str, row: &'a Row, column: I) -> Result<T, StoreError>
where
    T: FromSql<'a>,
    I: tokio_postgres::row::RowIndex + std::fmt::Display,
{
    row.try_get(column)
        .map_err(|error| store_error(doing, &error))
}

fn unknown(doing: &str, outcome: &str) -> StoreError {
    let reason =
        format!("the outcome {outcome:?} is unknown: the schema is newer than this program");
    StoreError::Schema(Fault::new(doing, reason))
}

/// Of another message it would have been taken: the contents are to blame, not the database
/// (classes 22 and 23, and 54, "program limit exceeded"; PostgreSQL manual, appendix A).
pub(super) fn is_the_messages_fault(error: &StoreError) -> bool {
    let class = error.sqlstate().and_then(|code| code.get(..2));
    matches!(class, Some("22" | "23" | "54"))
}

/// Names an owner in logs without its whole token.
pub(super) fn short(owner: Uuid) -> String {
    owner.simple().to_string().chars().take(8).collect()
}
