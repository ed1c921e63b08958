//! The broker dies, closes connections, freezes, falls silent, or is out of memory.

use std::time::Duration;

use tokio::time::Instant;

use crate::soak;
use crate::support::checker::Report;
use crate::support::postgres::database;
use crate::support::proxy::{Fault, Proxy};
use crate::support::queues::Queues;
use crate::support::rabbit::Rabbit;
use crate::support::relay::Relay;
use crate::support::scene::{Scene, eventually, port, through};
use crate::support::writers::{Load, Writers};

const IN_FLIGHT: usize = 100;
/// What one lost connection may repeat: what was published and not confirmed on it.
const REPEATED: usize = IN_FLIGHT;
/// The queue of these tests, which survives whatever happens to its broker.
const QUORUM: &str = "quorum";

/// A broker of the test's own, and a relay under load.
struct Outage {
    rabbit: Rabbit,
    scene: Scene,
    relay: Relay,
    writers: Writers,
}

impl Outage {
    async fn prepare(change: impl AsyncFnOnce(&mut Scene)) -> Self {
        let rabbit = Rabbit::start().await;
        let database = database().await;
        let mut scene = Scene::on(database.url.clone(), rabbit.create_vhost().await).await;
        scene.keep(database);
        scene.queues.quorum(QUORUM).await;
        rabbit.remember_queues().await;
        scene.set("RELAY__MAX_IN_FLIGHT", &IN_FLIGHT.to_string());
        change(&mut scene).await;
        let relay = scene.ready_relay().await;
        let mut writers = scene.writers(&Load::to(QUORUM));
        writers.write(200).await;
        Self {
            rabbit,
            scene,
            relay,
            writers,
        }
    }

    /// Writes on, and waits until something written from now on has been sent.
    async fn flows(&mut self) {
        let now: i64 = self
            .scene
            .ask("SELECT coalesce(max(id), 0) FROM outbox.message")
            .await;
        self.writers.write(100).await;
        let sent = format!(
            "SELECT EXISTS (SELECT FROM outbox.message WHERE id > {now} AND sent_at IS NOT NULL)"
        );
        self.scene.until(&sent).await;
    }

    /// Lets everything come to its end and judges: an outage charges nothing.
    async fn finish(self) -> Report {
        self.writers.stop().await;
        let mut scene = self.scene;
        scene.drained().await;
        assert_eq!(scene.count("attempts > 0 OR retry_at IS NOT NULL").await, 0);
        let quarantined: i64 = scene.ask("SELECT count(*) FROM outbox.quarantine").await;
        assert_eq!(quarantined, 0);
        scene.queues = Queues::connect(&scene.vhost.url).await;
        let rabbit = &self.rabbit;
        eventually(
            "the only connections are the relay's and ours",
            async || rabbit.connections().await == 2,
        )
        .await;
        self.relay.stop().await;
        scene.collect(QUORUM).await;
        let report = scene.ledger.report();
        println!("{report}");
        report.assert_clean();
        report
    }
}

/// F14.
#[tokio::test]
async fn a_broker_that_is_killed_and_started_again_costs_nothing() {
    let mut outage = Outage::prepare(async |_| {}).await;
    let kills = soak(2, 20);
    for _ in 0..kills {
        outage.rabbit.kill();
        outage.relay.answers("/readyz", 503).await;
        // The application does not notice. The relay may have sent all that it had read.
        outage.writers.write(300).await;
        let relay = &outage.relay;
        relay.does_not_progress(&["halted", "unknown"]).await;
        outage.rabbit.start_again().await;
        outage.relay.ready().await;
        outage.flows().await;
    }
    let loud = outage.relay.warnings();
    assert!(loud < 40 * kills, "{loud} warnings");
    let report = outage.finish().await;
    assert!(report.duplicates <= kills * REPEATED, "{report}");
}

/// F14.
#[tokio::test]
async fn connections_closed_by_the_broker_again_and_again_cost_nothing() {
    let mut outage = Outage::prepare(async |_| {}).await;
    let closes = soak(6, 100);
    for _ in 0..closes {
        outage.rabbit.close_all_connections().await;
        outage.flows().await;
    }
    let loud = outage.relay.warnings();
    assert!(loud < 20 * closes, "{loud} warnings");
    let report = outage.finish().await;
    assert!(report.duplicates <= closes * REPEATED, "{report}");
}

