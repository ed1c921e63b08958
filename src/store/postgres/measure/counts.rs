//! How many rows are pending, and why, and for how long.

use super::{LIMIT, Look, seconds};
use crate::store::StoreError;
use crate::store::measures::{Count, Measures};
use crate::store::postgres::ident::quote_literal;
use crate::store::postgres::row::get;
use crate::store::postgres::schema::Index;

/// Rows at the low end among which the oldest due one is looked for.
const OLDEST: i64 = 10_000;

/// The number of rows of `source`, counted up to the limit.
pub(super) fn limited(source: &str) -> String {
    format!("(SELECT count(*) FROM (SELECT FROM {source} LIMIT {LIMIT}) AS counted)")
}

/// The number of ordering keys among the rows of `source`, up to the limit.
fn keys(source: &str) -> String {
    format!(
        "(SELECT count(DISTINCT ordering_key) FROM \
         (SELECT ordering_key FROM {source} LIMIT {LIMIT}) AS counted)"
    )
}

impl Look<'_> {
    pub(super) async fn counts(&self, measures: &mut Measures) -> Result<(), StoreError> {
        let rows = self.rows("count pending rows", &self.sql()).await?;
        let Some(row) = rows.first() else {
            return Ok(());
        };
        measures.pending = Count::new(get(row, 0)?, get(row, 1)?);
        measures.scheduled = Count::new(get(row, 2)?, get(row, 3)?);
        measures.waiting = Count::new(get(row, 4)?, get(row, 5)?);
        measures.blocked_keys = Count::new(get(row, 6)?, None);
        measures.oldest_due = seconds(get(row, 7)?);
        measures.dead_tuples = get(row, 8)?;
        Ok(())
    }

    /// Each source states the predicate of its own index (`migrations/0003`); the size of that
    /// index at the last vacuum or analyze is the estimate.
    fn sql(&self) -> String {
        let relation = &self.relation;
        let now = "pg_catalog.statement_timestamp()";
        let pending = format!("{relation} WHERE sent_at IS NULL AND id > 0 ORDER BY id");
        let scheduled = format!(
            "{relation} WHERE sent_at IS NULL AND available_at IS NOT NULL AND available_at > {now}"
        );
        let waiting = format!("{relation} WHERE sent_at IS NULL AND retry_at IS NOT NULL");
        format!(
            "SELECT {}, {}, {}, {}, {}, {}, {}, \
               EXTRACT(epoch FROM {now} - least({}, {}, {}))::float8, \
               (SELECT s.n_dead_tup FROM pg_catalog.pg_stat_user_tables s \
                WHERE s.schemaname = {} AND s.relname = {})",
            limited(&pending),
            self.entries(Index::Pending),
            limited(&scheduled),
            self.entries(Index::Available),
            limited(&waiting),
            self.entries(Index::Retry),
            keys(&format!("{waiting} AND ordering_key IS NOT NULL")),
            oldest(relation),
            longest_waiting(relation),
            longest_overdue(relation),
            quote_literal(self.outbox.schema()),
            quote_literal(self.outbox.relation()),
        )
    }

    fn entries(&self, index: Index) -> String {
        format!(
            "(SELECT c.reltuples::int8 FROM pg_catalog.pg_class c \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = {} AND c.relname = {} AND c.reltuples >= 0)",
            quote_literal(self.outbox.schema()),
            quote_literal(&index.name(self.outbox)),
        )
    }
}

/// When the oldest row without a schedule was written.
fn oldest(relation: &str) -> String {
    format!(
        "(SELECT min(created_at) FROM (SELECT created_at, available_at FROM {relation} \
         WHERE sent_at IS NULL AND id > 0 ORDER BY id LIMIT {OLDEST}) AS low \
         WHERE available_at IS NULL)"
    )
}

/// When the oldest was written of those that wait for a retry, wherever they stand.
fn longest_waiting(relation: &str) -> String {
    format!(
        "(SELECT min(greatest(created_at, available_at)) FROM (\
         SELECT created_at, available_at FROM {relation} \
         WHERE sent_at IS NULL AND retry_at IS NOT NULL ORDER BY retry_at LIMIT {OLDEST}) AS low)"
    )
}

/// When the row fell due that has been so for longest, of those with a schedule.
fn longest_overdue(relation: &str) -> String {
    format!(
        "(SELECT greatest(available_at, created_at) FROM {relation} \
         WHERE sent_at IS NULL AND available_at IS NOT NULL \
           AND available_at <= pg_catalog.statement_timestamp() ORDER BY available_at LIMIT 1)"
    )
}
