//! Makes rows that were sent and are still kept pending again, each with its record.

use std::time::SystemTime;

use tokio_postgres::types::Type;

use super::operator::{Act, BATCH_BYTES, Batch, Operator, Parameter, digest, wake};
use super::row::get;
use crate::store::StoreError;

/// Rows looked at by one statement at the most: there is no index on `sent_at`, so that a table
/// of years is walked over in bounded steps.
const WALK: i64 = 20_000;

/// Which sent rows are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Sent at this time or later …
    pub since: SystemTime,
    /// … and before this: the time of the command's start, so that nothing is sent twice more.
    pub before: SystemTime,
    /// To this exchange.
    pub exchange: Option<String>,
    /// Of this ordering key.
    pub key: Option<String>,
}

const FITS: &str = "sent_at >= $1 AND sent_at < $2 AND ($3::text IS NULL OR exchange = $3) \
     AND ($4::text IS NULL OR ordering_key = $4)";

impl Sent {
    fn parameters(&self) -> Vec<Parameter<'_>> {
        vec![
            (&self.since, Type::TIMESTAMPTZ),
            (&self.before, Type::TIMESTAMPTZ),
            (&self.exchange, Type::TEXT),
            (&self.key, Type::TEXT),
        ]
    }
}

impl Operator {
    /// The database's clock.
    ///
    /// # Errors
    /// [`StoreError`] as ever.
    pub async fn clock(&self) -> Result<SystemTime, StoreError> {
        let sql = "SELECT pg_catalog.clock_timestamp()";
        let rows = self.rows("ask for the time", sql, &[]).await?;
        let time = rows.first().map(|row| get(row, 0)).transpose()?;
        Ok(time.unwrap_or(SystemTime::UNIX_EPOCH))
    }

    /// Looks at the next rows above `cursor`, and how many of them are meant.
    ///
    /// # Errors
    /// [`StoreError`] as ever.
    pub async fn count_sent(&self, sent: &Sent, cursor: i64) -> Result<Batch, StoreError> {
        let sql = format!(
            "WITH page AS MATERIALIZED (SELECT id, sent_at, exchange, ordering_key FROM {} \
               WHERE id > $5 ORDER BY id LIMIT {WALK}) \
             SELECT count(*) FILTER (WHERE {FITS}), max(id) FROM page",
            self.outbox.quoted()
        );
        let mut parameters = sent.parameters();
        parameters.push((&cursor, Type::INT8));
        Batch::read(&self.rows("look for sent rows", &sql, &parameters).await?)
    }

    /// Makes up to `limit` of the next rows above `cursor` pending again: the same row, with its
    /// id and message_id. One transaction.
    ///
    /// # Errors
    /// [`StoreError`]; nothing was changed, unless it was the answer that was lost.
    pub async fn resend(
        &self,
        sent: &Sent,
        act: &Act,
        cursor: i64,
        limit: i64,
    ) -> Result<Batch, StoreError> {
        let ty = self.payload_type().await?;
        let sql = format!(
            "WITH page AS MATERIALIZED (SELECT id, sent_at, exchange, ordering_key, \
                 pg_catalog.pg_column_size(payload) AS size FROM {relation} \
               WHERE id > $5 ORDER BY id LIMIT {WALK}), \
             meant AS MATERIALIZED (SELECT id, row_number() OVER by_id AS place, \
                 sum(size) OVER by_id - size AS before \
               FROM page WHERE {FITS} WINDOW by_id AS (ORDER BY id)), \
             chosen AS MATERIALIZED (SELECT id FROM meant \
               WHERE place <= $6 AND before < {BATCH_BYTES}), \
             sent AS MATERIALIZED (SELECT id, sent_at FROM {relation} \
               WHERE id IN (SELECT id FROM chosen) AND sent_at IS NOT NULL ORDER BY id FOR UPDATE), \
             again AS (UPDATE {relation} AS m SET sent_at = NULL, attempts = 0, retry_at = NULL, \
                 last_error = NULL, xid = pg_catalog.pg_current_xact_id() \
               FROM sent WHERE m.id = sent.id \
               RETURNING m.id, m.message_id, m.exchange, m.payload, sent.sent_at AS was_sent_at), \
             record AS (INSERT INTO {audit} \
                 (act, by_whom, reason, row_id, message_id, detail, old_sha256, version) \
               SELECT 'resend', $7, $8, id, message_id, pg_catalog.jsonb_build_object(\
                 'exchange', exchange, 'sent_at', was_sent_at), {digest}, $9 FROM again ORDER BY id) \
             SELECT (SELECT count(*) FROM again), \
               CASE WHEN (SELECT count(*) FROM chosen) < (SELECT count(*) FROM meant) \
                 THEN (SELECT max(id) FROM chosen) ELSE (SELECT max(id) FROM page) END, {wake}",
            relation = self.outbox.quoted(),
            audit = self.outbox.sibling("audit"),
            wake = wake(&self.outbox),
            digest = digest("payload", &ty),
        );
        let mut parameters = sent.parameters();
        parameters.extend([
            (&cursor as _, Type::INT8),
            (&limit as _, Type::INT8),
            (&act.by as _, Type::TEXT),
            (&act.reason as _, Type::TEXT),
            (&act.version as _, Type::TEXT),
        ]);
        Batch::read(&self.rows("resend rows", &sql, &parameters).await?)
    }
}
