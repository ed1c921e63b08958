//! A session for people's acts, and what is written down about each.
//!
//! Every act and its record are one statement, hence one transaction: neither exists alone.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::connect::{connect, resolve};
use super::ident::{Outbox, quote_literal};
use super::reader::within;
use super::row::get;
use super::schema::wake_channel;
use super::session::{Session, SessionSettings, application_name};
use super::store::PgStore;
use crate::store::StoreError;

/// How long a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// Wakes a relay that sleeps when the transaction commits: nothing is inserted that would.
pub(super) fn wake(outbox: &Outbox) -> String {
    let channel = wake_channel(outbox.schema(), outbox.relation());
    format!("pg_catalog.pg_notify({}, '')", quote_literal(&channel))
}

/// Who acts, and why, as they say. The database adds the login and the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Act {
    /// A person's name.
    pub by: String,
    /// For whoever reads the audit.
    pub reason: String,
    /// Of this program.
    pub version: &'static str,
}

/// Rows that one transaction takes at most.
pub const BATCH: i64 = 500;

/// Bytes of payload, as stored, that one transaction takes at most, but for a first row that is
/// larger by itself.
pub(super) const BATCH_BYTES: i64 = 32 << 20;

/// What one transaction did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Rows acted on.
    pub rows: u64,
    /// From where to go on; `None` when nothing is left.
    pub cursor: Option<i64>,
}

impl Batch {
    pub(super) fn read(rows: &[Row]) -> Result<Self, StoreError> {
        let Some(row) = rows.first() else {
            return Ok(Self {
                rows: 0,
                cursor: None,
            });
        };
        Ok(Self {
            rows: u64::try_from(get::<i64>(row, 0)?).unwrap_or(0),
            cursor: get(row, 1)?,
        })
    }
}

/// A parameter and its type.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// One session, for one command.
#[derive(Debug)]
pub struct Operator {
    pub(super) session: Session,
    pub(super) outbox: Outbox,
    deadline: Duration,
}

impl Operator {
    /// Connects to act: to the primary.
    ///
    /// # Errors
    /// [`StoreError`] says why not.
    pub async fn acting(store: &PgStore) -> Result<Self, StoreError> {
        let session = store.session("operator").await?;
        Ok(Self::on(session, store))
    }

    /// Connects to look; a standby will do.
    ///
    /// # Errors
    /// [`StoreError`] says why not.
    pub async fn looking(store: &PgStore) -> Result<Self, StoreError> {
        let access = resolve(&store.target).await?;
        let name = application_name("operator", &store.instance);
        let settings = SessionSettings::new(name, store.statement_timeout);
        Ok(Self::on(connect(&access, &settings).await?, store))
    }

    fn on(session: Session, store: &PgStore) -> Self {
        Self {
            session,
            outbox: store.outbox.clone(),
            deadline: store.deadline(),
        }
    }

    /// Says goodbye.
    pub async fn close(self) {
        self.session.close(GOODBYE).await;
    }

    pub(super) async fn rows(
        &self,
        doing: &'static str,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        // Unnamed: planned for these very values.
        let rows = self.session.client.query_typed(sql, parameters);
        within(self.deadline, doing, rows).await
    }

    /// The type of the payload column of this relation.
    pub(super) async fn payload_type(&self) -> Result<Type, StoreError> {
        let sql = format!("SELECT payload FROM {} LIMIT 0", self.outbox.quoted());
        let statement = self.session.client.prepare(&sql);
        let statement = within(self.deadline, "ask for the type of payload", statement).await?;
        let column = statement.columns().first();
        Ok(column.map_or(Type::BYTEA, |column| column.type_().clone()))
    }
}

/// The digest of a payload's bytes as they are published, as SQL.
pub(super) fn digest(payload: &str, ty: &Type) -> String {
    if *ty == Type::BYTEA {
        format!("pg_catalog.sha256({payload})")
    } else {
        format!("pg_catalog.sha256(pg_catalog.convert_to({payload}::text, 'UTF8'))")
    }
}

/// The size of a payload's bytes as they are published, as SQL.
pub(super) fn size(payload: &str, ty: &Type) -> String {
    if *ty == Type::BYTEA {
        format!("pg_catalog.octet_length({payload})")
    } else {
        format!("pg_catalog.octet_length(pg_catalog.convert_to({payload}::text, 'UTF8'))")
    }
}
