//! Which exchanges pending rows name: a bounded sample from both ends of what is pending.

use super::DEADLINE;
use crate::store::StoreError;
use crate::store::postgres::ident::Outbox;
use crate::store::postgres::reader::within;
use crate::store::postgres::row::get;
use crate::store::postgres::session::Session;
use crate::store::postgres::shape::Shape;

/// Rows looked at, at each end.
const ROWS: i64 = 5_000;
/// Exchanges told at the most.
const EXCHANGES: i64 = 100;

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destinations {
    /// Names, the one with most rows first; the default exchange is `""`.
    pub exchanges: Vec<String>,
    /// Pending rows that were looked at.
    pub rows: i64,
    /// There are more pending rows, or more exchanges, than were looked at.
    pub sampled: bool,
}

/// Looks at the oldest and the newest pending rows.
///
/// # Errors
/// [`StoreError`] as for any statement; among others if the login may not read the outbox.
pub async fn destinations(session: &Session, outbox: &Outbox) -> Result<Destinations, StoreError> {
    let shape = Shape::of(&session.client, outbox).await?;
    let relation = format!("{} AS m", shape.readable(outbox));
    let end = |direction: &str| {
        format!(
            "(SELECT id, exchange FROM {relation} WHERE sent_at IS NULL AND id > 0 \
             ORDER BY id {direction} LIMIT {ROWS})"
        )
    };
    let (oldest, newest) = (end("ASC"), end("DESC"));
    let sql = format!(
        "SELECT exchange, count(*), sum(count(*)) OVER ()::int8 \
         FROM ({oldest} UNION {newest}) AS pending \
         GROUP BY exchange ORDER BY count(*) DESC, exchange LIMIT {EXCHANGES} + 1"
    );
    let asked = async {
        // With old statistics the planner would rather walk the whole table.
        let plan = "SET enable_seqscan = off; SET enable_bitmapscan = off";
        session.client.batch_execute(plan).await?;
        session.client.query_typed(&sql, &[]).await
    };
    let rows = within(DEADLINE, "look where pending rows go", asked).await?;
    let mut seen = Destinations::default();
    for row in &rows {
        seen.exchanges.push(get(row, 0)?);
        seen.rows = get(row, 2)?;
    }
    let too_many = rows.len() > EXCHANGES.unsigned_abs() as usize;
    seen.exchanges.truncate(EXCHANGES.unsigned_abs() as usize);
    seen.sampled = too_many || seen.rows >= 2 * ROWS;
    Ok(seen)
}
