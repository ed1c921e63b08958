//! One session: its settings, the task that drives it, and how its end is told.
//!
//! Opening is the business of `connect`. Nothing here retries.

use std::future::poll_fn;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio_postgres::{AsyncMessage, Client, Connection, Notification};

use super::sqlstate::store_error;
use crate::config::SessionKind;
use crate::store::error::{Fault, StoreError};

/// Unread notifications kept: they are hints, and one unread hint is as good as many.
const NOTIFICATIONS: usize = 16;
/// Oldest server that has everything the relay uses (`xid8`, `gen_random_uuid`).
const OLDEST_SERVER: i32 = 130_000;

/// What a session is for and what it may cost.
#[derive(Debug, Clone)]
pub struct SessionSettings {
    /// See [`application_name`].
    pub application_name: String,
    /// Longest statement; zero for no limit.
    pub statement_timeout: Duration,
    /// Longest wait for a lock; zero for no limit.
    pub lock_timeout: Duration,
    /// Longest pause inside a transaction; zero for no limit.
    pub idle_in_transaction_timeout: Duration,
}

impl SessionSettings {
    /// The usual settings: waits for locks half as long as a statement may take.
    #[must_use]
    pub fn new(application_name: String, statement_timeout: Duration) -> Self {
        Self {
            application_name,
            statement_timeout,
            lock_timeout: statement_timeout / 2,
            idle_in_transaction_timeout: Duration::from_secs(30),
        }
    }
}

/// A usable session. Dropping `client` ends it.
#[derive(Debug)]
pub struct Session {
    /// Runs statements.
    pub client: Client,
    /// What LISTEN brought. Surplus ones are dropped: a notification is a hint.
    pub notifications: mpsc::Receiver<Notification>,
    /// `None` while the session lives, then why it ended, for ever.
    pub closed: watch::Receiver<Option<StoreError>>,
    /// `host:port` or the socket's directory, for people.
    pub server: String,
    /// `server_version_num`, e.g. 150018.
    pub server_version: i32,
    /// When the server was started, in its words: no two servers tell the same.
    pub started: String,
    /// The backend's process id, as in `pg_stat_activity.pid`.
    pub backend_pid: i32,
    /// Longest statement; zero for no limit.
    pub statement_timeout: Duration,
    driver: AbortHandle,
}

impl Session {
    /// Spawns the driver, sets the session up and looks at what kind of server it is.
    pub(super) async fn begin<S, T>(
        client: Client,
        connection: Connection<S, T>,
        server: &str,
        settings: &SessionSettings,
        kind: SessionKind,
    ) -> Result<Self, StoreError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (notify, notifications) = mpsc::channel(NOTIFICATIONS);
        let (end, closed) = watch::channel(None);
        let driver = tokio::spawn(drive(
            connection,
            format!("session with {server}"),
            notify,
            end,
        ))
        .abort_handle();
        let doing = format!("connect to {server}");
        let failed = |error| store_error(doing.as_str(), &error);
        // By itself and first: what the database or the login has as its default may be too short
        // for what follows.
        let timeout = settings.statement_timeout.as_millis();
        let timeout = format!("SET statement_timeout = {timeout}");
        for sql in [timeout, preamble(settings)] {
            client.batch_execute(&sql).await.map_err(failed)?;
        }
        let row = client
            .query_typed(ABOUT_THE_SERVER, &[])
            .await
            .map_err(failed)?
            .pop()
            .ok_or_else(|| StoreError::Other(Fault::new(doing.as_str(), "empty answer")))?;
        let session = Self {
            client,
            notifications,
            closed,
            server: server.to_owned(),
            server_version: row.try_get(0).map_err(failed)?,
            started: row.try_get(4).map_err(failed)?,
            backend_pid: row.try_get(1).map_err(failed)?,
            statement_timeout: settings.statement_timeout,
            driver,
        };
        if session.server_version < OLDEST_SERVER {
            let fault = Fault::new(doing, "PostgreSQL 13 or later is needed");
            return Err(StoreError::Settings(fault));
        }
        let read_only = row.try_get(2).map_err(failed)?;
        let in_recovery = row.try_get(3).map_err(failed)?;
        match unfit(kind, read_only, in_recovery) {
            Some((reason, remedy)) => Err(StoreError::ReadOnly(Fault {
                remedy: remedy.map(str::to_owned),
                ..Fault::new(doing, reason)
            })),
            None => Ok(session),
        }
    }

    /// Says goodbye, waits at most `grace` for the socket to close, then drops it.
    pub async fn close(self, grace: Duration) {
        let Self {
            client,
            mut closed,
            driver,
            ..
        } = self;
        drop(client);
        let ended = tokio::time::timeout(grace, closed.wait_for(Option::is_some)).await;
        if ended.is_err() {
            driver.abort();
        }
    }
}

/// What a new session asks about its server.
const ABOUT_THE_SERVER: &str = "SELECT \
    pg_catalog.current_setting('server_version_num')::pg_catalog.int4, \
    pg_catalog.pg_backend_pid(), \
    pg_catalog.current_setting('transaction_read_only')::pg_catalog.bool, \
    pg_catalog.pg_is_in_recovery(), \
    pg_catalog.pg_postmaster_start_time()::pg_catalog.text";

/// The server is no standby and accepts no writes from a session like this one.
pub(super) const READ_ONLY: &str = "pg_catalog.current_setting('transaction_read_only')::pg_catalog.bool \
     AND NOT pg_catalog.pg_is_in_recovery()";

