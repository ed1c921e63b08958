//! `migrate --inbox` and `grants --inbox`.

use outbox_relay::store::postgres::connect::open;
use outbox_relay::store::postgres::inbox_grants::{InboxRoles, inbox_grants};
use outbox_relay::store::postgres::schema::{
    Migrated, Subject, check_subject, inbox_script, migrate_subject,
};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::entries::{ask, inbox, migrate, number, target};
use crate::support::postgres::database;
use crate::support::relay::{self, Settings};

const DENIED: &str = "42501";

async fn problems(url: &str) -> Vec<String> {
    let session = open(&target(url), "outbox-relay/test/1")
        .await
        .expect("a session");
    let pending = check_subject(&session, &Subject::inbox()).await;
    let pending = pending.expect("the catalog");
    pending.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn the_command_makes_an_inbox_once_and_checks_it() {
    let database = database().await;
    let settings = Settings::default();
    let run = async |more: &[&str]| {
        let mut line = vec!["migrate", "--inbox", "--database-url", &database.url];
        line.extend(more);
        let (status, output) = relay::run(&settings, &line).await;
        (status.code(), output.join("\n"))
    };
    let (code, output) = run(&["--check"]).await;
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("table inbox.message: missing"), "{output}");
    let (code, output) = run(&[]).await;
    assert_eq!(code, Some(0), "{output}");
    let (code, output) = run(&[]).await;
    assert_eq!(code, Some(0));
    assert!(
        output.contains("inbox.message: up to date, nothing to do"),
        "{output}"
    );
    let (code, output) = run(&["--check"]).await;
    assert_eq!(
        (code, output.as_str()),
        (Some(0), "inbox.message: up to date")
    );
}

#[tokio::test]
async fn the_printed_script_makes_the_same_inbox_and_may_run_again() {
    let database = database().await;
    let client = database.connect().await;
    for _ in 0..2 {
        client.batch_execute(&inbox_script()).await.expect("SQL");
    }
    assert_eq!(problems(&database.url).await, Vec::<String>::new());
    assert_eq!(migrate(&database).await, Migrated::Nothing);
}

#[tokio::test]
async fn what_was_taken_away_is_seen_and_made_again() {
    let (database, client) = inbox().await;
    for (damage, problem) in [
        ("DROP FUNCTION inbox.due", "function inbox.due: missing"),
        (
            "DROP INDEX inbox.message_turn",
            "table inbox.message: no usable index on (consumer, hashtextextended(ordering_key, (0)::bigint), state, received_at, message_id)",
        ),
        (
            "DROP INDEX inbox.message_dead",
            "table inbox.message: no usable index on (consumer, done_at)",
        ),
        ("DROP TABLE inbox.audit", "table inbox.audit: missing"),
        (
            "ALTER FUNCTION inbox.claim SECURITY DEFINER",
            "function inbox.claim: not SECURITY INVOKER with search_path pg_catalog, pg_temp",
        ),
        (
            "CREATE OR REPLACE FUNCTION inbox.hold(consumer text, message_id text, owner uuid) RETURNS boolean LANGUAGE sql SET search_path = pg_catalog, pg_temp AS 'SELECT true'",
            "function inbox.hold: its body is not this version's",
        ),
    ] {
        client.batch_execute(damage).await.expect("damage");
        assert_eq!(problems(&database.url).await, [problem], "{damage}");
        assert_eq!(
            migrate(&database).await,
            Migrated::Done(vec![problem.to_owned()])
        );
        assert_eq!(problems(&database.url).await, Vec::<String>::new());
    }
    client
        .batch_execute("ALTER TABLE inbox.message DROP COLUMN result")
        .await
        .expect("damage");
    let seen = problems(&database.url).await;
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert!(seen[0].contains("ALTER TABLE \"inbox\".\"message\" ADD COLUMN \"result\" jsonb"));
}

#[tokio::test(flavor = "multi_thread")]
async fn four_at_once_make_one_inbox() {
    let database = database().await;
    let runs = (0..4).map(|_| {
        let url = database.url.clone();
        tokio::spawn(async move {
            let session = open(&target(&url), "outbox-relay/test/1")
                .await
                .expect("a session");
            migrate_subject(&session, &Subject::inbox(), &mut |_| ()).await
        })
    });
    let mut made = 0;
    for run in runs.collect::<Vec<_>>() {
        let migrated = run.await.expect("no panic").expect("migrated");
        made += usize::from(matches!(migrated, Migrated::Done(_)));
    }
    assert_eq!(made, 1);
}

/// Runs the statements as a new role with these rights.
async fn as_role(rights: impl Fn(String) -> InboxRoles) -> (Client, Client, impl Drop) {
    let (database, owner) = inbox().await;
    let role = format!("inbox role of {}", database.name);
    owner
        .batch_execute(&format!("CREATE ROLE \"{role}\""))
        .await
        .expect("a role");
    let grants = inbox_grants(&rights(role.clone())).expect("a name");
    for _ in 0..2 {
        owner.batch_execute(&grants).await.expect("grants");
    }
    let client = database.connect().await;
    let become_it = format!("SET SESSION AUTHORIZATION \"{role}\"");
    client.batch_execute(&become_it).await.expect("the role");
    (owner, client, database)
}

