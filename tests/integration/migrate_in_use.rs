//! `outbox-relay migrate` while applications write: they may wait a moment, never for long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outbox_relay::commands::exit::Exit;
use outbox_relay::commands::migrate::MigrateArgs;
use outbox_relay::store::postgres::schema::{Wake, migrate_key};
use tokio::task::JoinHandle;

use crate::outbox::{GATES, Said, check, number, outbox, outbox_with, plain, run, until};
use crate::support::postgres::Database;

const WRITE: &str = "INSERT INTO outbox.message (routing_key, payload) VALUES ('q', '{}')";

/// Writers that commit one row after the other, each of which fails if it has to wait for
/// longer than a second, until told to stop; returns how many rows they wrote.
struct Writers {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<u32>>,
}

impl Writers {
    async fn start(database: &Database) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = Vec::new();
        for _ in 0..4 {
            let client = database.connect().await;
            let stop = Arc::clone(&stop);
            tasks.push(tokio::spawn(async move {
                let limit = "SET lock_timeout = '1s'";
                client.batch_execute(limit).await.expect("a setting");
                let mut written = 0;
                while !stop.load(Ordering::Relaxed) {
                    client
                        .batch_execute(WRITE)
                        .await
                        .expect("writers never wait for long");
                    written += 1;
                }
                written
            }));
        }
        Self { stop, tasks }
    }

    async fn stop(self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        let mut written = 0;
        for task in self.tasks {
            written += task.await.expect("no writer failed");
        }
        written
    }
}

fn start(args: MigrateArgs) -> JoinHandle<Said> {
    tokio::spawn(run(args))
}

#[tokio::test(flavor = "multi_thread")]
async fn indexes_are_built_beside_running_writers() {
    let (database, client) = outbox().await;
    let fill = "INSERT INTO outbox.message (routing_key, payload) \
                SELECT 'q', '{}' FROM generate_series(1, 20000); \
                DROP INDEX outbox.message_pending, outbox.message_xid";
    client.batch_execute(fill).await.expect("rows");
    let writers = Writers::start(&database).await;
    let said = run(plain(&database)).await;
    assert_eq!(said.exit, Exit::Done, "{said:?}");
    assert!(said.out.contains("CONCURRENTLY"), "{said:?}");
    let written = writers.stop().await;
    let rows = number(&client, "SELECT count(*) FROM outbox.message").await;
    assert_eq!(rows, i64::from(written) + 20_000);
    assert_eq!(run(check(&database)).await.exit, Exit::Done);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_build_waits_for_a_long_transaction_and_blocks_nobody() {
    let (database, client) = outbox().await;
    client
        .batch_execute("DROP INDEX outbox.message_xid")
        .await
        .expect("no index");
    let long = database.connect().await;
    long.batch_execute(&format!("BEGIN; {WRITE}"))
        .await
        .expect("a long transaction");
    let migration = start(plain(&database));
    let waiting = "SELECT EXISTS (SELECT FROM pg_stat_progress_create_index \
                   WHERE phase LIKE 'waiting for%' AND datname = current_database())";
    until(&client, waiting).await;
    client
        .batch_execute(&format!("SET lock_timeout = '1s'; {WRITE}"))
        .await
        .expect("others write on");
    assert!(!migration.is_finished());
    long.batch_execute("COMMIT").await.expect("committed");
    let said = migration.await.expect("no panic");
    assert_eq!(said.exit, Exit::Done, "{said:?}");
    assert_eq!(
        number(&client, "SELECT count(*) FROM outbox.message").await,
        2
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_index_build_is_cleared_away_and_done_again() {
    let (database, client) = outbox().await;
    client
        .batch_execute("DROP INDEX outbox.message_xid")
        .await
        .expect("no index");
    let long = database.connect().await;
    long.batch_execute(&format!("BEGIN; {WRITE}"))
        .await
        .expect("a long transaction");
    let migration = start(plain(&database));
    let invalid = "SELECT EXISTS (SELECT FROM pg_index WHERE NOT indisvalid)";
    until(&client, invalid).await;
    let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                WHERE application_name LIKE 'outbox-relay/migrate/%' \
                AND datname = current_database()";
    assert_eq!(number(&client, kill).await, 1);
    let said = migration.await.expect("no panic");
    assert_eq!(said.exit, Exit::Unreachable, "{said:?}");
    long.batch_execute("COMMIT").await.expect("committed");

    let said = run(check(&database)).await;
    assert!(
        said.out
            .contains("index message_xid on outbox.message: invalid"),
        "{said:?}"
    );
    let said = run(plain(&database)).await;
    assert_eq!(said.exit, Exit::Done, "{said:?}");
    assert_eq!(run(check(&database)).await.exit, Exit::Done);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_on_the_table_is_asked_for_in_short_steps() {
    let (database, client) = outbox_with(MigrateArgs {
        wake: Some(Wake::None),
        ..MigrateArgs::default()
    })
    .await;
    let long = database.connect().await;
    long.batch_execute(&format!("BEGIN; {WRITE}"))
        .await
        .expect("a long transaction");
    let migration = start(MigrateArgs {
        wake: Some(Wake::Notify),
        ..plain(&database)
    });
    let asking = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted \
                  AND relation = 'outbox.message'::regclass)";
    let pause = "SELECT NOT EXISTS (SELECT FROM pg_locks WHERE NOT granted \
                 AND relation = 'outbox.message'::regclass)";
    client
        .batch_execute("SET lock_timeout = '5s'")
        .await
        .expect("a setting");
    for _ in 0..3 {
        until(&client, asking).await;
        client.batch_execute(WRITE).await.expect("others write on");
        until(&client, pause).await;
    }
    assert!(!migration.is_finished());
    long.batch_execute("COMMIT").await.expect("committed");
    let said = migration.await.expect("no panic");
    assert_eq!(said.exit, Exit::Done, "{said:?}");
    assert!(
        said.out.contains("the table is in use, trying again"),
        "{said:?}"
    );
    assert_eq!(number(&client, GATES).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_migration_waits_for_its_turn_without_holding_a_snapshot() {
    let (database, client) = outbox().await;
    let key = migrate_key("outbox");
    let lock = format!("SELECT pg_advisory_lock({key})");
    client
        .batch_execute(&lock)
        .await
        .expect("somebody else's turn");
    let migration = start(plain(&database));
    let trying = "SELECT EXISTS (SELECT FROM pg_stat_activity \
                  WHERE application_name LIKE 'outbox-relay/migrate/%' \
                  AND datname = current_database() AND state = 'idle' \
                  AND query LIKE '%pg_try_advisory_lock%' AND backend_xmin IS NULL)";
    until(&client, trying).await;
    assert!(!migration.is_finished());
    let unlock = format!("SELECT pg_advisory_unlock({key})");
    client.batch_execute(&unlock).await.expect("our turn");
    let said = migration.await.expect("no panic");
    assert_eq!(said.exit, Exit::Done, "{said:?}");
    assert!(
        said.out.contains("waiting for another migration"),
        "{said:?}"
    );
}
