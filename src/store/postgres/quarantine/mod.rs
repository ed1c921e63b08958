//! Rows in quarantine: which are meant, what is known of them, and the bytes they hold.
//!
//! Looks only; `replay` and `discard` act.

mod discard;
mod replay;

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::ident::{Outbox, quote_literal};
use super::operator::{BATCH_BYTES, Operator, Parameter, digest, size};
use super::row::get;
use super::values::PayloadBytes;
use crate::relay::rules::BEHIND_QUARANTINED;
use crate::store::StoreError;

pub use replay::{Obstacles, Replay};

/// Which rows are meant: those that fit everything that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// One of these reason classes; none for any.
    pub classes: Vec<String>,
    /// To this exchange.
    pub exchange: Option<String>,
    /// Of this ordering key.
    pub key: Option<String>,
    /// One of these ids, or of `message_ids`; none of both for any.
    pub ids: Vec<i64>,
    /// See `ids`.
    pub message_ids: Vec<String>,
    /// In quarantine for at least so long.
    pub older_than: Option<Duration>,
    /// In quarantine for at most so long.
    pub newer_than: Option<Duration>,
}

impl Selection {
    /// Nothing is given, so everything is meant.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }
}

/// What [`Parameters`] bind.
const FITS: &str = "(pg_catalog.cardinality($1::text[]) = 0 OR q.reason_class = ANY ($1)) \
     AND ($2::text IS NULL OR q.exchange = $2) AND ($3::text IS NULL OR q.ordering_key = $3) \
     AND (pg_catalog.cardinality($4::bigint[]) + pg_catalog.cardinality($5::text[]) = 0 \
       OR q.id = ANY ($4) OR q.message_id = ANY ($5)) \
     AND ($6::float8 IS NULL \
       OR q.quarantined_at <= pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $6)) \
     AND ($7::float8 IS NULL \
       OR q.quarantined_at >= pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $7))";

/// A selection in PostgreSQL's types: $1 to $7.
struct Parameters<'a> {
    selection: &'a Selection,
    older_than: Option<f64>,
    newer_than: Option<f64>,
}

impl<'a> Parameters<'a> {
    fn of(selection: &'a Selection) -> Self {
        Self {
            selection,
            older_than: selection.older_than.map(|age| age.as_secs_f64()),
            newer_than: selection.newer_than.map(|age| age.as_secs_f64()),
        }
    }

    fn list(&self) -> Vec<Parameter<'_>> {
        vec![
            (&self.selection.classes, Type::TEXT_ARRAY),
            (&self.selection.exchange, Type::TEXT),
            (&self.selection.key, Type::TEXT),
            (&self.selection.ids, Type::INT8_ARRAY),
            (&self.selection.message_ids, Type::TEXT_ARRAY),
            (&self.older_than, Type::FLOAT8),
            (&self.newer_than, Type::FLOAT8),
        ]
    }
}

/// Rows for the next transaction, lowest id first, of the quarantine `q` that `condition` lets
/// through: the cursor is $8, their number at most $9. One of each id, so that what is put back
/// does not collide with itself.
fn next_batch(quarantine: &str, condition: &str) -> String {
    format!(
        "chosen AS MATERIALIZED (SELECT id, quarantine_id FROM (\
           SELECT id, quarantine_id, sum(size) OVER (ORDER BY id) - size AS before FROM (\
             SELECT DISTINCT ON (q.id) q.id, q.quarantine_id, \
               coalesce(pg_catalog.pg_column_size(q.payload), 0) AS size \
             FROM {quarantine} AS q WHERE q.id > $8 AND {FITS} AND {condition} \
             ORDER BY q.id, q.quarantine_id LIMIT $9) AS page) AS sized \
         WHERE before < {BATCH_BYTES})"
    )
}

