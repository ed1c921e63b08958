//! Removes sent rows when `outbox.retention` is over.
//!
//! One statement looks at a bounded stretch of ids by the primary key, which alone can serve
//! it, and deletes what it may. It waits for no lock: a row that somebody holds stays until a
//! later walk, so that no two sessions can wait for each other.

use std::time::Duration;

use futures_util::future::join3;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::ident::Outbox;
use super::reader::within;
use super::row::get;
use super::session::Session;
use crate::relay::rules::{SWEEP_ROWS, Stretch, Swept};
use crate::store::{Fault, StoreError};

/// The longest that settlements may wait for a sweep. A foreign key without an index, or a trigger,
/// can make a removal take any time.
const PATIENCE: Duration = Duration::from_secs(1);

fn limit(statement: Duration) -> Duration {
    if statement.is_zero() {
        PATIENCE
    } else {
        PATIENCE.min(statement)
    }
}

fn timeout(limit: Duration) -> String {
    format!("SET statement_timeout = {}", limit.as_millis())
}

/// Sweeps one stretch.
pub(super) async fn sweep(
    session: &Session,
    outbox: &Outbox,
    deadline: Duration,
    stretch: Stretch,
    left_out: &[i64],
) -> Result<Swept, StoreError> {
    let retention = stretch.retention.as_secs_f64();
    let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
        (&stretch.after, Type::INT8),
        (&stretch.up_to, Type::INT8),
        (&retention, Type::FLOAT8),
        (&left_out, Type::INT8_ARRAY),
    ];
    // Unnamed, so that a table that a migration changes meanwhile does no harm.
    let sql = sql(outbox);
    let usual = session.statement_timeout;
    let (short, usual) = (timeout(limit(usual)), timeout(usual));
    let client = &session.client;
    let mut row = None;
    // One round trip; what follows a failure is carried out as well.
    let sweep = async {
        let set = client.batch_execute(&short);
        let swept = client.query_typed(&sql, &parameters);
        let (set, rows, reset) = join3(set, swept, client.batch_execute(&usual)).await;
        let swept = set.and(reset).and(rows);
        row = swept.as_ref().err().and_then(referred_to);
        swept
    };
    let rows = within(deadline, "remove sent rows", sweep).await;
    let rows = rows.map_err(|error| error.map_fault(|fault| Fault { row, ..fault }))?;
    let Some(row) = rows.first() else {
        return Ok(Swept::default());
    };
    let count = |column| get(row, column).map(|count: i64| usize::try_from(count).unwrap_or(0));
    let (old, removed, free) = (count(3)?, count(4)?, count(6)?);
    Ok(Swept {
        looked: count(0)?,
        last: get(row, 1)?,
        young: get(row, 2)?,
        removed,
        top: get::<Option<i64>>(row, 5)?.unwrap_or(0),
        held: old.saturating_sub(free),
        kept: get::<Option<Vec<i64>>>(row, 7)?.unwrap_or_default(),
    })
}

/// The row that a foreign key keeps: DETAIL says so in whatever language, and nothing else of it is
/// taken over.
fn referred_to(error: &Error) -> Option<i64> {
    let answer = error.as_db_error();
    let answer = answer.filter(|answer| *answer.code() == SqlState::FOREIGN_KEY_VIOLATION)?;
    let (_, key) = answer.detail()?.split_once("(id)=(")?;
    key.split_once(')')?.0.parse().ok()
}

/// $1 ids above, $2 up to, $3 retention in seconds, $4 ids to leave out. Ids are never below 1.
fn sql(outbox: &Outbox) -> String {
    let relation = outbox.quoted();
    format!(
        "WITH cutoff AS MATERIALIZED (SELECT pg_catalog.clock_timestamp() \
           - pg_catalog.make_interval(secs => $3) AS at), \
         looked AS MATERIALIZED (SELECT id, sent_at FROM {relation} \
           WHERE id > $1 AND id <= $2 AND id <> ALL ($4) ORDER BY id LIMIT {SWEEP_ROWS}), \
         target AS MATERIALIZED (SELECT id FROM {relation} \
           WHERE id = ANY (ARRAY (SELECT id FROM looked WHERE sent_at < (SELECT at FROM cutoff))) \
             AND sent_at < (SELECT at FROM cutoff) ORDER BY id FOR UPDATE SKIP LOCKED), \
         removed AS (DELETE FROM {relation} AS m USING target WHERE m.id = target.id RETURNING m.id) \
         SELECT count(*), max(id), coalesce(bool_or(sent_at >= (SELECT at FROM cutoff)), false), \
           count(*) FILTER (WHERE sent_at < (SELECT at FROM cutoff)), \
           (SELECT count(*) FROM removed), (SELECT max(id) FROM {relation}), \
           (SELECT count(*) FROM target), \
           CASE WHEN (SELECT count(*) FROM target) > (SELECT count(*) FROM removed) THEN \
             ARRAY (SELECT id FROM target EXCEPT SELECT id FROM removed ORDER BY id) END \
         FROM looked"
    )
}
