//! `outbox-relay migrate --check`: what it sees in the catalog, and what `migrate` makes of it.

use outbox_relay::commands::exit::Exit;
use outbox_relay::commands::migrate::MigrateArgs;

use crate::migrate::objects;
use crate::outbox::{check, number, outbox, plain, run};

const WRITE: &str = "INSERT INTO outbox.message (routing_key, payload) VALUES ('q', '{}')";

/// How to break an outbox, and what `--check` then says.
const REPAIRABLE: [(&str, &str); 18] = [
    (
        "DROP INDEX outbox.message_pending",
        "index message_pending on outbox.message: missing",
    ),
    (
        "DROP INDEX outbox.message_xid",
        "index message_xid on outbox.message: missing",
    ),
    (
        "DROP INDEX outbox.message_retry",
        "index message_retry on outbox.message: missing",
    ),
    (
        "DROP INDEX outbox.message_available",
        "index message_available on outbox.message: missing",
    ),
    (
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox.message_xid'::regclass",
        "index message_xid on outbox.message: invalid or different",
    ),
    (
        "DROP INDEX outbox.message_retry; CREATE INDEX message_retry ON outbox.message (retry_at)",
        "index message_retry on outbox.message: invalid or different",
    ),
    ("DROP TABLE outbox.pause", "table outbox.pause: missing"),
    (
        "DROP TABLE outbox.instance CASCADE",
        "table outbox.instance: missing",
    ),
    (
        "ALTER TABLE outbox.instance DROP COLUMN held_back",
        "column instance.held_back: missing",
    ),
    (
        "ALTER TABLE outbox.lease DROP CONSTRAINT lease_owner_fkey",
        "table outbox.lease: owner does not refer to instance",
    ),
    (
        "DROP TABLE outbox.schema_version",
        "table outbox.schema_version: missing",
    ),
    (
        "DROP INDEX outbox.pause_everything",
        "table outbox.pause: no usable index on ((exchange IS NULL))",
    ),
    (
        "DELETE FROM outbox.lease WHERE partition = 7",
        "table outbox.lease: not 256 for each outbox",
    ),
    (
        "DROP FUNCTION outbox.enqueue",
        "function outbox.enqueue: missing",
    ),
    (
        "ALTER FUNCTION outbox.enqueue SECURITY DEFINER",
        "function outbox.enqueue: not SECURITY INVOKER",
    ),
    (
        "ALTER TABLE outbox.message ALTER COLUMN xid SET DEFAULT CASE \
         WHEN pg_try_advisory_xact_lock_shared(7) THEN pg_current_xact_id() \
         WHEN pg_notify('outbox_wake_7', '') IS NULL THEN NULL ELSE pg_current_xact_id() END",
        "wake-up gate in the default of xid of outbox.message: made for other names",
    ),
    (
        "ALTER TABLE outbox.message ALTER COLUMN xid DROP DEFAULT",
        "wake-up gate in the default of xid of outbox.message: missing",
    ),
    (
        "CREATE FUNCTION outbox.wake() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN NOTIFY outbox_wake_79e34b483b590cda; RETURN NULL; END'; \
         CREATE TRIGGER \"Outbox wake\" AFTER INSERT ON outbox.message \
         WHEN (NOT pg_try_advisory_xact_lock_shared(8)) EXECUTE FUNCTION outbox.wake()",
        "trigger Outbox wake on outbox.message: what wakes the relay is the default of xid now",
    ),
];

#[tokio::test]
async fn what_is_broken_is_seen_in_the_catalog_and_repaired() {
    let (database, client) = outbox().await;
    client.batch_execute(WRITE).await.expect("a row");
    for (break_it, expected) in REPAIRABLE {
        client.batch_execute(break_it).await.expect(break_it);
        let said = run(check(&database)).await;
        assert_eq!(said.exit, Exit::Failed, "{break_it}");
        assert!(said.out.contains(expected), "{break_it}: {said:?}");
        let said = run(plain(&database)).await;
        assert_eq!(said.exit, Exit::Done, "{break_it}: {said:?}");
        let said = run(check(&database)).await;
        assert_eq!(said.exit, Exit::Done, "{break_it}: {said:?}");
    }
    assert_eq!(
        number(&client, "SELECT count(*) FROM outbox.message").await,
        1
    );
}

