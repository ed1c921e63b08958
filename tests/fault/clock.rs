//! F46: a relay whose machine's clock is wrong. What is due, and who is alive, the database's
//! clock decides.

use tokio::time::Instant;

use crate::support::places::Places;
use crate::support::relay::Relay;
use crate::support::scene::{Draft, QUEUE, Scene};

/// A relay that takes it to be an hour later; `None` where no clock can be faked.
fn an_hour_ahead(scene: &Scene) -> Option<Relay> {
    let Some(library) = &Places::known().faketime else {
        println!("left out: no libfaketime on this machine");
        return None;
    };
    let settings = scene.settings.clone().with("LD_PRELOAD", library);
    Some(Relay::start(&settings.with("FAKETIME", "+1h")))
}

/// Is the time at which it says to have started ahead of the database's clock?
async fn is_ahead(scene: &Scene, relay: &Relay) -> bool {
    relay.printed("starting").await;
    let said = relay.output();
    let line = said.iter().find(|line| line.contains("starting"));
    let said = line.and_then(|line| line.split_whitespace().next());
    let ahead = format!(
        "SELECT '{}'::timestamptz > clock_timestamp() + interval '50 min'",
        said.expect("a time")
    );
    scene.ask(&ahead).await
}

#[tokio::test]
async fn a_relay_whose_clock_is_an_hour_ahead_sends_nothing_early_and_takes_nothing_over() {
    let mut scene = Scene::new().await;
    scene.set("RETRY__INITIAL", "30m");
    scene.set("RETRY__MAX_DELAY", "30m");
    let healthy = scene.ready_relay().await;
    let Some(ahead) = an_hour_ahead(&scene) else {
        return;
    };
    assert!(is_ahead(&scene, &ahead).await, "its clock was not changed");
    ahead.ready().await;
    ahead.printed("standing by").await;
    scene.flows(Draft::to(QUEUE).of("k")).await;
    // Both live by the database's clock, and the other one goes on publishing.
    scene
        .until(
            "SELECT count(*) = 2 FROM outbox.instance
             WHERE heartbeat_at BETWEEN clock_timestamp() - interval '1 min' AND clock_timestamp()",
        )
        .await;
    healthy.stop().await;

    let scheduled = "INSERT INTO outbox.message (routing_key, payload, available_at) VALUES
        ('q', '{}', clock_timestamp() + interval '30 min'),
        ('q', '{}', clock_timestamp() + interval '2 s')";
    scene.run(scheduled).await;
    scene.write(&[Draft::to("nowhere").of("waits")]).await;
    let begun = Instant::now();
    scene
        .until("SELECT count(*) = 2 FROM outbox.message WHERE sent_at IS NULL")
        .await;
    println!("the one of 2 s was sent after {:?}", begun.elapsed());
    scene
        .until("SELECT EXISTS (SELECT FROM outbox.message WHERE retry_at IS NOT NULL)")
        .await;
    for _ in 0..20 {
        scene.flows(Draft::to(QUEUE).of("k")).await;
    }
    let early = "sent_at IS NOT NULL AND available_at > sent_at
        OR retry_at < created_at + interval '20 min'";
    assert_eq!(scene.count(early).await, 0);
    let told = ahead.get("/metrics").await.expect("a page").1;
    let returned = "outbox_relay_publishes_total{exchange=\"(default)\",outcome=\"returned\"} 1";
    assert!(told.contains(returned), "tried once:\n{told}");
    ahead.stop().await;
}