/// Lets go what waits behind the rows of `{decided}`: those that wait for nothing else come at
/// once, with a new xid, so that a relay sees them. A row that somebody holds comes in its time.
fn release(outbox: &Outbox, decided: &str) -> String {
    let relation = outbox.quoted();
    format!(
        "behind AS MATERIALIZED (SELECT id FROM {relation} \
           WHERE sent_at IS NULL AND retry_at IS NOT NULL AND last_error = {} \
             AND ordering_key IN (SELECT ordering_key FROM {decided}) \
           ORDER BY id FOR UPDATE SKIP LOCKED), \
         released AS (UPDATE {relation} AS m SET retry_at = pg_catalog.clock_timestamp(), \
             xid = pg_catalog.pg_current_xact_id() FROM behind WHERE m.id = behind.id)",
        quote_literal(BEHIND_QUARANTINED)
    )
}

/// A row in quarantine, without its bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// This entry.
    pub quarantine_id: i64,
    /// In the outbox.
    pub id: i64,
    /// AMQP message-id.
    pub message_id: String,
    /// Destination.
    pub exchange: String,
    /// Destination.
    pub routing_key: String,
    /// What it is ordered by.
    pub ordering_key: Option<String>,
    /// One word.
    pub reason_class: String,
    /// In a sentence.
    pub reason: String,
    /// Attempts charged to it.
    pub attempts: i32,
    /// When it was written.
    pub created_at: SystemTime,
    /// First failure known.
    pub first_failed_at: SystemTime,
    /// Failure that led here.
    pub last_failed_at: SystemTime,
    /// When it was given up.
    pub quarantined_at: SystemTime,
}

const ENTRY: &str = "q.quarantine_id, q.id, q.message_id, q.exchange, q.routing_key, \
     q.ordering_key, q.reason_class, q.reason, q.attempts, q.created_at, q.first_failed_at, \
     q.last_failed_at, q.quarantined_at";

/// Columns of [`ENTRY`].
const ENTRY_COLUMNS: usize = 13;

impl Entry {
    fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            quarantine_id: get(row, 0)?,
            id: get(row, 1)?,
            message_id: get(row, 2)?,
            exchange: get(row, 3)?,
            routing_key: get(row, 4)?,
            ordering_key: get(row, 5)?,
            reason_class: get(row, 6)?,
            reason: get(row, 7)?,
            attempts: get(row, 8)?,
            created_at: get(row, 9)?,
            first_failed_at: get(row, 10)?,
            last_failed_at: get(row, 11)?,
            quarantined_at: get(row, 12)?,
        })
    }
}

/// All that is kept of a row but its payload.
#[derive(Clone, Debug, PartialEq)]
pub struct Whole {
    /// What the list shows, too.
    pub entry: Entry,
    /// AMQP property.
    pub message_type: Option<String>,
    /// AMQP property.
    pub correlation_id: Option<String>,
    /// AMQP property.
    pub content_type: Option<String>,
    /// As written.
    pub headers: Option<Value>,
    /// As written.
    pub properties: Option<Value>,
    /// As written.
    pub available_at: Option<SystemTime>,
    /// Bytes, as published; `None` where there is no payload.
    pub payload_size: Option<i32>,
    /// SHA-256 of them, in hexadecimal digits.
    pub payload_sha256: Option<String>,
}

impl Operator {
    /// The newest `limit` rows that are meant.
    ///
    /// # Errors
    /// [`StoreError`] as ever.
    pub async fn quarantined(
        &self,
        selection: &Selection,
        limit: i64,
    ) -> Result<Vec<Entry>, StoreError> {
        let sql = format!(
            "SELECT {ENTRY} FROM {} AS q WHERE {FITS} ORDER BY q.quarantine_id DESC LIMIT $8",
            self.outbox.sibling("quarantine")
        );
        let parameters = Parameters::of(selection);
        let mut parameters = parameters.list();
        parameters.push((&limit, Type::INT8));
        let rows = self.rows("look into quarantine", &sql, &parameters).await?;
        rows.iter().map(Entry::read).collect()
    }

