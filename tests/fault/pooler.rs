//! F28: PgBouncer between the relay and its database.

use crate::support::pgbouncer::PgBouncer;
use crate::support::postgres;
use crate::support::rabbit;
use crate::support::relay::{Relay, run};
use crate::support::scene::{Draft, QUEUE, Scene, eventually, port, through_port};

async fn scene() -> Scene {
    let server = postgres::database().await;
    let url = server.url.clone();
    let mut scene = Scene::on(url, rabbit::vhost().await).await;
    scene.keep(server);
    scene
}

/// Lets relays of the scene go by way of a pooler; `None` where there is none to be had.
async fn pooled(scene: &mut Scene, mode: &str) -> Option<PgBouncer> {
    let pooler = PgBouncer::start(port(&scene.database), mode).await?;
    let url = through_port(&scene.database, pooler.port());
    scene.set("DATABASE__URL", &url);
    Some(pooler)
}

const WHY: &str = "a pooler in transaction mode is in the way";
const REMEDY: &str = "connect to PostgreSQL itself, or to a pool with pool_mode = session";

#[tokio::test]
async fn a_pooler_in_transaction_mode_is_refused_with_the_remedy_and_nothing_is_sent() {
    let mut scene = scene().await;
    let Some(_pooler) = pooled(&mut scene, "transaction").await else {
        return;
    };
    scene.write_many(10, 3).await;
    let relay = scene.relay();
    relay.printed(WHY).await;
    relay.printed(REMEDY).await;
    eventually("/readyz tells it, too", async || {
        let page = relay.get("/readyz").await;
        page.is_some_and(|(code, body)| code == 503 && body.contains(WHY) && body.contains(REMEDY))
    })
    .await;
    relay.stop().await;
    // Once more, as a command that somebody waits for.
    let once = ["run", "--until-empty", "--wait", "1s"];
    scene.set("HTTP__LISTEN", "127.0.0.1:0");
    let (status, output) = run(&scene.settings, &once).await;
    assert_eq!(status.code(), Some(78), "{output:?}");
    assert!(output.join("\n").contains(WHY), "{output:?}");
    let (status, output) = run(&scene.settings, &["check"]).await;
    assert_eq!(status.code(), Some(1));
    assert!(output.join("\n").contains(REMEDY), "{output:?}");
    assert_eq!(scene.count("sent_at IS NULL AND attempts = 0").await, 10);
    assert_eq!(scene.queues.length(QUEUE).await, 0);
    // Nothing of it stays behind in the pool's server processes.
    let locks = "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
         WHERE locktype = 'advisory' AND datname = current_database()";
    assert_eq!(scene.ask::<i64>(locks).await, 0);
}

#[tokio::test]
async fn a_pooler_in_session_mode_is_as_good_as_none() {
    let mut scene = scene().await;
    scene.set("RELAY__POLL_INTERVAL", "10m");
    let Some(_pooler) = pooled(&mut scene, "session").await else {
        return;
    };
    let relay: Relay = scene.ready_relay().await;
    scene.write_many(500, 50).await;
    scene.drained().await;
    // Woken through the pooler, too.
    for _ in 0..3 {
        scene.flows(Draft::to(QUEUE).of("k")).await;
    }
    relay.stop().await;
    scene.judge().await;
}