/// Why a server is not of the kind wanted.
/// Why, and what to do about it where that is not to take another server.
fn unfit(
    kind: SessionKind,
    read_only: bool,
    in_recovery: bool,
) -> Option<(&'static str, Option<&'static str>)> {
    match kind {
        SessionKind::ReadWrite | SessionKind::Primary if in_recovery => {
            Some(("the server is a standby", None))
        }
        SessionKind::ReadWrite if read_only => Some((
            "sessions are read-only there (default_transaction_read_only)",
            Some(
                "turn default_transaction_read_only off again: it is set for the server, the database or the \
                 role (SELECT source FROM pg_settings WHERE name = 'default_transaction_read_only')",
            ),
        )),
        SessionKind::ReadWrite | SessionKind::Primary | SessionKind::Any => None,
    }
}

/// Waits for the end of a session and tells why. Cancel safe.
pub(super) async fn ended(closed: &mut watch::Receiver<Option<StoreError>>) -> StoreError {
    let end = closed.wait_for(Option::is_some).await;
    let why = end.ok().and_then(|end| end.clone());
    why.unwrap_or_else(|| StoreError::Unreachable(Fault::new("session", "it ended")))
}

/// `outbox-relay/<role>/<instance>`, cut to the 63 bytes that PostgreSQL keeps.
#[must_use]
pub fn application_name(role: &str, instance: &str) -> String {
    let mut name = format!("outbox-relay/{role}/{instance}");
    let end = (0..=63.min(name.len())).rfind(|&at| name.is_char_boundary(at));
    name.truncate(end.unwrap_or(0));
    name
}

/// Drives the connection until it ends. Notices are dropped: they may quote row values.
async fn drive<S, T>(
    mut connection: Connection<S, T>,
    doing: String,
    notify: mpsc::Sender<Notification>,
    end: watch::Sender<Option<StoreError>>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    let ended = loop {
        match poll_fn(|cx| connection.poll_message(cx)).await {
            // A full channel already holds an unread hint: one more would say nothing new.
            Some(Ok(AsyncMessage::Notification(hint))) => drop(notify.try_send(hint)),
            Some(Ok(_)) => {}
            Some(Err(error)) => break lost(store_error(doing, &error)),
            None => break StoreError::Unreachable(Fault::new(doing, "closed by this side")),
        }
    };
    end.send_replace(Some(ended));
}

/// Whatever ended a session, the session is gone; only a more telling class is kept.
fn lost(error: StoreError) -> StoreError {
    match error {
        StoreError::Other(fault) | StoreError::Retryable(fault) | StoreError::TimedOut(fault) => {
            StoreError::Unreachable(fault)
        }
        StoreError::Unreachable(_)
        | StoreError::ReadOnly(_)
        | StoreError::Schema(_)
        | StoreError::Denied(_)
        | StoreError::Settings(_) => error,
    }
}

/// Settings by SET rather than by start-up options, which poolers refuse. `idle_session_timeout`
/// (14+) and `transaction_timeout` (17+) would end a stand-by or a long migration. The server is to
/// notice within half a minute that this host is gone, because others wait for the locks of its
/// sessions; over a Unix socket these settings mean nothing and are accepted.
fn preamble(settings: &SessionSettings) -> String {
    format!(
        "SET lock_timeout = {}; \
         SET idle_in_transaction_session_timeout = {}; SET TimeZone = 'UTC'; \
         SET search_path = pg_catalog, pg_temp; \
         SET default_transaction_isolation = 'read committed'; SET jit = off; \
         SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; \
         SET tcp_keepalives_count = 3; SET tcp_user_timeout = '25s'; \
         SELECT pg_catalog.set_config(name, '0', false) \
         FROM (VALUES ('idle_session_timeout'), ('transaction_timeout')) AS later (name) \
         WHERE pg_catalog.current_setting(name, true) IS NOT NULL",
        settings.lock_timeout.as_millis(),
        settings.idle_in_transaction_timeout.as_millis(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_application_name_fits_what_postgresql_keeps() {
        assert_eq!(
            application_name("reader", "pod-1"),
            "outbox-relay/reader/pod-1"
        );
        let cut = application_name("reader", &"é".repeat(40));
        assert!(cut.len() <= 63 && cut.ends_with('é'), "{cut}");
    }

    #[test]
    fn a_server_must_be_of_the_kind_wanted() {
        for (kind, read_only, in_recovery, fits) in [
            (SessionKind::Any, true, true, true),
            (SessionKind::Primary, true, false, true),
            (SessionKind::Primary, true, true, false),
            (SessionKind::ReadWrite, false, false, true),
            (SessionKind::ReadWrite, true, false, false),
            (SessionKind::ReadWrite, true, true, false),
        ] {
            let found = unfit(kind, read_only, in_recovery);
            assert_eq!(found.is_none(), fits, "{kind:?} {read_only} {in_recovery}");
        }
    }

    #[test]
    fn a_session_that_ended_is_always_unreachable_or_something_more_telling() {
        let fault = || Fault::new("session", "gone");
        assert!(matches!(
            lost(StoreError::Other(fault())),
            StoreError::Unreachable(_)
        ));
        assert!(matches!(
            lost(StoreError::Denied(fault())),
            StoreError::Denied(_)
        ));
    }
}
