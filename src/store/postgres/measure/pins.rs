//! What holds vacuum back: whoever may still see old versions of rows.
//!
//! PostgreSQL manual, "Routine Vacuuming": sessions with an old snapshot, prepared transactions,
//! replication slots, and standbys with `hot_standby_feedback`.

use tokio_postgres::Row;

use super::{Look, seconds};
use crate::store::StoreError;
use crate::store::measures::{Measures, Pin, PinKind};
use crate::store::postgres::row::get;

/// Pins of each kind that are told.
const TOLD: i64 = 3;

/// A session that is done sooner holds nothing back worth telling.
const LONG: &str = "interval '10 seconds'";

impl Look<'_> {
    pub(super) async fn pins(&self, measures: &mut Measures) -> Result<(), StoreError> {
        let rows = self.rows("look what holds vacuum back", &sql()).await?;
        for row in &rows {
            if get::<i32>(row, 0)? == 0 {
                measures.sees_sessions = get(row, 6)?;
            } else {
                measures.pins.push(pin(row)?);
            }
        }
        Ok(())
    }
}

fn pin(row: &Row) -> Result<Pin, StoreError> {
    let place = usize::try_from(get::<i32>(row, 0)?).unwrap_or(1);
    Ok(Pin {
        kind: PinKind::ALL[(place - 1).min(PinKind::ALL.len() - 1)],
        who: get(row, 1)?,
        state: get(row, 2)?,
        since: get(row, 3)?,
        age: seconds(get(row, 4)?),
        transactions: get(row, 5)?,
    })
}

/// Only this database's sessions hold back the vacuum of its tables; slots and standbys of any.
/// A session's own name stands beside its pid; its query may hold values and is not told.
fn sql() -> String {
    let age = "EXTRACT(epoch FROM pg_catalog.clock_timestamp()";
    format!(
        "SELECT 0, NULL::text, NULL::text, NULL::timestamptz, NULL::float8, NULL::int8, \
           pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE') \
         UNION ALL (SELECT 1, 'pid ' || pid || ' (' || usename || ' ' || application_name || ')', \
           state, xact_start, {age} - xact_start)::float8, \
           greatest(pg_catalog.age(backend_xmin), pg_catalog.age(backend_xid))::int8, NULL \
         FROM pg_catalog.pg_stat_activity \
         WHERE datname = pg_catalog.current_database() AND pid <> pg_catalog.pg_backend_pid() \
           AND backend_type = 'client backend' \
           AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) \
           AND xact_start < pg_catalog.clock_timestamp() - {LONG} \
         ORDER BY xact_start LIMIT {TOLD}) \
         UNION ALL (SELECT 2, 'prepared transaction ' || pg_catalog.quote_literal(gid), \
           'prepared by ' || owner, prepared, {age} - prepared)::float8, \
           pg_catalog.age(transaction)::int8, NULL \
         FROM pg_catalog.pg_prepared_xacts WHERE database = pg_catalog.current_database() \
           AND prepared < pg_catalog.clock_timestamp() - {LONG} \
         ORDER BY prepared LIMIT {TOLD}) \
         UNION ALL (SELECT 3, 'slot ' || slot_name, \
           CASE WHEN active THEN 'active' ELSE 'nobody reads it' END, NULL, NULL, \
           pg_catalog.age(xmin)::int8, NULL \
         FROM pg_catalog.pg_replication_slots WHERE xmin IS NOT NULL \
         ORDER BY pg_catalog.age(xmin) DESC LIMIT {TOLD}) \
         UNION ALL (SELECT 4, 'standby ' || application_name || ' (pid ' || pid || ')', \
           coalesce(state, 'unknown'), NULL, NULL, pg_catalog.age(backend_xmin)::int8, NULL \
         FROM pg_catalog.pg_stat_replication WHERE backend_xmin IS NOT NULL \
         ORDER BY pg_catalog.age(backend_xmin) DESC LIMIT {TOLD})"
    )
}
