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
