//! `outbox-relay grants`: each role can do its work, and nothing more.

use outbox_relay::commands::exit::Exit;
use outbox_relay::commands::grants::{GrantsArgs, grants};
use outbox_relay::store::postgres::schema::{wake_channel, wake_key};
use tokio_postgres::Client;

use crate::outbox::{Names, Said, USUAL, number, outbox, refusal, relay_session, sources};
use crate::support::PATIENCE;
use crate::support::postgres::{Database, database};

/// PostgreSQL's "insufficient privilege".
const DENIED: &str = "42501";
/// "Cannot insert a non-DEFAULT value into a column defined as GENERATED ALWAYS".
const GENERATED: &str = "428C9";

async fn run(args: GrantsArgs) -> Said {
    run_named(USUAL, args).await
}

async fn run_named(names: Names, args: GrantsArgs) -> Said {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let sources = sources(args.assignments(), names);
    let exit = grants(&args, &sources, &mut out, &mut err)
        .await
        .expect("memory can be written to");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Said {
        exit,
        out: text(out),
        err: text(err),
    }
}

/// Roles are shared by all databases of a server: the database's name makes them this test's.
fn role(database: &Database, work: &str) -> String {
    format!("{work}\"; of {}", database.name)
}

fn quoted(role: &str) -> String {
    format!("\"{}\"", role.replace('"', "\"\""))
}

fn all(database: &Database) -> GrantsArgs {
    let one = |work| vec![role(database, work)];
    GrantsArgs {
        relay: one("relay"),
        app: one("app"),
        operator: one("operator"),
        monitor: one("monitor"),
        ..GrantsArgs::default()
    }
}

/// An outbox with one row in it, its roles, and a session of one of them.
async fn outbox_as(work: &str) -> (Database, Client, Client) {
    let (database, owner) = outbox().await;
    for work in ["relay", "app", "operator", "monitor"] {
        let sql = format!("CREATE ROLE {}", quoted(&role(&database, work)));
        owner.batch_execute(&sql).await.expect("a role");
    }
    let said = run(all(&database)).await;
    assert_eq!(said.exit, Exit::Done, "{said:?}");
    for _ in 0..2 {
        owner
            .batch_execute(&said.out)
            .await
            .expect("idempotent SQL");
    }
    let row = "SELECT outbox.enqueue('{}', routing_key => 'q', message_id => 'first')";
    owner.batch_execute(row).await.expect("a row");
    let client = database.connect().await;
    let become_it = format!(
        "SET SESSION AUTHORIZATION {}",
        quoted(&role(&database, work))
    );
    client.batch_execute(&become_it).await.expect("the role");
    (database, owner, client)
}

async fn may(client: &Client, statements: &[&str]) {
    for sql in statements {
        if let Err(error) = client.batch_execute(sql).await {
            panic!("{sql}: {error:?}");
        }
    }
}

async fn may_not(client: &Client, statements: &[&str]) {
    for sql in statements {
        let code = refusal(client, sql).await;
        assert!(code == DENIED || code == GENERATED, "{sql}: {code}");
    }
}

#[tokio::test]
async fn the_application_writes_business_columns_and_nothing_else() {
    let (_database, _owner, app) = outbox_as("app").await;
    may(
        &app,
        &[
            "INSERT INTO outbox.message (message_id, exchange, routing_key, ordering_key, payload, \
             headers, type, correlation_id, content_type, properties, available_at, created_at) \
             VALUES ('m', 'e', 'r', 'k', '{}', '{}', 't', 'c', 'text/plain', '{}', now(), now())",
            "SELECT outbox.enqueue('{}', routing_key => 'q')",
        ],
    )
    .await;
    for column in ["xid", "attempts", "retry_at", "last_error", "sent_at"] {
        let sql = format!("INSERT INTO outbox.message (payload, {column}) VALUES ('1', DEFAULT)");
        assert_eq!(refusal(&app, &sql).await, DENIED, "{column}");
    }
    may_not(
        &app,
        &[
            "INSERT INTO outbox.message (id, payload) VALUES (7, '1')",
            "INSERT INTO outbox.message (id, payload) OVERRIDING SYSTEM VALUE VALUES (7, '1')",
            "SELECT id FROM outbox.message",
            "UPDATE outbox.message SET sent_at = now()",
            "DELETE FROM outbox.message",
            "TRUNCATE outbox.message",
            "SELECT FROM outbox.quarantine",
            "SELECT FROM outbox.lease",
            "SELECT FROM outbox.schema_version",
            "INSERT INTO outbox.pause (by_whom, reason) VALUES ('a', 'b')",
            "CREATE TABLE outbox.x (y int)",
        ],
    )
    .await;
}

