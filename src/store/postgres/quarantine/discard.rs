//! Removes rows from quarantine for good, each with its record.

use tokio_postgres::types::Type;

use super::super::operator::{Act, Batch, Operator, digest, wake};
use super::super::row::get;
use super::{FITS, Parameters, Selection, next_batch, release};
use crate::store::StoreError;

impl Operator {
    /// How many rows are meant.
    ///
    /// # Errors
    /// [`StoreError`] as ever.
    pub async fn count_quarantined(&self, selection: &Selection) -> Result<u64, StoreError> {
        let sql = format!(
            "SELECT count(*) FROM {} AS q WHERE {FITS}",
            self.outbox.sibling("quarantine")
        );
        let parameters = Parameters::of(selection);
        let parameters = parameters.list();
        let rows = self.rows("count rows in quarantine", &sql, &parameters);
        let rows = rows.await?;
        let count: i64 = rows
            .first()
            .map(|row| get(row, 0))
            .transpose()?
            .unwrap_or(0);
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// Discards up to `limit` of the rows meant whose id is above `cursor`. One transaction; what
    /// the record keeps is everything that names the row and the digest of its payload.
    ///
    /// # Errors
    /// [`StoreError`]; nothing was discarded, unless it was the answer that was lost.
    pub async fn discard(
        &self,
        selection: &Selection,
        act: &Act,
        cursor: i64,
        limit: i64,
    ) -> Result<Batch, StoreError> {
        let ty = self.payload_type().await?;
        let (quarantine, audit) = (
            self.outbox.sibling("quarantine"),
            self.outbox.sibling("audit"),
        );
        let sql = format!(
            "WITH {chosen}, \
             gone AS (DELETE FROM {quarantine} AS q USING chosen \
               WHERE q.quarantine_id = chosen.quarantine_id RETURNING q.*), \
             {release}, \
             record AS (INSERT INTO {audit} \
               (act, by_whom, reason, row_id, message_id, detail, old_sha256, version) \
               SELECT 'discard', $10, $11, id, message_id, pg_catalog.jsonb_build_object(\
                 'quarantine_id', quarantine_id, 'exchange', exchange, 'routing_key', routing_key, \
                 'ordering_key', ordering_key, 'reason_class', reason_class, 'reason', reason, \
                 'created_at', created_at, 'quarantined_at', quarantined_at), {digest}, $12 \
               FROM gone ORDER BY id) \
             SELECT (SELECT count(*) FROM gone), (SELECT max(id) FROM chosen), {wake}",
            chosen = next_batch(&quarantine, "true"),
            release = release(&self.outbox, "gone"),
            wake = wake(&self.outbox),
            digest = digest("payload", &ty),
        );
        let parameters = Parameters::of(selection);
        let mut parameters = parameters.list();
        parameters.extend([
            (&cursor as _, Type::INT8),
            (&limit as _, Type::INT8),
            (&act.by as _, Type::TEXT),
            (&act.reason as _, Type::TEXT),
            (&act.version as _, Type::TEXT),
        ]);
        Batch::read(&self.rows("discard rows", &sql, &parameters).await?)
    }
}
