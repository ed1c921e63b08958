//! The application's database changes under the relay: columns, and how it commits.

use crate::support::postgres::connect;
use crate::support::relay::{Settings, run};
use crate::support::scene::{Draft, QUEUE, Scene};

/// F29.
#[tokio::test]
async fn columns_may_be_added_and_retyped_while_it_runs() {
    let scene = Scene::new().await;
    let relay = scene.ready_relay().await;
    scene.flows(Draft::to(QUEUE)).await;
    for change in [
        "ALTER TABLE outbox.message ADD COLUMN tenant text",
        "ALTER TABLE outbox.message ALTER COLUMN type TYPE varchar(200)",
        "ALTER TABLE outbox.message DROP COLUMN tenant",
        "ALTER TABLE outbox.message ALTER COLUMN payload TYPE jsonb",
        "REINDEX TABLE outbox.message",
    ] {
        scene.run(change).await;
        scene.flows(Draft::to(QUEUE).of("k")).await;
    }
    assert_eq!(relay.exit_status(), None);
    relay.stop().await;
    scene.judge().await;
}

/// Without its column of marks a row that was sent looks like one that was not: nothing is read then.
#[tokio::test]
async fn while_the_column_of_marks_is_missing_nothing_is_sent_again() {
    let scene = Scene::new().await;
    scene.write_many(100, 10).await;
    let relay = scene.ready_relay().await;
    scene.drained().await;
    for _ in 0..3 {
        scene
            .run("ALTER TABLE outbox.message RENAME sent_at TO marked")
            .await;
        relay.answers("/readyz", 503).await;
        scene.write(&[Draft::to(QUEUE)]).await;
        relay.printed("it has no column sent_at").await;
        scene
            .run("ALTER TABLE outbox.message RENAME marked TO sent_at")
            .await;
        scene.drained().await;
        scene.flows(Draft::to(QUEUE)).await;
    }
    relay.stop().await;
    assert_eq!(scene.judge().await.duplicates, 0);
}

/// F32.
#[tokio::test]
async fn rows_of_a_two_phase_commit_are_sent() {
    let scene = Scene::new().await;
    let arguments = [
        "migrate",
        "--database-url",
        &scene.database,
        "--wake",
        "none",
    ];
    let (status, output) = run(&Settings::default(), &arguments).await;
    assert!(status.success(), "{}", output.join("\n"));
    let relay = scene.ready_relay().await;
    let client = connect(&scene.database).await;
    for round in 0..6 {
        // At first it is idle, then busy.
        if round >= 3 {
            scene.write_many(200, 50).await;
        }
        let prepare = format!(
            "BEGIN; INSERT INTO outbox.message (message_id, routing_key, payload)
             VALUES ('prepared-{round}', 'q', '{{}}'); PREPARE TRANSACTION 'p{round}-{}'",
            scene.vhost.name
        );
        client.batch_execute(&prepare).await.expect("prepared");
        scene.flows(Draft::to(QUEUE)).await;
        let end = if round % 2 == 0 { "COMMIT" } else { "ROLLBACK" };
        let end = format!("{end} PREPARED 'p{round}-{}'", scene.vhost.name);
        client.batch_execute(&end).await.expect("ended");
        let message_id = format!("prepared-{round}");
        if round % 2 == 0 {
            scene.ledger.committed(&message_id, None);
        } else {
            scene.ledger.rolled_back(&message_id);
        }
        scene.drained().await;
    }
    relay.stop().await;
    assert_eq!(scene.judge().await.duplicates, 0);
}

/// F24: as after a dump is restored into a fresh cluster, whose transaction ids are far behind.
#[tokio::test]
async fn rows_with_transaction_ids_ahead_of_the_server_s_are_sent_once() {
    let scene = Scene::new().await;
    scene.write_many(20, 5).await;
    let scheduled = "INSERT INTO outbox.message (routing_key, message_id, payload, available_at)
         VALUES ('q', 'later', '{}', now() + interval '1 day')";
    scene.run(scheduled).await;
    let ahead = "UPDATE outbox.message SET xid = (xid::text::bigint + 1000000000)::text::xid8";
    scene.run(ahead).await;
    let relay = scene.ready_relay().await;
    scene
        .until("SELECT count(*) = 1 FROM outbox.message WHERE sent_at IS NULL")
        .await;
    let behind = "SELECT bool_and(xid < pg_snapshot_xmax(pg_current_snapshot()))
         FROM outbox.message WHERE sent_at IS NULL";
    assert!(
        scene.ask::<bool>(behind).await,
        "what waits is not read at every poll"
    );
    scene
        .run("DELETE FROM outbox.message WHERE message_id = 'later'")
        .await;
    relay.stop().await;
    assert_eq!(scene.judge().await.duplicates, 0);
}

/// F26: limits that suit an application would end the relay's sessions; it has its own.
#[tokio::test]
async fn low_limits_of_the_database_do_not_stop_it() {
    let scene = Scene::new().await;
    let database: String = scene.ask("SELECT current_database()::text").await;
    for limit in [
        "statement_timeout = '20ms'",
        "lock_timeout = '1ms'",
        "idle_in_transaction_session_timeout = '1ms'",
    ] {
        scene
            .run(&format!("ALTER DATABASE {database} SET {limit}"))
            .await;
    }
    let relay = scene.ready_relay().await;
    for _ in 0..5 {
        scene.write_many(200, 20).await;
        scene.drained().await;
    }
    assert_eq!(relay.warnings(), 0, "{}", relay.output().join("\n"));
    relay.stop().await;
    assert_eq!(scene.judge().await.duplicates, 0);
}
