//! Everything that `outbox-relay status` tells of an outbox, over a connection of its own.
//!
//! Looks only. Works on a standby, too, and with the rights of a monitor.

use std::time::{Duration, SystemTime};

use tokio_postgres::Row;
use uuid::Uuid;

use super::connect::{connect, resolve};
use super::measure::{LIMIT, Look, measures, seconds};
use super::row::get;
use super::session::{Session, SessionSettings, application_name};
use super::settle_sql::PLANNER;
use super::sqlstate::store_error;
use super::store::PgStore;
use crate::config::OnSent;
use crate::store::StoreError;
use crate::store::measures::Measures;

/// How long a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// Reasons told at the most, and characters of each.
const REASONS: i64 = 20;
const REASON_LENGTH: i64 = 200;

/// Rows at the high end among which those sent lately are looked for.
const RECENT: i64 = 10_000;

/// An outbox as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The database's clock.
    pub now: SystemTime,
    /// The outbox as a whole.
    pub measures: Measures,
    /// What was sent lately; `None` where sent rows are not kept.
    pub sent: Option<SentLately>,
    /// Reasons for which rows wait after a failure, most frequent first. Of the first 10,000.
    pub reasons: Vec<(String, i64)>,
    /// Who holds the partitions.
    pub partitions: Vec<Holder>,
    /// Who is alive, or lately was.
    pub instances: Vec<Instance>,
}

/// Rows sent in the last minute, or in a shorter time if they were many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentLately {
    /// How many.
    pub rows: i64,
    /// In how long.
    pub within: Duration,
}

/// Partitions in one hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Token of the process; `None` if nobody holds them.
    pub owner: Option<Uuid>,
    /// Its name, if it is known.
    pub name: Option<String>,
    /// How many.
    pub partitions: i64,
    /// The leases are not over.
    pub valid: bool,
}

/// A relay's last sign of life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Token of the process.
    pub instance: Uuid,
    /// Host and process.
    pub name: String,
    /// Of the program.
    pub version: String,
    /// When it started.
    pub started_at: SystemTime,
    /// How old the sign is.
    pub silent_for: Duration,
    /// It was ready.
    pub ready: bool,
    /// Why not.
    pub waits_for: Option<String>,
    /// State of its connection to PostgreSQL.
    pub database: Option<String>,
    /// State of its connection to RabbitMQ.
    pub broker: Option<String>,
    /// When a row of it was last confirmed.
    pub last_confirm_at: Option<SystemTime>,
    /// Partitions it held.
    pub partitions: i16,
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
    let look = Look {
        session,
        outbox: &store.outbox,
        deadline: store.deadline(),
    };
    let now = look.rows("ask for the time", "SELECT pg_catalog.clock_timestamp()");
    let now = now.await?.first().map(|row| get(row, 0)).transpose()?;
    Ok(Status {
        now: now.unwrap_or(SystemTime::UNIX_EPOCH),
        measures: measures(session, &store.outbox, store.deadline()).await?,
        sent: look.sent(store.on_sent).await?,
        reasons: look.reasons().await?,
        partitions: look.partitions().await?,
        instances: look.instances().await?,
    })
}

impl Look<'_> {
    /// Rows are sent about in the order of their ids, so the lately sent ones are at the high
    /// end, or, while a backlog is worked off, below the first row that waits for nothing but
    /// its turn. No index on `sent_at` has to be kept for this.
    async fn sent(&self, on_sent: OnSent) -> Result<Option<SentLately>, StoreError> {
        match on_sent {
            OnSent::Mark => {}
            OnSent::Delete => return Ok(None),
        }
        let relation = self.outbox.quoted();
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
            within: within.unwrap_or(Duration::from_secs(60)),
        }))
    }

    async fn reasons(&self) -> Result<Vec<(String, i64)>, StoreError> {
        let sql = format!(
            "SELECT pg_catalog.left(coalesce(last_error, 'no reason is recorded'), {REASON_LENGTH}), count(*) \
             FROM (SELECT last_error FROM {} WHERE sent_at IS NULL AND retry_at IS NOT NULL \
                   ORDER BY retry_at DESC LIMIT {LIMIT}) AS waiting \
             GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {REASONS}",
            self.outbox.quoted()
        );
        let rows = self.rows("count reasons", &sql).await?;
        let read = |row: &Row| Ok((get(row, 0)?, get(row, 1)?));
        rows.iter().map(read).collect()
    }

    async fn partitions(&self) -> Result<Vec<Holder>, StoreError> {
        let (lease, instance) = (
            self.outbox.sibling("lease"),
            self.outbox.sibling("instance"),
        );
        let sql = format!(
            "SELECT l.owner, min(i.name), count(*), \
               coalesce(l.expires_at > pg_catalog.clock_timestamp(), false) AS valid \
             FROM {lease} AS l LEFT JOIN {instance} AS i ON i.instance = l.owner \
             GROUP BY l.owner, valid ORDER BY count(*) DESC LIMIT 300"
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

    async fn instances(&self) -> Result<Vec<Instance>, StoreError> {
        let sql = format!(
            "SELECT instance, name, version, started_at, \
               EXTRACT(epoch FROM pg_catalog.clock_timestamp() - heartbeat_at)::float8, \
               ready, waits_for, database_state, broker_state, last_confirm_at, partitions \
             FROM {} ORDER BY started_at, name LIMIT 1000",
            self.outbox.sibling("instance")
        );
        let rows = self.rows("look who is alive", &sql).await?;
        let read = |row: &Row| {
            Ok(Instance {
                instance: get(row, 0)?,
                name: get(row, 1)?,
                version: get(row, 2)?,
                started_at: get(row, 3)?,
                silent_for: seconds(get(row, 4)?).unwrap_or_default(),
                ready: get(row, 5)?,
                waits_for: get(row, 6)?,
                database: get(row, 7)?,
                broker: get(row, 8)?,
                last_confirm_at: get(row, 9)?,
                partitions: get(row, 10)?,
            })
        };
        rows.iter().map(read).collect()
    }
}
