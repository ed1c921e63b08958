//! Sessions with PostgreSQL: how they open, what they say, how their end is told.

use std::time::Duration;

use outbox_relay::config::{DatabaseSection, DatabaseTarget, Secret};
use outbox_relay::store::error::StoreError;
use outbox_relay::store::postgres::connect::open;
use outbox_relay::store::postgres::session::{Session, application_name};
use outbox_relay::store::postgres::sqlstate::store_error;
use tokio::net::TcpListener;

use crate::outbox::{number, outbox, relay_session, target};
use crate::support::PATIENCE;
use crate::support::ports::Port;
use crate::support::postgres::{Postgres, database};

fn quickly(url: &str) -> DatabaseTarget {
    DatabaseTarget::new(DatabaseSection {
        url: Some(Secret::Value(url.to_owned().into())),
        connect_timeout: Duration::from_millis(300),
        ..DatabaseSection::default()
    })
}

async fn refused(target: &DatabaseTarget) -> StoreError {
    match open(target, "outbox-relay/test/1").await {
        Ok(session) => panic!("let in by {}", session.server),
        Err(error) => error,
    }
}

async fn ended(session: &mut Session) -> StoreError {
    let end = session.closed.wait_for(Option::is_some);
    let end = tokio::time::timeout(PATIENCE, end)
        .await
        .expect("told in time");
    end.expect("the driver lives until it told")
        .clone()
        .expect("an end")
}

async fn shown(session: &Session, setting: &str) -> String {
    let sql = format!("SELECT current_setting('{setting}')");
    session
        .client
        .query_one(&sql, &[])
        .await
        .expect("a setting")
        .get(0)
}

#[tokio::test]
async fn a_session_is_set_up_whatever_the_roles_defaults_are() {
    let database = database().await;
    let admin = database.connect().await;
    let name = &database.name;
    admin
        .batch_execute(&format!(
            "ALTER DATABASE {name} SET search_path = evil, public; \
             ALTER DATABASE {name} SET idle_session_timeout = '1s'; \
             ALTER DATABASE {name} SET TimeZone = 'Asia/Kathmandu'; \
             ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'; \
             ALTER DATABASE {name} SET synchronous_commit = 'local'"
        ))
        .await
        .expect("odd defaults");
    let name = application_name("reader", "pod-1");
    let session = open(&target(&database.url), &name)
        .await
        .expect("a session");
    for (setting, expected) in [
        ("application_name", "outbox-relay/reader/pod-1"),
        ("search_path", "pg_catalog, pg_temp"),
        ("TimeZone", "UTC"),
        ("default_transaction_isolation", "read committed"),
        ("statement_timeout", "10s"),
        ("lock_timeout", "5s"),
        ("idle_in_transaction_session_timeout", "30s"),
        ("idle_session_timeout", "0"),
        ("tcp_keepalives_idle", "10"),
        ("tcp_user_timeout", "25000"),
        ("synchronous_commit", "local"),
    ] {
        assert_eq!(shown(&session, setting).await, expected, "{setting}");
    }
    assert!(session.server_version >= 130_000);
    let pid = number(&session.client, "SELECT pg_backend_pid()::int8").await;
    assert_eq!(pid, i64::from(session.backend_pid));
}

#[tokio::test]
async fn a_silent_server_is_given_up_at_the_deadline_and_named() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = silent.local_addr().expect("bound").port();
    let error = refused(&quickly(&format!("postgres://u@127.0.0.1:{port}/x"))).await;
    assert!(matches!(error, StoreError::Unreachable(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&format!("127.0.0.1:{port}")), "{text}");
    assert!(text.contains("no answer within 300 ms"), "{text}");
}

#[tokio::test]
async fn the_next_host_is_tried_and_all_are_named_when_none_answers() {
    let database = database().await;
    let (nobody, silent) = (
        Port::take(),
        TcpListener::bind("127.0.0.1:0").await.expect("a port"),
    );
    let silent = silent.local_addr().expect("bound").port();
    let real = database.url.replacen("postgres://postgres@", "", 1);
    let dead = format!("127.0.0.1:{},127.0.0.1:{silent}", nobody.number());
    let url = format!("postgres://postgres@{dead},{real}?connect_timeout=30");
    let session = open(&target(&url), "outbox-relay/test/1")
        .await
        .expect("the third");
    assert!(real.starts_with(&session.server), "{}", session.server);

    let error = refused(&quickly(&format!("postgres://postgres@{dead}/x"))).await;
    let text = error.to_string();
    assert!(matches!(error, StoreError::Unreachable(_)), "{text}");
    assert!(text.contains(&nobody.number().to_string()), "{text}");
    assert!(text.contains(&silent.to_string()), "{text}");
}

