//! F31: retention deletes, marking and an application's storm of inserts, at once.

use std::time::Duration;

use outbox_relay::relay::rules::SWEEP_ROWS;
use tokio::sync::watch;
use tokio_postgres::Client;

use crate::soak;
use crate::support::postgres::{Options, Postgres};
use crate::support::rabbit::vhost;
use crate::support::scene::{QUEUE, Scene};
use crate::support::writers::Load;

/// Locks rows as no careful application would: high before low, while the relay goes upwards.
async fn meddle(client: Client, stop: watch::Receiver<bool>) -> u32 {
    let mut transactions = 0;
    while !*stop.borrow() {
        for sql in [
            "BEGIN",
            "SELECT FROM outbox.message WHERE id IN
               (SELECT id FROM outbox.message ORDER BY id DESC LIMIT 20) ORDER BY id DESC FOR UPDATE",
            "SELECT FROM outbox.message WHERE id IN
               (SELECT id FROM outbox.message ORDER BY id LIMIT 20) ORDER BY id DESC FOR UPDATE",
            "COMMIT",
        ] {
            let done = client.batch_execute(sql).await;
            done.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        }
        transactions += 1;
    }
    transactions
}

#[tokio::test]
async fn retention_marking_and_a_storm_of_inserts_do_not_get_in_each_others_way() {
    let settings = vec![
        ("shared_preload_libraries", "pg_stat_statements".to_owned()),
        // Whoever waits for another for longer is noticed.
        ("lock_timeout", "5s".to_owned()),
        ("deadlock_timeout", "20ms".to_owned()),
    ];
    let server = Postgres::start_with(Options {
        settings,
        ..Options::default()
    })
    .await;
    let database = server.create_database().await;
    let scene = Scene::on(database.url.clone(), vhost().await).await;
    let old: i64 = soak(40_000, 1_000_000);
    scene
        .run(&format!(
            "CREATE EXTENSION pg_stat_statements;
             INSERT INTO outbox.message (routing_key, payload, sent_at)
             SELECT 'q', '{{}}', now() - interval '8 days' FROM generate_series(1, {old})"
        ))
        .await;
    let mut writers = scene.writers(&Load {
        writers: 8,
        pause: Duration::ZERO,
        ..Load::to(QUEUE)
    });
    let (stop, stopped) = watch::channel(false);
    let meddler = tokio::spawn(meddle(scene.second_client().await, stopped));
    let relay = scene.ready_relay().await;
    writers.write(soak(5_000, 100_000)).await;
    scene
        // What is locked when the walk passes stays until a later one.
        .until(
            "SELECT count(*) <= 20 FROM outbox.message WHERE sent_at < now() - interval '7 days'",
        )
        .await;
    stop.send_replace(true);
    assert!(meddler.await.expect("no error was met") > 10);
    writers.stop().await;
    scene.drained().await;
    relay.stop().await;
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(scene.ask::<i64>(deadlocks).await, 0);
    let statements = "SELECT calls FROM pg_stat_statements WHERE query LIKE 'WITH cutoff%'";
    let sweeps: i64 = scene.ask(statements).await;
    assert!(sweeps >= old / SWEEP_ROWS as i64, "{sweeps} sweeps");
    scene.judge().await;
}
