//! Opens the two sessions of a relay.
//!
//! The reading one carries LISTEN, the gate and the reads; the settling one carries settlements,
//! where nothing slow can queue before them.

use std::time::Duration;

use super::connect::{connect, resolve};
use super::ident::Outbox;
use super::reader::PgReader;
use super::session::{Session, SessionSettings, application_name};
use super::settler::PgSettler;
use crate::config::{DatabaseTarget, OnSent, SessionKind};
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
    /// `database.statement_timeout`.
    pub statement_timeout: Duration,
    /// `relay.max_message_size`, in bytes.
    pub max_message_size: u64,
    /// Who this is, for `application_name`.
    pub instance: String,
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
        let session = self.session("reader").await?;
        let opening = PgReader::open(
            session,
            &self.outbox,
            self.max_message_size,
            self.deadline(),
        );
        self.prepared(opening).await
    }

    async fn open_settler(&self) -> Result<PgSettler, StoreError> {
        let session = self.session("settler").await?;
        let opening = PgSettler::open(session, &self.outbox, self.on_sent, self.deadline());
        self.prepared(opening).await
    }
}
