//! Starting while servers are away.

use crate::support::postgres::Postgres;
use crate::support::rabbit::Rabbit;
use crate::support::relay::Relay;
use crate::support::scene::{Scene, eventually};

/// F48: both servers are down at the start, then come back in this order.
async fn becomes_ready(database_first: bool) {
    let (mut postgres, mut rabbit) = tokio::join!(Postgres::start(), Rabbit::start());
    let database = postgres.create_database().await;
    let mut scene = Scene::on(database.url.clone(), rabbit.create_vhost().await).await;
    scene.write_many(50, 5).await;
    postgres.stop().await;
    rabbit.stop().await;

    let relay = scene.relay();
    relay.answers("/livez", 200).await;
    says(&relay, &["database", "broker"]).await;
    if database_first {
        postgres.start_again().await;
        says(&relay, &["broker"]).await;
        rabbit.start_again().await;
    } else {
        rabbit.start_again().await;
        says(&relay, &["database"]).await;
        postgres.start_again().await;
    }
    relay.ready().await;
    scene.client = database.connect().await;
    scene.queues = crate::support::queues::Queues::connect(&scene.vhost.url).await;
    scene.drained().await;
    relay.stop().await;
    assert_eq!(scene.judge().await.duplicates, 0);
}

/// Not ready, alive, and the page tells exactly which servers are missing, and why.
async fn says(relay: &Relay, missing: &[&str]) {
    eventually("/readyz names what is missing", async || {
        let (code, body) = relay.get("/readyz").await.expect("a page");
        let page: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        let as_said = ["database", "broker"].iter().all(|name| {
            let told = &page[name];
            let reason = told["reason"].as_str().expect("a reason");
            told["ok"] != missing.contains(name) && reason.is_empty() != missing.contains(name)
        });
        code == 503 && as_said
    })
    .await;
    relay.answers("/livez", 200).await;
    assert_eq!(relay.exit_status(), None);
}

#[tokio::test]
async fn started_without_servers_it_becomes_ready_when_the_database_comes_first() {
    becomes_ready(true).await;
}

#[tokio::test]
async fn started_without_servers_it_becomes_ready_when_the_broker_comes_first() {
    becomes_ready(false).await;
}