#[tokio::test]
async fn the_application_needs_no_further_right_to_wake_the_relay() {
    let (database, _owner, app) = outbox_as("app").await;
    let mut relay = relay_session(&database).await;
    let key = wake_key("outbox", "message");
    let sleep = format!(
        "LISTEN {}; SELECT pg_advisory_lock({key})",
        wake_channel("outbox", "message")
    );
    relay.client.batch_execute(&sleep).await.expect("asleep");
    may(&app, &["INSERT INTO outbox.message (payload) VALUES ('1')"]).await;
    let heard = tokio::time::timeout(PATIENCE, relay.notifications.recv()).await;
    assert!(heard.expect("in time").is_some());
}

#[tokio::test]
async fn the_relay_reads_marks_and_quarantines_and_nothing_else() {
    let (_database, _owner, relay) = outbox_as("relay").await;
    may(
        &relay,
        &[
            "SELECT * FROM outbox.message WHERE sent_at IS NULL ORDER BY id FOR UPDATE SKIP LOCKED",
            "UPDATE outbox.message SET attempts = 1, retry_at = now(), last_error = 'x', xid = xid",
            "UPDATE outbox.message SET sent_at = now()",
            "WITH gone AS (DELETE FROM outbox.message RETURNING *) \
             INSERT INTO outbox.quarantine (id, message_id, exchange, routing_key, payload, \
             created_at, attempts, reason_class, reason, first_failed_at, last_failed_at) \
             SELECT id, message_id, exchange, routing_key, payload, created_at, attempts, \
             'c', 'r', now(), now() FROM gone",
            "SELECT count(*) FROM outbox.quarantine",
            "SELECT partition FROM outbox.lease ORDER BY partition FOR SHARE",
            "INSERT INTO outbox.instance (relation, instance, name, version) \
             VALUES ('message', gen_random_uuid(), 'n', '1')",
            "INSERT INTO outbox.lease (relation, partition) VALUES ('other', 0)",
            "UPDATE outbox.lease SET owner = (SELECT instance FROM outbox.instance), \
             epoch = epoch + 1",
            "UPDATE outbox.instance SET heartbeat_at = now(), ready = true",
            "DELETE FROM outbox.instance",
            "SELECT * FROM outbox.pause",
            "SELECT max(version) FROM outbox.schema_version",
        ],
    )
    .await;
    may_not(
        &relay,
        &[
            "INSERT INTO outbox.message (payload) VALUES ('1')",
            "UPDATE outbox.message SET payload = '1'",
            "UPDATE outbox.message SET message_id = '1'",
            "UPDATE outbox.quarantine SET reason = ''",
            "DELETE FROM outbox.quarantine",
            "DELETE FROM outbox.lease",
            "INSERT INTO outbox.pause (by_whom, reason) VALUES ('a', 'b')",
            "INSERT INTO outbox.audit (act, by_whom, reason, version) VALUES ('a', 'b', 'c', 'd')",
            "SELECT outbox.enqueue('{}')",
            "CREATE TABLE outbox.x (y int)",
        ],
    )
    .await;
}

#[tokio::test]
async fn the_operator_replays_and_pauses_and_leaves_a_trace() {
    let (database, owner, operator) = outbox_as("operator").await;
    let quarantine = "INSERT INTO outbox.quarantine (id, message_id, exchange, routing_key, payload, \
                      created_at, attempts, reason_class, reason, first_failed_at, last_failed_at) \
                      VALUES (500, 'm', 'e', 'r', '{}', now(), 3, 'c', 'r', now(), now())";
    owner
        .batch_execute(quarantine)
        .await
        .expect("a quarantined row");
    may(
        &operator,
        &[
            "BEGIN",
            "WITH back AS (DELETE FROM outbox.quarantine WHERE id = 500 RETURNING *) \
             INSERT INTO outbox.message (id, message_id, exchange, routing_key, payload, created_at) \
             OVERRIDING SYSTEM VALUE \
             SELECT id, message_id, exchange, routing_key, payload, created_at FROM back",
            "INSERT INTO outbox.audit (act, by_whom, reason, row_id, message_id, detail, old_sha256, \
             new_sha256, version) VALUES ('replay', 'ann', 'fixed', 500, 'm', '{}', '', '', '0')",
            "COMMIT",
            "UPDATE outbox.message SET sent_at = NULL, xid = pg_current_xact_id(), attempts = 0",
            "INSERT INTO outbox.pause (exchange, by_whom, reason) VALUES ('e', 'ann', 'why')",
            "UPDATE outbox.pause SET until = now()",
            "DELETE FROM outbox.pause",
            "SELECT * FROM outbox.message, outbox.lease, outbox.instance",
        ],
    )
    .await;
    let sql = "SELECT login FROM outbox.audit";
    let login: String = owner.query_one(sql, &[]).await.expect("a trace").get(0);
    assert_eq!(login, role(&database, "operator"));
    may_not(
        &operator,
        &[
            "INSERT INTO outbox.audit (act, by_whom, reason, version, login) \
             VALUES ('a', 'b', 'c', 'd', 'somebody else')",
            "INSERT INTO outbox.audit (act, by_whom, reason, version, at) \
             VALUES ('a', 'b', 'c', 'd', now())",
            "UPDATE outbox.audit SET reason = ''",
            "DELETE FROM outbox.audit",
            "TRUNCATE outbox.audit",
            "DELETE FROM outbox.message",
            "UPDATE outbox.message SET payload = '1'",
            "UPDATE outbox.lease SET owner = NULL",
        ],
    )
    .await;
}

