//! Who takes part, and why rows wait: reasons, holders of partitions, signs of life.

use tokio_postgres::Row;

use super::{LIMIT, Look, seconds};
use crate::store::StoreError;
use crate::store::measures::{Holder, Instance};
use crate::store::postgres::held_back::understood;
use crate::store::postgres::ident::quote_literal;
use crate::store::postgres::row::get;

/// Reasons told at the most, and characters of each.
const REASONS: i64 = 20;
const REASON_LENGTH: i64 = 200;

impl Look<'_> {
    pub(super) async fn reasons(&self) -> Result<Vec<(String, i64)>, StoreError> {
        let sql = format!(
            "SELECT pg_catalog.left(coalesce(last_error, 'no reason is recorded'), {REASON_LENGTH}), count(*) \
             FROM (SELECT last_error FROM {} WHERE sent_at IS NULL AND retry_at IS NOT NULL \
                   ORDER BY retry_at DESC LIMIT {LIMIT}) AS waiting \
             GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {REASONS}",
            self.relation
        );
        let rows = self.rows("count reasons", &sql).await?;
        let read = |row: &Row| Ok((get(row, 0)?, get(row, 1)?));
        rows.iter().map(read).collect()
    }

    pub(super) async fn partitions(&self) -> Result<Vec<Holder>, StoreError> {
        let (lease, instance) = (
            self.outbox.sibling("lease"),
            self.outbox.sibling("instance"),
        );
        let relation = quote_literal(self.outbox.relation());
        let sql = format!(
            "SELECT l.owner, min(i.name), count(*), \
               coalesce(i.heartbeat_at + i.lease_for > pg_catalog.clock_timestamp(), false) AS valid \
             FROM {lease} AS l LEFT JOIN {instance} AS i ON i.instance = l.owner \
             WHERE l.relation = {relation} GROUP BY l.owner, valid ORDER BY count(*) DESC LIMIT 300"
        );
        let rows = self.rows("look for leases", &sql).await?;
        let read = |row: &Row| {
            Ok(Holder {
                owner: get(row, 0)?,
                name: get(row, 1)?,
                partitions: get(row, 2)?,
                valid: get(row, 3)?,
            })
        };
        rows.iter().map(read).collect()
    }

    pub(super) async fn instances(&self) -> Result<Vec<Instance>, StoreError> {
        let sql = format!(
            "SELECT instance, name, version, started_at, \
               EXTRACT(epoch FROM pg_catalog.clock_timestamp() - heartbeat_at)::float8, \
               ready, waits_for, database_state, broker_state, last_confirm_at, partitions, \
               EXTRACT(epoch FROM lease_for)::float8, pg_catalog.to_jsonb(i) -> 'held_back' \
             FROM {} AS i WHERE relation = {} ORDER BY started_at, name LIMIT 1000",
            self.outbox.sibling("instance"),
            quote_literal(self.outbox.relation())
        );
        let rows = self.rows("look who is alive", &sql).await?;
        let read = |row: &Row| {
            Ok(Instance {
                instance: get(row, 0)?,
                name: get(row, 1)?,
                version: get(row, 2)?,
                started_at: get(row, 3)?,
                silent_for: seconds(get(row, 4)?).unwrap_or_default(),
                lease: seconds(get(row, 11)?).unwrap_or_default(),
                ready: get(row, 5)?,
                waits_for: get(row, 6)?,
                database: get(row, 7)?,
                broker: get(row, 8)?,
                last_confirm_at: get(row, 9)?,
                partitions: get(row, 10)?,
                held_back: understood(get(row, 12)?),
            })
        };
        rows.iter().map(read).collect()
    }
}
