//! `outbox-relay migrate` on an outbox that version 8 made: what woke a relay was a trigger.

use outbox_relay::commands::exit::Exit;
use outbox_relay::commands::migrate::MigrateArgs;
use outbox_relay::store::postgres::schema::Wake;

use crate::outbox::{GATES, check, number, outbox, plain, run};

const VERSION_8: &str = "\
    DELETE FROM outbox.schema_version WHERE version > 8; \
    INSERT INTO outbox.schema_version (version, name) VALUES (6, 'wake'), (7, 'wake_trigger'); \
    ALTER TABLE outbox.message ALTER COLUMN xid SET DEFAULT pg_current_xact_id(); \
    CREATE FUNCTION outbox.wake() RETURNS trigger LANGUAGE plpgsql \
    SET search_path = pg_catalog, pg_temp AS \
    'BEGIN PERFORM pg_notify(''outbox_wake_79e34b483b590cda'', ''''); RETURN NULL; END'; \
    CREATE TRIGGER outbox_wake AFTER INSERT ON outbox.message FOR EACH STATEMENT \
    WHEN (NOT pg_try_advisory_xact_lock_shared(8782946471908019418)) \
    EXECUTE FUNCTION outbox.wake()";

const FUNCTIONS: &str = "SELECT count(*) FROM pg_proc WHERE proname = 'wake'";
const TRIGGERS: &str = "SELECT count(*) FROM pg_trigger \
    WHERE tgrelid = 'outbox.message'::regclass AND NOT tgisinternal";

#[tokio::test]
async fn the_trigger_makes_way_for_the_gate() {
    let (database, client) = outbox().await;
    client.batch_execute(VERSION_8).await.expect("version 8");
    assert_eq!(run(check(&database)).await.exit, Exit::Failed);
    let said = run(plain(&database)).await;
    assert_eq!(said.exit, Exit::Done, "{said:?}");
    for (what, expected) in [(GATES, 1), (TRIGGERS, 0), (FUNCTIONS, 0)] {
        assert_eq!(number(&client, what).await, expected, "{what}");
    }
    assert_eq!(run(check(&database)).await.exit, Exit::Done);
}

#[tokio::test]
async fn a_choice_of_polling_stays() {
    let (database, client) = outbox().await;
    let polling = format!("{VERSION_8}; DROP TRIGGER outbox_wake ON outbox.message");
    client.batch_execute(&polling).await.expect("version 8");
    let said = run(plain(&database)).await;
    assert_eq!(said.exit, Exit::Done, "{said:?}");
    assert_eq!(number(&client, GATES).await, 0);
}

/// A script cannot look before it is made: it looks when it runs.
#[tokio::test]
async fn a_script_keeps_a_choice_of_polling_and_asks_for_nothing_else() {
    let polling = format!("{VERSION_8}; DROP TRIGGER outbox_wake ON outbox.message");
    for (before, wake, gates) in [
        (polling.as_str(), None, 0),
        (polling.as_str(), Some(Wake::Notify), 1),
        (VERSION_8, None, 1),
        (VERSION_8, Some(Wake::None), 0),
    ] {
        let (database, client) = outbox().await;
        client.batch_execute(before).await.expect("version 8");
        let print = || {
            run(MigrateArgs {
                print: true,
                wake,
                ..MigrateArgs::default()
            })
        };
        for _ in 0..2 {
            let script = print().await.out;
            client.batch_execute(&script).await.expect("it runs");
            assert_eq!(number(&client, GATES).await, gates, "{before} {wake:?}");
        }
        assert_eq!(number(&client, TRIGGERS).await, 0);
        let said = run(check(&database)).await;
        assert_eq!(said.exit, Exit::Done, "{said:?}");
        // A choice that version 9 wrote down is kept as well.
        let script = run(MigrateArgs {
            print: true,
            ..MigrateArgs::default()
        });
        let script = script.await.out;
        client.batch_execute(&script).await.expect("it runs");
        assert_eq!(number(&client, GATES).await, gates, "{before} {wake:?}");
    }
}

#[tokio::test]
async fn the_function_stays_where_another_trigger_calls_it() {
    let (database, client) = outbox().await;
    let another = format!(
        "{VERSION_8}; CREATE TABLE other (id int); \
         CREATE TRIGGER other AFTER INSERT ON other EXECUTE FUNCTION outbox.wake(); \
         CREATE TRIGGER own AFTER UPDATE ON outbox.message EXECUTE FUNCTION outbox.wake()"
    );
    client.batch_execute(&another).await.expect("version 8");
    let said = run(plain(&database)).await;
    assert_eq!(said.exit, Exit::Done, "{said:?}");
    for (what, expected) in [(GATES, 1), (TRIGGERS, 1), (FUNCTIONS, 1)] {
        assert_eq!(number(&client, what).await, expected, "{what}");
    }
    let write = "INSERT INTO other VALUES (1)";
    client.batch_execute(write).await.expect("it still works");
}