/// F15: neither answers nor resets come any more, on a connection under load.
#[tokio::test]
async fn a_broker_that_falls_silent_is_noticed_within_three_heartbeats() {
    let heartbeat = Duration::from_secs(2);
    let mut proxy = None;
    let mut outage = Outage::prepare(async |scene| {
        let to_broker = Proxy::start(port(&scene.vhost.url)).await;
        let url = through(&scene.vhost.url, &to_broker);
        scene.set("BROKER__URL", &url);
        scene.set("BROKER__HEARTBEAT", "2s");
        proxy = Some(to_broker);
    })
    .await;
    let proxy = proxy.expect("just put there");
    let silent = Instant::now();
    proxy.set(Fault::Swallow);
    outage.relay.answers("/readyz", 503).await;
    let noticed = silent.elapsed();
    assert!(
        noticed < heartbeat * 3 + Duration::from_secs(2),
        "{noticed:?}"
    );
    outage.writers.write(100).await;
    proxy.set(Fault::None);
    outage.relay.ready().await;
    outage.flows().await;
    // The broker has not given the swallowed connection up yet, or has.
    let rabbit = &outage.rabbit;
    eventually("the broker drops the dead connection", async || {
        rabbit.connections().await <= 2
    })
    .await;
    let report = outage.finish().await;
    assert!(report.duplicates <= REPEATED, "{report}");
}

/// Told to stop it ends within its grace period. Rows that were on their way when the broker
/// fell silent are in doubt, which its log says; it exits with 0 all the same.
async fn stops_within(relay: &Relay, grace: Duration) {
    let told = Instant::now();
    relay.terminate();
    let (status, took) = (relay.ended().await, told.elapsed());
    assert!(took < grace, "{took:?}");
    let output = relay.output().join("\n");
    assert!(status.success(), "{status}\n{output}");
}

/// F16: frozen while it works, and frozen while the relay connects.
#[tokio::test]
async fn a_frozen_broker_is_noticed_and_named_and_stops_no_shutdown() {
    let mut outage = Outage::prepare(async |scene| {
        scene.set("BROKER__HEARTBEAT", "2s");
        scene.set("BROKER__CONNECT_TIMEOUT", "1s");
        scene.set("RELAY__SHUTDOWN_GRACE", "10s");
    })
    .await;
    outage.rabbit.pause();
    outage.relay.printed("no connection to the broker").await;
    outage
        .relay
        .printed("no answer to AMQP handshake within 1 s")
        .await;
    outage.writers.write(100).await;
    stops_within(&outage.relay, Duration::from_secs(10)).await;
    // Started while it is frozen.
    outage.relay = outage.scene.relay();
    outage
        .relay
        .printed("no answer to AMQP handshake within 1 s")
        .await;
    outage.rabbit.resume();
    outage.relay.ready().await;
    outage.flows().await;
    let report = outage.finish().await;
    assert!(report.duplicates <= REPEATED, "{report}");
}

/// F13.
#[tokio::test]
async fn a_memory_alarm_is_reported_holds_everything_and_charges_nothing() {
    let mut outage = Outage::prepare(async |scene| scene.set("RELAY__SHUTDOWN_GRACE", "10s")).await;
    let before = outage.relay.resident();
    outage.rabbit.raise_memory_alarm().await;
    let relay = &outage.relay;
    eventually("/readyz tells that the broker blocks", async || {
        let page = relay.get("/readyz").await;
        page.is_some_and(|(code, body)| code == 503 && body.contains("\"blocked\""))
    })
    .await;
    outage.writers.write(soak(2000, 50_000)).await;
    let grown = outage.relay.resident().saturating_sub(before);
    assert!(grown < 20 << 20, "{grown} bytes more");
    outage.relay.does_not_progress(&["halted"]).await;
    outage.rabbit.clear_memory_alarm().await;
    outage.relay.ready().await;
    outage.flows().await;
    // Once more, and told to stop meanwhile.
    outage.rabbit.raise_memory_alarm().await;
    outage.relay.answers("/readyz", 503).await;
    stops_within(&outage.relay, Duration::from_secs(10)).await;
    outage.rabbit.clear_memory_alarm().await;
    outage.relay = outage.scene.ready_relay().await;
    outage.flows().await;
    let report = outage.finish().await;
    assert!(report.duplicates <= REPEATED, "only the stop: {report}");
}
