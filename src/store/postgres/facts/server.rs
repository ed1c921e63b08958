//! What kind of server it is, who we are there, and how durable a commit is.

use std::time::{Duration, SystemTime};

use super::DEADLINE;
use crate::runtime::Clock;
use crate::store::StoreError;
use crate::store::postgres::reader::within;
use crate::store::postgres::row::get;
use crate::store::postgres::session::Session;

/// The server as its own settings describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFacts {
    /// `server_version`, for people.
    pub version: String,
    /// The login.
    pub user: String,
    /// The database.
    pub database: String,
    /// The login may do everything.
    pub superuser: bool,
    /// The login may see what other sessions do (`pg_read_all_stats`).
    pub reads_all_stats: bool,
    /// The session is encrypted, and by which version of TLS.
    pub tls: Option<String>,
    /// `synchronous_commit` of this login.
    pub synchronous_commit: String,
    /// Roles or databases for which it is switched off.
    pub asynchronous_roles: Vec<String>,
    /// `fsync`.
    pub fsync: bool,
    /// `full_page_writes`.
    pub full_page_writes: bool,
    /// `synchronous_standby_names`.
    pub synchronous_standbys: String,
    /// Standbys that stream from here now.
    pub standbys: i64,
    /// `max_prepared_transactions`.
    pub max_prepared_transactions: i32,
    /// `autovacuum` and what it needs.
    pub autovacuum: bool,
    /// How far the database's clock is ahead of ours; negative if it is behind.
    pub clock_ahead_ms: i64,
    /// How exactly that is known: half of the question's way.
    pub clock_doubt: Duration,
}

/// `pg_db_role_setting` is readable by everybody (PostgreSQL manual, "pg_db_role_setting");
/// a logical subscriber is no standby.
const SERVER: &str = "\
    SELECT pg_catalog.current_setting('server_version'), session_user::text, \
           pg_catalog.current_database()::text, \
           coalesce((SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = session_user), false), \
           pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE'), \
           (SELECT CASE WHEN ssl THEN version END FROM pg_catalog.pg_stat_ssl \
            WHERE pid = pg_catalog.pg_backend_pid()), \
           pg_catalog.current_setting('synchronous_commit'), \
           ARRAY(SELECT coalesce(r.rolname::text, 'every role') || coalesce(' in ' || d.datname, '') \
                 FROM pg_catalog.pg_db_role_setting s \
                 LEFT JOIN pg_catalog.pg_roles r ON r.oid = s.setrole \
                 LEFT JOIN pg_catalog.pg_database d ON d.oid = s.setdatabase \
                 WHERE 'synchronous_commit=off' = ANY (s.setconfig) \
                   AND (s.setdatabase = 0 OR d.datname = pg_catalog.current_database()) \
                 ORDER BY 1 LIMIT 10), \
           pg_catalog.current_setting('fsync')::bool, \
           pg_catalog.current_setting('full_page_writes')::bool, \
           pg_catalog.current_setting('synchronous_standby_names'), \
           (SELECT count(*) FROM pg_catalog.pg_stat_replication r WHERE NOT EXISTS (\
              SELECT FROM pg_catalog.pg_replication_slots s \
              WHERE s.active_pid = r.pid AND s.slot_type = 'logical')), \
           pg_catalog.current_setting('max_prepared_transactions')::int4, \
           pg_catalog.current_setting('autovacuum')::bool \
             AND pg_catalog.current_setting('track_counts')::bool";

/// Asks the server about itself.
///
/// # Errors
/// [`StoreError`] as for any statement.
pub async fn server(session: &Session) -> Result<ServerFacts, StoreError> {
    const DOING: &str = "ask the server about its settings";
    let (clock_ahead_ms, clock_doubt) = clock(session).await?;
    let rows = within(DEADLINE, DOING, session.client.query_typed(SERVER, &[])).await?;
    let Some(row) = rows.first() else {
        let fault = crate::store::error::Fault::new(DOING, "empty answer");
        return Err(StoreError::Other(fault));
    };
    Ok(ServerFacts {
        version: get(row, 0)?,
        user: get(row, 1)?,
        database: get(row, 2)?,
        superuser: get(row, 3)?,
        reads_all_stats: get(row, 4)?,
        tls: get(row, 5)?,
        synchronous_commit: get(row, 6)?,
        asynchronous_roles: get(row, 7)?,
        fsync: get(row, 8)?,
        full_page_writes: get(row, 9)?,
        synchronous_standbys: get(row, 10)?,
        standbys: get(row, 11)?,
        max_prepared_transactions: get(row, 12)?,
        autovacuum: get(row, 13)?,
        clock_ahead_ms,
        clock_doubt,
    })
}

/// How far the database's clock is ahead, in milliseconds, and half of the question's way.
/// Compares with the middle between question and answer, as NTP does.
async fn clock(session: &Session) -> Result<(i64, Duration), StoreError> {
    const DOING: &str = "ask for the time";
    const SQL: &str = "SELECT pg_catalog.clock_timestamp()";
    let (wall, asked) = (Clock.wall(), Clock.now());
    let rows = within(DEADLINE, DOING, session.client.query_typed(SQL, &[])).await?;
    let half = Clock.now().since(asked) / 2;
    let theirs: SystemTime = rows.first().map_or(Ok(wall), |row| get(row, 0))?;
    Ok((ahead(theirs, wall + half), half))
}

fn ahead(theirs: SystemTime, ours: SystemTime) -> i64 {
    let millis = |span: Duration| i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
    match theirs.duration_since(ours) {
        Ok(ahead) => millis(ahead),
        Err(behind) => -millis(behind.duration()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_may_be_ahead_or_behind() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        assert_eq!(ahead(now + Duration::from_millis(1500), now), 1500);
        assert_eq!(ahead(now - Duration::from_millis(1500), now), -1500);
    }
}
