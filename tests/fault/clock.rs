//! F46: a relay whose machine's clock is wrong. What is due, and who is alive, the database's
//! clock decides.

use std::path::Path;

use tokio::time::Instant;

use crate::support::places::{Places, needed};
use crate::support::postgres::{Options, Postgres};
use crate::support::rabbit;
use crate::support::relay::Relay;
use crate::support::scene::{Draft, QUEUE, Scene};
use crate::support::writers::Load;

/// A relay that takes it to be an hour later; `None` where no clock can be faked.
fn an_hour_ahead(scene: &Scene) -> Option<Relay> {
    let library = needed("faketime", Places::known().faketime.as_ref())?;
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

/// Sets the clock of a server that was told to look here for it.
fn set_clock(file: &Path, offset: &str) {
    // At once, so that nobody reads half of it.
    let new = file.with_extension("new");
    std::fs::write(&new, offset).expect("a temporary file");
    std::fs::rename(&new, file).expect("a temporary file");
}

/// The database's clock goes an hour forward, and back again: nobody's lease ends by it, and no row
/// is sent twice or forgotten.
#[tokio::test]
async fn a_database_clock_that_is_set_ends_no_lease_and_hides_no_row() {
    let Some(library) = needed("faketime", Places::known().faketime.as_ref()) else {
        return;
    };
    let name = format!("outbox-relay-clock-{}", uuid::Uuid::new_v4());
    let file = std::env::temp_dir().join(name);
    set_clock(&file, "+0");
    let server = Postgres::start_with(Options {
        env: vec![
            ("LD_PRELOAD", library.clone()),
            ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
            ("FAKETIME_DISABLE_SHM", "1".to_owned()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ],
        ..Options::default()
    })
    .await;
    let database = server.create_database().await;
    let mut scene = Scene::on(database.url.clone(), rabbit::vhost().await).await;
    scene.set("RELAY__LEASE", "5s");
    let relays = [scene.ready_relay().await, scene.ready_relay().await];
    let shared = "SELECT count(DISTINCT owner) = 2 AND count(owner) = 256 FROM outbox.lease";
    scene.until(shared).await;
    let mut writers = scene.writers(&Load::to(QUEUE));
    for offset in ["+3600", "+0", "+3600", "+0"] {
        writers.write(300).await;
        set_clock(&file, offset);
        let seen = format!(
            "SELECT (extract(epoch FROM clock_timestamp()) > {}) = {}",
            "extract(epoch FROM (SELECT min(created_at) FROM outbox.message)) + 1800",
            offset == "+3600"
        );
        scene.until(&seen).await;
        writers.write(300).await;
    }
    writers.stop().await;
    scene.drained().await;
    for relay in relays {
        let told = relay.get("/metrics").await.expect("a page").1;
        assert!(told.contains("outbox_relay_leases_lost_total 0"), "{told}");
        relay.stop().await;
    }
    std::fs::remove_file(&file).expect("a temporary file");
    let report = scene.judge().await;
    println!("{report}");
    assert_eq!(report.duplicates, 0);
}