/// How to break what `migrate` does not mend by itself, and the statement that it names.
const BY_HAND: [(&str, &str); 6] = [
    (
        "ALTER TABLE outbox.message DROP COLUMN last_error",
        "ALTER TABLE \"outbox\".\"message\" ADD COLUMN \"last_error\" text",
    ),
    (
        "ALTER TABLE outbox.message ALTER COLUMN attempts DROP DEFAULT",
        "ALTER TABLE \"outbox\".\"message\" ALTER COLUMN \"attempts\" SET DEFAULT 0",
    ),
    (
        "ALTER TABLE outbox.message ALTER COLUMN exchange DROP NOT NULL",
        "ALTER TABLE \"outbox\".\"message\" ALTER COLUMN \"exchange\" SET NOT NULL",
    ),
    (
        "ALTER TABLE outbox.quarantine ALTER COLUMN headers TYPE json",
        "ALTER TABLE \"outbox\".\"quarantine\" ALTER COLUMN \"headers\" TYPE jsonb",
    ),
    (
        "ALTER TABLE outbox.message ALTER COLUMN id SET CACHE 20",
        "ALTER TABLE \"outbox\".\"message\" ALTER COLUMN id SET CACHE 1",
    ),
    (
        "ALTER TABLE outbox.message DROP CONSTRAINT message_pkey",
        "ALTER TABLE \"outbox\".\"message\" ADD PRIMARY KEY (id)",
    ),
];

#[tokio::test]
async fn what_migrate_does_not_touch_is_told_with_the_statement_that_mends_it() {
    let (database, client) = outbox().await;
    for (break_it, statement) in BY_HAND {
        client.batch_execute(break_it).await.expect(break_it);
        for args in [check(&database), plain(&database)] {
            let said = run(args).await;
            assert_eq!(said.exit, Exit::Failed, "{break_it}");
            let told = format!("{}{}", said.out, said.err);
            assert!(told.contains(statement), "{break_it}: {told}");
        }
        client.batch_execute(statement).await.expect(statement);
        let said = run(check(&database)).await;
        assert_eq!(said.exit, Exit::Done, "{break_it}: {said:?}");
    }
}

#[tokio::test]
async fn an_outbox_that_another_tool_made_passes_the_check() {
    let (database, client) = outbox().await;
    client
        .batch_execute(
            "DELETE FROM outbox.schema_version; \
             ALTER INDEX outbox.message_xid RENAME TO idx_20261129_1; \
             ALTER TABLE outbox.message ALTER COLUMN routing_key TYPE varchar(255), \
                                        ADD COLUMN created_by text",
        )
        .await
        .expect("another tool's work");
    let said = run(check(&database)).await;
    assert_eq!(said.exit, Exit::Done, "{said:?}");
}

#[tokio::test]
async fn a_newer_schema_is_left_alone() {
    let (database, client) = outbox().await;
    client
        .batch_execute(
            "INSERT INTO outbox.schema_version (version, name) VALUES (99, 'later'); \
             CREATE FUNCTION outbox.later() RETURNS trigger LANGUAGE plpgsql \
             SET search_path = pg_catalog, pg_temp AS 'BEGIN RETURN NULL; END'",
        )
        .await
        .expect("a newer relay's work");
    let before = objects(&client).await;
    assert_eq!(run(check(&database)).await.exit, Exit::Done);
    let said = run(plain(&database)).await;
    assert_eq!(said.exit, Exit::Done);
    assert!(said.out.contains("version 99"), "{said:?}");
    assert_eq!(objects(&client).await, before);
}

#[tokio::test]
async fn a_script_is_told_what_is_pending() {
    let (database, client) = outbox().await;
    let asked = || MigrateArgs {
        json: true,
        ..check(&database)
    };
    let object = |out: &str| -> serde_json::Value { serde_json::from_str(out).expect("JSON") };
    let said = run(asked()).await;
    assert_eq!(said.exit, Exit::Done, "{said:?}");
    let nothing = serde_json::json!({ "version": 1, "relation": "outbox.message", "pending": [] });
    assert_eq!(object(&said.out), nothing);
    client
        .batch_execute("DROP TABLE outbox.pause")
        .await
        .expect("it was there");
    let said = run(asked()).await;
    assert_eq!(said.exit, Exit::Failed, "{said:?}");
    let first = &object(&said.out)["pending"][0];
    assert_eq!(first, "table outbox.pause: missing");
}
