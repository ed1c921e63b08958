//! Opens the two sessions of a relay.
//!
//! The reading one carries LISTEN, the gate and the reads; the settling one carries settlements,
//! where nothing slow can queue before them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::connect::{connect, resolve};
use super::direct::Direct;
use super::ident::Outbox;
use super::one_server::{OneServer, Side};
use super::reader::{PgReader, within};
use super::session::{Session, SessionSettings, application_name};
use super::settler::PgSettler;
use super::waits::Waits;
use crate::config::{DatabaseTarget, OnSent, SessionKind, Successors};
use crate::store::error::Fault;
use crate::store::{Store, StoreError};

/// Beyond the server's own statement timeout, for a server that does not answer at all.
const BEYOND: Duration = Duration::from_secs(5);

/// An outbox in PostgreSQL.
#[derive(Debug, Clone)]
pub struct PgStore {
    /// Where it is; secrets are read again at every connect.
    pub target: DatabaseTarget,
    /// Which relation.
    pub outbox: Outbox,
    /// What becomes of sent rows.
    pub on_sent: OnSent,
    /// What becomes of rows behind a quarantined one of their key.
    pub successors: Successors,
    /// `database.statement_timeout`.
    pub statement_timeout: Duration,
    /// `relay.max_message_size`, in bytes.
    pub max_message_size: u64,
    /// Who this is, for `application_name`.
    pub instance: String,
    /// Token of this relay, which owns partitions by it.
    pub token: Uuid,
    /// Backend of the last reading session of this process: it may outlive a broken network,
    /// and keep the gate.
    pub last_reader: Arc<AtomicI32>,
    /// Waits of rows that the relation has no columns for.
    pub waits: Waits,
    /// Which server each of this process's two sessions has.
    pub servers: OneServer,
    /// That no pooler in transaction mode stands between.
    pub direct: Direct,
}

impl PgStore {
    /// Connects to the primary. Secrets are read anew.
    pub(super) async fn session(&self, role: &str) -> Result<Session, StoreError> {
        let mut access = resolve(&self.target).await?;
        if access.session == SessionKind::Any {
            access.session = SessionKind::ReadWrite;
        }
        let name = application_name(role, &self.instance);
        connect(&access, &SessionSettings::new(name, self.statement_timeout)).await
    }

    /// Ends this process's own former reading session, should the server not have noticed that
    /// nobody is there any more. A login may end sessions of its own (PostgreSQL manual, "Server
    /// Signaling Functions").
    async fn end_last_reader(&self, session: &Session) -> Result<(), StoreError> {
        let last = self
            .last_reader
            .swap(session.backend_pid, Ordering::Relaxed);
        if last == 0 {
            return Ok(());
        }
        let sql = "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity \
             WHERE pid = $1 AND usename = current_user \
               AND application_name = pg_catalog.current_setting('application_name')";
        let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&last, Type::INT4)];
        let ended = session.client.query_typed(sql, &parameters);
        within(self.deadline(), "end the former session", ended).await?;
        Ok(())
    }

    pub(super) fn deadline(&self) -> Duration {
        self.statement_timeout + BEYOND
    }

    async fn prepared<T>(
        &self,
        opening: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let late = || {
            let reason = format!("no answer within {} s", self.deadline().as_secs());
            Err(StoreError::Unreachable(Fault::new(
                "prepare statements",
                reason,
            )))
        };
        tokio::time::timeout(self.deadline(), opening)
            .await
            .unwrap_or_else(|_| late())
    }
}

impl Store for PgStore {
    type Reader = PgReader;
    type Settler = PgSettler;

    async fn open_reader(&self) -> Result<PgReader, StoreError> {
        let session = self.direct.session(self, Side::Reading).await?;
        self.end_last_reader(&session).await?;
        let seat = self.servers.enter(Side::Reading, &session.started);
        let opening = PgReader::open(session, seat, self);
        self.prepared(opening).await
    }

    async fn open_settler(&self) -> Result<PgSettler, StoreError> {
        let session = self.direct.session(self, Side::Settling).await?;
        let seat = self.servers.enter(Side::Settling, &session.started);
        let opening = PgSettler::open(
            session,
            seat,
            &self.outbox,
            self.on_sent,
            self.token,
            self.waits.clone(),
            self.deadline(),
        );
        self.prepared(opening).await
    }
}
