//! Measures of an outbox as a whole, for metrics and `outbox-relay status`. Each statement walks
//! over a bounded number of entries of an index that holds pending rows only.

mod counts;
mod parties;
mod pins;

use std::time::Duration;

use tokio_postgres::Row;

use super::ident::Outbox;
use super::reader::within;
use super::row::get;
use super::session::Session;
use super::shape::Shape;
use crate::store::StoreError;
use crate::store::measures::{COUNTED, Count, GivenUp, Measures, Pause};

use counts::limited;

/// Measures the outbox.
pub(super) async fn measures(
    session: &Session,
    outbox: &Outbox,
    shape: &Shape,
    deadline: Duration,
) -> Result<Measures, StoreError> {
    let look = Look {
        session,
        outbox,
        relation: format!("{} AS m", shape.readable(outbox)),
        deadline,
    };
    let mut measures = Measures::default();
    look.counts(&mut measures).await?;
    measures.quarantine = look.quarantine().await?;
    measures.pauses = look.pauses().await?;
    measures.reasons = look.reasons().await?;
    measures.partitions = look.partitions().await?;
    measures.instances = look.instances().await?;
    look.pins(&mut measures).await?;
    Ok(measures)
}

/// One look at one outbox.
pub(super) struct Look<'a> {
    pub(super) session: &'a Session,
    pub(super) outbox: &'a Outbox,
    /// What stands in FROM, where rows are read.
    pub(super) relation: String,
    pub(super) deadline: Duration,
}

impl Look<'_> {
    pub(super) async fn rows(
        &self,
        doing: &'static str,
        sql: &str,
    ) -> Result<Vec<Row>, StoreError> {
        let asked = self.session.client.query_typed(sql, &[]);
        within(self.deadline, doing, asked).await
    }

    /// Class by class along the index, so that the number of rows does not matter.
    async fn quarantine(&self) -> Result<Vec<GivenUp>, StoreError> {
        let table = self.outbox.sibling("quarantine");
        let counted = limited(&format!("{table} WHERE reason_class = class.reason_class"));
        let sql = format!(
            "WITH RECURSIVE class AS (\
               (SELECT reason_class FROM {table} ORDER BY reason_class LIMIT 1) \
               UNION ALL \
               SELECT (SELECT q.reason_class FROM {table} AS q \
                       WHERE q.reason_class > class.reason_class ORDER BY q.reason_class LIMIT 1) \
               FROM class WHERE class.reason_class IS NOT NULL) \
             SELECT reason_class, {counted}, \
               EXTRACT(epoch FROM pg_catalog.clock_timestamp() - \
                 (SELECT min(quarantined_at) FROM {table} AS q \
                  WHERE q.reason_class = class.reason_class))::float8 \
             FROM class WHERE reason_class IS NOT NULL"
        );
        let rows = self.rows("count the quarantine", &sql).await?;
        let read = |row: &Row| {
            Ok(GivenUp {
                reason: get(row, 0)?,
                rows: Count::new(get(row, 1)?, None),
                oldest: seconds(get(row, 2)?).unwrap_or_default(),
            })
        };
        rows.iter().map(read).collect()
    }

    async fn pauses(&self) -> Result<Vec<Pause>, StoreError> {
        let sql = format!(
            "SELECT exchange, by_whom, reason, paused_at, until FROM {} \
             WHERE until IS NULL OR until > pg_catalog.clock_timestamp() \
             ORDER BY exchange NULLS FIRST LIMIT 1000",
            self.outbox.sibling("pause")
        );
        let rows = self.rows("look for pauses", &sql).await?;
        let read = |row: &Row| {
            Ok(Pause {
                exchange: get(row, 0)?,
                by: get(row, 1)?,
                reason: get(row, 2)?,
                since: get(row, 3)?,
                until: get(row, 4)?,
            })
        };
        rows.iter().map(read).collect()
    }
}

/// A span in PostgreSQL's seconds; one that lies ahead, by a clock set back, is none.
pub(super) fn seconds(span: Option<f64>) -> Option<Duration> {
    span.map(|span| Duration::try_from_secs_f64(span.max(0.0)).unwrap_or(Duration::MAX))
}

/// One more than is counted.
pub(super) const LIMIT: i64 = COUNTED + 1;
