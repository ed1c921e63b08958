//! A broker whose answers come too late.

use std::time::Duration;

use crate::support::proxy::{Fault, Proxy, Way};
use crate::support::queues::Letter;
use crate::support::scene::{QUEUE, Scene, port, through};

/// F12.
#[tokio::test]
async fn confirms_beyond_the_timeout_misjudge_nothing() {
    let mut scene = Scene::new().await;
    let proxy = Proxy::start(port(&scene.vhost.url)).await;
    let url = through(&scene.vhost.url, &proxy);
    scene.set("BROKER__URL", &url);
    scene.set("BROKER__CONFIRM_TIMEOUT", "1s");
    scene.set("RELAY__MAX_IN_FLIGHT", "50");
    scene.set("RETRY__INITIAL", "200ms");
    scene.set("RETRY__MAX_DELAY", "1s");
    let relay = scene.ready_relay().await;
    proxy.set_way(Way::ToClient, Fault::Delay(Duration::from_millis(2500)));
    scene.write_many(200, 200).await;
    relay.printed("no confirm in time").await;
    // The first window, and then one that knocks.
    scene.queues.reaches(QUEUE, 51).await;
    assert_eq!(scene.count("attempts > 0").await, 0);
    proxy.set(Fault::None);
    scene.drained().await;
    relay.stop().await;
    assert_eq!(scene.quarantined().await, 0);
    let letters: Vec<Letter> = scene.collect(QUEUE).await;
    scene.ledger.report().assert_clean();
    // Sent again it is the same message.
    let mut by_id = std::collections::HashMap::new();
    for letter in &letters {
        let first = by_id.entry(letter.id).or_insert(letter);
        assert_eq!(*first, letter);
    }
    assert_eq!(by_id.len(), 200);
}
