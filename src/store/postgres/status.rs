//! Everything that `outbox-relay status` tells of an outbox, over a connection of its own.
//!
//! Looks only. Works on a standby, too, and with the rights of a monitor.

use std::time::{Duration, SystemTime};

use super::connect::{connect, resolve};
use super::measure::{Look, measures, seconds};
use super::row::get;
use super::session::{READ_ONLY, Session, SessionSettings, application_name};
use super::settle_sql::PLANNER;
use super::shape::Shape;
use super::sqlstate::store_error;
use super::store::PgStore;
use crate::config::OnSent;
use crate::store::StoreError;
use crate::store::measures::Measures;

/// How long a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// Rows at the high end among which those sent lately are looked for.
const RECENT: i64 = 10_000;

/// An outbox as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The database's clock.
    pub now: SystemTime,
    /// It accepts no writes, so that no relay can give a sign of life.
    pub read_only: bool,
    /// The outbox as a whole.
    pub measures: Measures,
    /// What was sent lately; `None` where sent rows are not kept.
    pub sent: Option<SentLately>,
}

/// Rows sent in the last minute, or in a shorter time if they were many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentLately {
    /// How many.
    pub rows: i64,
    /// In how long.
    pub within: Duration,
}

/// Looks at the outbox.
///
/// # Errors
/// [`StoreError`] as ever.
pub async fn status(store: &PgStore) -> Result<Status, StoreError> {
    let access = resolve(&store.target).await?;
    let name = application_name("status", &store.instance);
    let settings = SessionSettings::new(name, store.statement_timeout);
    let session = connect(&access, &settings).await?;
    let result = look(&session, store).await;
    session.close(GOODBYE).await;
    result
}

async fn look(session: &Session, store: &PgStore) -> Result<Status, StoreError> {
    let plan = session.client.batch_execute(PLANNER).await;
    plan.map_err(|error| store_error("prepare to look", &error))?;
    let shape = Shape::of(&session.client, &store.outbox).await?;
    let look = Look {
        session,
        outbox: &store.outbox,
        relation: format!("{} AS m", shape.readable(&store.outbox)),
        deadline: store.deadline(),
    };
    let sql = format!("SELECT pg_catalog.clock_timestamp(), {READ_ONLY}");
    let rows = look.rows("ask for the time", &sql).await?;
    let first = rows.first();
    let now = first.map(|row| get(row, 0)).transpose()?;
    let now = now.unwrap_or(SystemTime::UNIX_EPOCH);
    let read_only = first.map(|row| get(row, 1)).transpose()?.unwrap_or(false);
    let measures = measures(session, &store.outbox, &shape, store.deadline()).await?;
    let sent = look.sent(store.on_sent).await?;
    Ok(Status {
        sent: sent.filter(|sent| sent.rows > 0 || !confirmed_lately(&measures, now)),
        now,
        read_only,
        measures,
    })
}

/// Where a relay had a row confirmed in the last minute and none is there, it was removed at once: by
/// a relay with another `outbox.on_sent` than is set here.
fn confirmed_lately(measures: &Measures, now: SystemTime) -> bool {
    let mut confirms = measures
        .instances
        .iter()
        .filter_map(|one| one.last_confirm_at);
    confirms.any(|at| now.duration_since(at).unwrap_or_default() < LATELY)
}

const LATELY: Duration = Duration::from_secs(60);

impl Look<'_> {
    /// Rows are sent about in the order of their ids, so the lately sent ones are at the high
    /// end, or, while a backlog is worked off, below the first row that waits for nothing but
    /// its turn. No index on `sent_at` has to be kept for this.
    async fn sent(&self, on_sent: OnSent) -> Result<Option<SentLately>, StoreError> {
        match on_sent {
            OnSent::Mark => {}
            OnSent::Delete => return Ok(None),
        }
        let relation = &self.relation;
        let now = "pg_catalog.clock_timestamp()";
        let sql = format!(
            "WITH turn AS (SELECT min(id) AS id FROM (\
               SELECT id, retry_at, available_at FROM {relation} \
               WHERE sent_at IS NULL AND id > 0 ORDER BY id LIMIT {RECENT}) AS low \
               WHERE retry_at IS NULL AND available_at IS NULL) \
             SELECT count(*), EXTRACT(epoch FROM {now} - min(sent_at))::float8 FROM (\
               (SELECT id, sent_at FROM {relation} ORDER BY id DESC LIMIT {RECENT}) \
               UNION (SELECT id, sent_at FROM {relation} \
                      WHERE id < (SELECT id FROM turn) ORDER BY id DESC LIMIT {RECENT})) AS recent \
             WHERE sent_at > {now} - interval '1 minute'"
        );
        let rows = self.rows("count rows sent lately", &sql).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let rows: i64 = get(row, 0)?;
        // Only if as many as were looked at are from the last minute were there more.
        let within = seconds(get(row, 1)?).filter(|_| rows >= RECENT);
        Ok(Some(SentLately {
            rows,
            within: within.unwrap_or(LATELY),
        }))
    }
}