async fn may_not(client: &Client, statements: &[&str]) {
    for sql in statements {
        let error = client.batch_execute(sql).await.expect_err(sql);
        assert_eq!(error.code().map(SqlState::code), Some(DENIED), "{sql}");
    }
}

#[tokio::test]
async fn a_consumer_does_all_its_work_and_no_operators() {
    let (_owner, client, _database) = as_role(|role| InboxRoles {
        consumer: vec![role],
        ..InboxRoles::default()
    })
    .await;
    for sql in [
        "SELECT inbox.configure('c', 2)",
        "SELECT inbox.claim('c', 'a', '1m', 'x', ordering_key => 'k')",
        "SELECT inbox.claim('c', 'b', '1m', 'x', ordering_key => 'k')",
        "SELECT inbox.renew('c', 'a', owner, '1m'), inbox.hold('c', 'a', owner), inbox.complete('c', 'a', owner) FROM inbox.message WHERE message_id = 'a'",
        "SELECT inbox.due('c', 10, '1m')",
        "SELECT inbox.release('c', 'b', owner) FROM inbox.message WHERE message_id = 'b'",
        "SELECT inbox.due('c', 10, '1m')",
        "SELECT inbox.retry('c', 'b', owner, 'later', '0') FROM inbox.message WHERE message_id = 'b'",
        "SELECT inbox.due('c', 10, '1m')",
        "SELECT inbox.fail('c', 'b', owner, 'x', 'y') FROM inbox.message WHERE message_id = 'b'",
        "SELECT inbox.tidy('c')",
    ] {
        client
            .batch_execute(sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    assert_eq!(
        number(
            &client,
            "SELECT count(*) FROM inbox.message WHERE state IN ('done', 'dead')"
        )
        .await,
        2
    );
    may_not(
        &client,
        &[
            "SELECT inbox.replay('c', 'b', 'me', 'why')",
            "SELECT inbox.discard('c', 'b', 'me', 'why')",
            "SELECT FROM inbox.audit",
            "CREATE TABLE inbox.x (y int)",
        ],
    )
    .await;
}

#[tokio::test]
async fn an_operator_replays_and_leaves_a_trace() {
    let (owner, client, _database) = as_role(|role| InboxRoles {
        operator: vec![role],
        ..InboxRoles::default()
    })
    .await;
    for sql in [
        "SELECT inbox.claim('c', 'a', '1m', 'x', ordering_key => 'k')",
        "SELECT inbox.fail('c', 'a', owner, 'x', 'y') FROM inbox.message",
    ] {
        owner.batch_execute(sql).await.expect("a dead entry");
    }
    let replay = "SELECT inbox.replay('c', 'a', 'ann', 'fixed')";
    assert_eq!(
        ask(&client, replay, &[]).await[0].get::<_, String>(0),
        "replayed"
    );
    owner
        .batch_execute(
            "SELECT inbox.fail('c', message_id, owner, 'x', 'y') FROM inbox.due('c', 1, '1m')",
        )
        .await
        .expect("dead again");
    let discard = "SELECT inbox.discard('c', 'a', 'ann', 'hopeless')";
    assert_eq!(
        ask(&client, discard, &[]).await[0].get::<_, String>(0),
        "discarded"
    );
    assert_eq!(
        number(
            &owner,
            "SELECT count(*) FROM inbox.audit WHERE login LIKE 'inbox role%'"
        )
        .await,
        2
    );
    may_not(
        &client,
        &[
            "DELETE FROM inbox.message",
            "UPDATE inbox.message SET result = NULL",
            "DELETE FROM inbox.audit",
            "INSERT INTO inbox.audit (act, by_whom, reason, consumer, version, login) VALUES ('a', 'b', 'c', 'd', 'e', 'f')",
            "SELECT inbox.claim('c', 'z', '1m', 'x')",
            "SELECT inbox.due('c', 1, '1m')",
        ],
    )
    .await;
}

#[tokio::test]
async fn monitoring_sees_no_contents_and_a_stranger_nothing() {
    let (_owner, monitor, _database) = as_role(|role| InboxRoles {
        monitor: vec![role],
        ..InboxRoles::default()
    })
    .await;
    let sql = "SELECT state, count(*) FROM inbox.message GROUP BY state";
    monitor.batch_execute(sql).await.expect("may count");
    may_not(
        &monitor,
        &[
            "SELECT payload FROM inbox.message",
            "SELECT result FROM inbox.message",
        ],
    )
    .await;
    let (_owner, stranger, _database) = as_role(|_| InboxRoles::default()).await;
    may_not(
        &stranger,
        &["SELECT FROM inbox.message", "SELECT inbox.tidy('c')"],
    )
    .await;
}
