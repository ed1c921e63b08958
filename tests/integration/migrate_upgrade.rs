//! `outbox-relay migrate` on an outbox that version 8 made: what woke a relay was a trigger.

use outbox_relay::commands::exit::Exit;

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

#[tokio::test]
async fn the_function_stays_where_another_trigger_calls_it() {
    let (database, client) = outbox().await;
    let another = format!(
        "{VERSION_8}; CREATE TABLE other (id int); \
         CREATE TRIGGER other AFTER INSERT ON other EXECUTE FUNCTION outbox.wake()"
    );
    client.batch_execute(&another).await.expect("version 8");
    let said = run(plain(&database)).await;
    assert_eq!(said.exit, Exit::Done, "{said:?}");
    for (what, expected) in [(GATES, 1), (TRIGGERS, 0), (FUNCTIONS, 1)] {
        assert_eq!(number(&client, what).await, expected, "{what}");
    }
    let write = "INSERT INTO other VALUES (1)";
    client.batch_execute(write).await.expect("it still works");
}