#[tokio::test]
async fn a_socket_directory_is_a_host() {
    let server = Postgres::start().await;
    let folder = server.socket_folder();
    let url = format!(
        "host={} port={} user=postgres",
        folder.display(),
        server.port()
    );
    let session = open(&target(&url), "outbox-relay/test/1")
        .await
        .expect("a session");
    assert!(session.server.starts_with(&folder.display().to_string()));
}

#[tokio::test]
async fn a_refused_login_is_told_apart_from_an_outage() {
    let database = database().await;
    let unknown = database
        .url
        .replacen("postgres@", "nobody_of_that_name@", 1);
    let error = refused(&target(&unknown)).await;
    assert!(matches!(error, StoreError::Denied(_)), "{error:?}");
    assert_eq!(error.sqlstate(), Some("28000"));
}

#[tokio::test]
async fn a_server_that_only_reads_is_passed_over() {
    let (database, admin) = outbox().await;
    let name = &database.name;
    let sql = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
    admin.batch_execute(&sql).await.expect("read-only");
    let url = format!("{}?target_session_attrs=read-write", database.url);
    let error = refused(&target(&url)).await;
    assert!(matches!(error, StoreError::ReadOnly(_)), "{error:?}");
    let session = relay_session(&database).await;
    let write = "INSERT INTO outbox.message (payload) VALUES ('1')";
    let error = session
        .client
        .batch_execute(write)
        .await
        .expect_err("read-only");
    assert!(matches!(
        store_error("write", &error),
        StoreError::ReadOnly(_)
    ));
}

#[tokio::test]
async fn tls_is_demanded_where_it_was_asked_for() {
    let database = database().await;
    let error = refused(&target(&format!("{}?sslmode=require", database.url))).await;
    assert!(error.to_string().contains("TLS"), "{error}");
    for mode in ["disable", "allow", "prefer"] {
        let url = format!("{}?sslmode={mode}", database.url);
        let session = open(&target(&url), "outbox-relay/test/1").await;
        assert!(session.is_ok(), "{mode}");
    }
}

#[tokio::test]
async fn a_session_that_was_ended_by_an_administrator_says_so() {
    let database = database().await;
    let admin = database.connect().await;
    let mut session = relay_session(&database).await;
    assert!(session.closed.borrow().is_none());
    let kill = format!("SELECT pg_terminate_backend({})", session.backend_pid);
    admin.batch_execute(&kill).await.expect("terminated");
    let end = ended(&mut session).await;
    assert!(matches!(end, StoreError::Unreachable(_)), "{end:?}");
    assert_eq!(end.sqlstate(), Some("57P01"));
    let error = session
        .client
        .batch_execute("SELECT 1")
        .await
        .expect_err("gone");
    assert!(matches!(
        store_error("ask", &error),
        StoreError::Unreachable(_)
    ));
}

#[tokio::test]
async fn a_killed_server_ends_its_sessions() {
    let mut server = Postgres::start().await;
    let url = server.url("postgres");
    let mut session = open(&target(&url), "outbox-relay/test/1")
        .await
        .expect("a session");
    server.kill();
    let end = ended(&mut session).await;
    assert!(matches!(end, StoreError::Unreachable(_)), "{end:?}");
    let error = refused(&target(&url)).await;
    assert!(matches!(error, StoreError::Unreachable(_)), "{error:?}");
}

#[tokio::test]
async fn closing_leaves_no_session_behind() {
    let database = database().await;
    let admin = database.connect().await;
    let session = relay_session(&database).await;
    let pid = session.backend_pid;
    session.close(PATIENCE).await;
    let gone = format!("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid})");
    crate::outbox::until(&admin, &gone).await;
}

#[tokio::test]
async fn unread_notifications_do_not_stop_a_session() {
    let database = database().await;
    let mut session = relay_session(&database).await;
    session
        .client
        .batch_execute("LISTEN x")
        .await
        .expect("listening");
    for number in 0..100 {
        let notify = format!("NOTIFY x, '{number}'");
        session
            .client
            .batch_execute(&notify)
            .await
            .expect("not blocked");
    }
    let first = session
        .notifications
        .recv()
        .await
        .expect("the session lives");
    assert_eq!(first.payload(), "0");
}

#[tokio::test]
async fn row_values_are_no_part_of_an_error() {
    let (database, _client) = outbox().await;
    let session = relay_session(&database).await;
    let sql = "INSERT INTO outbox.quarantine (id, payload) VALUES (1, '\"canary\"')";
    let error = session
        .client
        .batch_execute(sql)
        .await
        .expect_err("columns are missing");
    let detail = error.as_db_error().and_then(|answer| answer.detail());
    assert!(
        detail.is_some_and(|detail| detail.contains("canary")),
        "PostgreSQL tells the row"
    );
    let told = store_error("move", &error);
    assert!(!format!("{told} {told:?}").contains("canary"), "{told:?}");
}