    /// Everything but the payload, oldest first; at most 100.
    ///
    /// # Errors
    /// [`StoreError`] as ever.
    pub async fn quarantined_whole(&self, selection: &Selection) -> Result<Vec<Whole>, StoreError> {
        let ty = self.payload_type().await?;
        let sql = format!(
            "SELECT {ENTRY}, q.type, q.correlation_id, q.content_type, q.headers, q.properties, \
               q.available_at, {}, pg_catalog.encode({}, 'hex') \
             FROM {} AS q WHERE {FITS} ORDER BY q.quarantine_id LIMIT 100",
            size("q.payload", &ty),
            digest("q.payload", &ty),
            self.outbox.sibling("quarantine")
        );
        let parameters = Parameters::of(selection);
        let parameters = parameters.list();
        let rows = self.rows("look into quarantine", &sql, &parameters);
        let read = |row: &Row| {
            let column = |after: usize| ENTRY_COLUMNS + after;
            Ok(Whole {
                entry: Entry::read(row)?,
                message_type: get(row, column(0))?,
                correlation_id: get(row, column(1))?,
                content_type: get(row, column(2))?,
                headers: get(row, column(3))?,
                properties: get(row, column(4))?,
                available_at: get(row, column(5))?,
                payload_size: get(row, column(6))?,
                payload_sha256: get(row, column(7))?,
            })
        };
        rows.await?.iter().map(read).collect()
    }

    /// What is named by id or message_id, and no row fits.
    ///
    /// # Errors
    /// [`StoreError`] as ever.
    pub async fn absent(&self, selection: &Selection) -> Result<Vec<String>, StoreError> {
        let quarantine = self.outbox.sibling("quarantine");
        let unknown = |named: &str, column: &str| {
            format!(
                "SELECT named::text FROM pg_catalog.unnest({named}) AS named WHERE NOT EXISTS \
                   (SELECT FROM {quarantine} AS q WHERE q.{column} = named AND {FITS})"
            )
        };
        let (ids, message_ids) = (unknown("$4", "id"), unknown("$5", "message_id"));
        let parameters = Parameters::of(selection);
        let sql = format!("{ids} UNION ALL {message_ids}");
        let parameters = parameters.list();
        let rows = self.rows("look into quarantine", &sql, &parameters);
        rows.await?.iter().map(|row| get(row, 0)).collect()
    }

    /// The first entry of this key for a row before this one.
    ///
    /// # Errors
    /// [`StoreError`] as ever.
    pub async fn quarantined_before(
        &self,
        key: &str,
        id: i64,
    ) -> Result<Option<Entry>, StoreError> {
        let sql = format!(
            "SELECT {ENTRY} FROM {} AS q \
             WHERE pg_catalog.hashtextextended(q.ordering_key, 0) = \
                 pg_catalog.hashtextextended($1, 0) \
               AND q.ordering_key = $1 AND q.id < $2 ORDER BY q.id LIMIT 1",
            self.outbox.sibling("quarantine")
        );
        let parameters: [Parameter<'_>; 2] = [(&key, Type::TEXT), (&id, Type::INT8)];
        let rows = self.rows("look into quarantine", &sql, &parameters).await?;
        rows.first().map(Entry::read).transpose()
    }

    /// The payload of the entry, byte for byte as it would be published.
    ///
    /// # Errors
    /// [`StoreError`] as ever.
    pub async fn quarantined_payload(
        &self,
        quarantine_id: i64,
    ) -> Result<Option<Bytes>, StoreError> {
        let sql = format!(
            "SELECT payload FROM {} WHERE quarantine_id = $1",
            self.outbox.sibling("quarantine")
        );
        let parameters: [Parameter<'_>; 1] = [(&quarantine_id, Type::INT8)];
        let rows = self.rows("fetch a payload", &sql, &parameters).await?;
        let payload = rows.first().map(|row| get::<Option<PayloadBytes>>(row, 0));
        Ok(payload
            .transpose()?
            .flatten()
            .map(|PayloadBytes(bytes)| bytes))
    }
}
