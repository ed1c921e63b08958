//! A queue that takes messages and never confirms them, as a quorum queue without a majority
//! does, among queues that work.

use std::time::Duration;

use tokio::time::Instant;

use crate::soak;
use crate::support::postgres::database;
use crate::support::queues::repetitions;
use crate::support::rabbit::Rabbit;
use crate::support::scene::{Draft, QUEUE, Scene};

/// F17.
#[tokio::test]
async fn a_queue_that_never_confirms_stops_nobody() {
    let rabbit = Rabbit::start().await;
    let database = database().await;
    let mut scene = Scene::on(database.url.clone(), rabbit.create_vhost().await).await;
    scene.keep(database);
    scene.queues.quorum("dead").await;
    scene.set("BROKER__CONFIRM_TIMEOUT", "2s");
    scene.set("RELAY__MAX_IN_FLIGHT", "100");
    scene.set("RETRY__INITIAL", "500ms");
    scene.set("RETRY__MAX_DELAY", "5s");
    // The process that keeps the queue's log hears nothing any more.
    let log = format!("'{}_dead'", scene.vhost.name);
    rabbit.eval(&format!("sys:suspend({log})")).await;
    let to_dead = |n| Draft::to("dead").of(format!("dead-{n}"));
    scene
        .write(&(0..400).map(to_dead).collect::<Vec<_>>())
        .await;
    let relay = scene.ready_relay().await;
    // Long enough for several knocks at the dead queue, each with its silence.
    let start = Instant::now();
    let mut number = 0;
    while start.elapsed() < soak(Duration::from_secs(15), Duration::from_secs(120)) {
        number += 1;
        let key = format!("key-{number}");
        scene.flows(Draft::to(QUEUE).of(key)).await;
    }
    let letters = scene.queues.take_all(QUEUE).await;
    let repeated = repetitions(&letters);
    assert!(repeated < 20, "{repeated} of {number} were repeated");
    assert_eq!(scene.quarantined().await, 0);
    rabbit.eval(&format!("sys:resume({log})")).await;
    scene.drained().await;
    relay.stop().await;
}
