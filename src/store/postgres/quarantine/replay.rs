//! Puts rows from quarantine back into the outbox, each with its record.
//!
//! A row keeps everything that it was written with, its id and message_id above all; what the
//! relay knew of it begins anew. Its new xid lets the relay see it. Within a key the order is that
//! of the ids, as ever.

use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};

use super::super::operator::{Act, Batch, Operator, digest, wake};
use super::super::row::get;
use super::{FITS, Parameters, Selection, next_batch, release};
use crate::store::StoreError;
use crate::store::error::Fault;

/// What a replay is allowed to do.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    /// Rows written longer ago stay; `None` to replay them, too.
    pub window: Option<Duration>,
    /// In place of the payload of the one row that is meant.
    pub payload: Option<Vec<u8>>,
}

/// What is meant, and what of it cannot be put back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Obstacles {
    /// Rows meant.
    pub meant: u64,
    /// Of these: written before the replay window, and for no other reason.
    pub beyond_window: u64,
    /// Of these: a row of this id is in the outbox.
    pub there_again: u64,
    /// Of these: without a payload there is nothing to send.
    pub no_payload: u64,
}

impl Obstacles {
    /// Rows that can be put back.
    #[must_use]
    pub fn replayable(self) -> u64 {
        let held = self.beyond_window + self.there_again + self.no_payload;
        self.meant.saturating_sub(held)
    }
}

/// What a row is written with, but for its payload.
const WRITTEN: &str = "message_id, exchange, routing_key, ordering_key, headers, type, \
     correlation_id, content_type, properties, available_at, created_at";

fn there_again(relation: &str) -> String {
    format!("EXISTS (SELECT FROM {relation} AS m WHERE m.id = q.id)")
}

/// Within the window, given in seconds by the parameter of this number.
fn within_window(parameter: usize) -> String {
    format!(
        "(${parameter}::float8 IS NULL OR q.created_at >= \
         pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => ${parameter}))"
    )
}

impl Operator {
    /// Looks what a replay would do.
    ///
    /// # Errors
    /// [`StoreError`] as ever.
    pub async fn replay_obstacles(
        &self,
        selection: &Selection,
        replay: &Replay,
    ) -> Result<Obstacles, StoreError> {
        let (again, inside) = (there_again(&self.outbox.quoted()), within_window(8));
        let sql = format!(
            "SELECT count(*), count(*) FILTER (WHERE again), \
               count(*) FILTER (WHERE NOT again AND empty), \
               count(*) FILTER (WHERE NOT again AND NOT empty AND NOT inside) \
             FROM (SELECT {again} AS again, q.payload IS NULL AND NOT $9 AS empty, \
               {inside} AS inside FROM {} AS q WHERE {FITS}) AS meant",
            self.outbox.sibling("quarantine")
        );
        let window = replay.window.map(|window| window.as_secs_f64());
        let edited = replay.payload.is_some();
        let parameters = Parameters::of(selection);
        let mut parameters = parameters.list();
        parameters.extend([(&window as _, Type::FLOAT8), (&edited as _, Type::BOOL)]);
        let rows = self.rows("look into quarantine", &sql, &parameters).await?;
        let Some(row) = rows.first() else {
            return Ok(Obstacles::default());
        };
        let count = |column| Ok(u64::try_from(get::<i64>(row, column)?).unwrap_or(0));
        Ok(Obstacles {
            meant: count(0)?,
            there_again: count(1)?,
            no_payload: count(2)?,
            beyond_window: count(3)?,
        })
    }

    /// Puts up to `limit` of the rows meant whose id is above `cursor` back. One transaction.
    ///
    /// # Errors
    /// [`StoreError`]; nothing was put back, unless it was the answer that was lost.
    pub async fn replay(
        &self,
        selection: &Selection,
        replay: &Replay,
        act: &Act,
        cursor: i64,
        limit: i64,
    ) -> Result<Batch, StoreError> {
        let ty = self.payload_type().await?;
        let sql = self.replay_sql(&ty, replay.payload.is_some());
        let window = replay.window.map(|window| window.as_secs_f64());
        let parameters = Parameters::of(selection);
        let mut parameters = parameters.list();
        parameters.extend([
            (&cursor as _, Type::INT8),
            (&limit as _, Type::INT8),
            (&act.by as _, Type::TEXT),
            (&act.reason as _, Type::TEXT),
            (&act.version as _, Type::TEXT),
            (&window as _, Type::FLOAT8),
        ]);
        let edited = replay.payload.as_deref();
        let edited = edited.map(|bytes| parameter(bytes, &ty)).transpose()?;
        if let Some((value, ty)) = &edited {
            parameters.push((value.as_ref(), ty.clone()));
        }
        Batch::read(&self.rows("replay rows", &sql, &parameters).await?)
    }

    fn replay_sql(&self, ty: &Type, edited: bool) -> String {
        let (relation, quarantine) = (self.outbox.quoted(), self.outbox.sibling("quarantine"));
        let (payload, changed) = if edited {
            let payload = format!("$14::{}", ty.name());
            let changed = digest(&payload, ty);
            (payload, changed)
        } else {
            ("payload".to_owned(), "NULL".to_owned())
        };
        let has_payload = if edited {
            "true"
        } else {
            "q.payload IS NOT NULL"
        };
        let condition = format!(
            "{has_payload} AND {} AND NOT {}",
            within_window(13),
            there_again(&relation)
        );
        format!(
            "WITH {chosen}, \
             taken AS (DELETE FROM {quarantine} AS q USING chosen \
               WHERE q.quarantine_id = chosen.quarantine_id RETURNING q.*), \
             back AS (INSERT INTO {relation} (id, {WRITTEN}, payload, attempts, retry_at, \
                 last_error, sent_at, xid) OVERRIDING SYSTEM VALUE \
               SELECT id, {WRITTEN}, {payload}, 0, NULL, NULL, NULL, pg_catalog.pg_current_xact_id() \
               FROM taken ORDER BY id), \
             {release}, \
             record AS (INSERT INTO {audit} \
               (act, by_whom, reason, row_id, message_id, detail, old_sha256, new_sha256, version) \
               SELECT 'replay', $10, $11, id, message_id, pg_catalog.jsonb_build_object(\
                 'quarantine_id', quarantine_id, 'reason_class', reason_class, 'reason', reason, \
                 'quarantined_at', quarantined_at), {old}, {changed}, $12 \
               FROM taken ORDER BY id) \
             SELECT (SELECT count(*) FROM taken), (SELECT max(id) FROM chosen), {wake}",
            chosen = next_batch(&quarantine, &condition),
            audit = self.outbox.sibling("audit"),
            release = release(&self.outbox, "taken"),
            wake = wake(&self.outbox),
            old = digest("payload", ty),
        )
    }
}

/// Bytes as a value that becomes a payload of this type by a cast.
fn parameter(bytes: &[u8], ty: &Type) -> Result<(Box<dyn ToSql + Sync + Send>, Type), StoreError> {
    if *ty == Type::BYTEA {
        return Ok((Box::new(bytes.to_vec()), Type::BYTEA));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let reason = format!(
            "the payload column has type {ty}, and the file is not UTF-8 after byte {}",
            error.valid_up_to()
        );
        StoreError::Other(Fault::new("edit the payload", reason))
    })?;
    Ok((Box::new(text.to_owned()), Type::TEXT))
}