#[tokio::test]
async fn monitoring_sees_everything_but_contents() {
    let (_database, _owner, monitor) = outbox_as("monitor").await;
    assert_eq!(
        number(&monitor, "SELECT count(*) FROM outbox.message").await,
        1
    );
    may(
        &monitor,
        &[
            "SELECT id, message_id, exchange, attempts, retry_at, sent_at, xid FROM outbox.message",
            "SELECT reason_class, count(*), min(quarantined_at) FROM outbox.quarantine GROUP BY 1",
            "SELECT * FROM outbox.audit, outbox.lease, outbox.instance, outbox.pause, \
             outbox.schema_version",
        ],
    )
    .await;
    may_not(
        &monitor,
        &[
            "SELECT payload FROM outbox.message",
            "SELECT headers FROM outbox.message",
            "SELECT payload FROM outbox.quarantine",
            "UPDATE outbox.lease SET owner = NULL",
            "DELETE FROM outbox.instance",
            "INSERT INTO outbox.message (payload) VALUES ('1')",
            "SELECT outbox.enqueue('{}')",
        ],
    )
    .await;
}

#[tokio::test]
async fn a_role_without_grants_sees_nothing() {
    let (database, owner, client) = outbox_as("app").await;
    let stranger = quoted(&role(&database, "stranger"));
    let sql = format!("CREATE ROLE {stranger}");
    owner.batch_execute(&sql).await.expect("a role");
    let become_it = format!("RESET SESSION AUTHORIZATION; SET SESSION AUTHORIZATION {stranger}");
    client.batch_execute(&become_it).await.expect("the role");
    may_not(
        &client,
        &[
            "SELECT FROM outbox.message",
            "SELECT outbox.enqueue('{}')",
            "INSERT INTO outbox.message (payload) VALUES ('1')",
        ],
    )
    .await;
}

#[tokio::test]
async fn a_relation_of_the_users_own_is_granted_as_far_as_it_goes() {
    let database = database().await;
    let owner = database.connect().await;
    let relay = quoted(&role(&database, "relay"));
    owner
        .batch_execute(&format!(
            "CREATE ROLE {relay}; CREATE SCHEMA outbox; CREATE TABLE outbox.schema_version (); \
             CREATE TABLE outbox.quarantine (); CREATE TABLE outbox.lease (); \
             CREATE TABLE outbox.instance (); CREATE TABLE outbox.pause (); \
             CREATE TABLE own (id bigint PRIMARY KEY, body text, sent_at timestamptz); \
             CREATE VIEW outbox.message AS SELECT id, body AS payload, sent_at FROM own"
        ))
        .await
        .expect("an outbox of the user's own");
    let said = run(GrantsArgs {
        relay: vec![role(&database, "relay")],
        database_url: Some(database.url.clone()),
        ..GrantsArgs::default()
    })
    .await;
    assert_eq!(said.exit, Exit::Done, "{said:?}");
    owner
        .batch_execute(&said.out)
        .await
        .expect("only columns that exist");
}

#[tokio::test]
async fn mistakes_are_told() {
    let database = database().await;
    let args = |url| GrantsArgs {
        app: vec!["app".to_owned()],
        database_url: url,
        ..GrantsArgs::default()
    };
    let said = run(args(Some(database.url.clone()))).await;
    assert_eq!(said.exit, Exit::Configuration);
    assert!(
        said.err.contains("run outbox-relay migrate first"),
        "{said:?}"
    );
    let said = run(GrantsArgs {
        app: vec!["public".to_owned()],
        ..GrantsArgs::default()
    })
    .await;
    assert_eq!(said.exit, Exit::Usage);
    assert!(said.err.contains("everybody"), "{said:?}");
}
