//! Several relays on one outbox: one publishes, the others stand by.

use std::time::Duration;

use tokio::time::Instant;

use crate::soak;
use crate::support::relay::Relay;
use crate::support::scene::{Draft, QUEUE, Scene};
use crate::support::writers::Load;

const IN_FLIGHT: usize = 100;
/// One window that was not confirmed, one that was confirmed and not yet marked.
const REPEATED: usize = 2 * IN_FLIGHT;

async fn scene() -> Scene {
    let mut scene = Scene::new().await;
    scene.set("RELAY__MAX_IN_FLIGHT", &IN_FLIGHT.to_string());
    scene
}

fn load() -> Load {
    // Little enough that nothing piles up: what is measured is the taking over.
    Load {
        rows: 4,
        pause: Duration::from_millis(15),
        ..Load::to(QUEUE)
    }
}

#[tokio::test]
async fn when_the_publishing_relay_is_killed_another_takes_over() {
    let scene = scene().await;
    let mut writers = scene.writers(&load());
    let mut active = scene.ready_relay().await;
    let mut kills = 0;
    for _ in 0..soak(4, 100) {
        let next = scene.relay();
        next.printed("standing by").await;
        next.ready().await;
        writers.write(300).await;
        active.kill();
        kills += 1;
        let start = Instant::now();
        next.printed("reading from the database").await;
        scene.flows(Draft::to(QUEUE)).await;
        assert!(
            start.elapsed() < Duration::from_secs(8),
            "{:?}",
            start.elapsed()
        );
        active = next;
    }
    writers.stop().await;
    scene.drained().await;
    active.stop().await;
    let report = scene.judge().await;
    println!("{report}");
    assert!(report.duplicates <= kills * REPEATED, "{report}");
}

/// A rolling restart: the old one drains while the new one waits for it.
#[tokio::test]
async fn a_rolling_restart_makes_no_duplicate_and_keeps_order() {
    let scene = scene().await;
    let mut writers = scene.writers(&load());
    let mut relays = vec![scene.ready_relay().await, scene.ready_relay().await];
    for _ in 0..soak(3, 100) {
        for place in 0..relays.len() {
            writers.write(300).await;
            let old: Relay = relays.remove(place);
            old.stop().await;
            relays.insert(place, scene.ready_relay().await);
        }
    }
    writers.stop().await;
    scene.drained().await;
    for relay in relays {
        relay.stop().await;
    }
    let report = scene.judge().await;
    println!("{report}");
    assert_eq!(report.duplicates, 0);
}
