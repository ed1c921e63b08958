//! The database is restarted, dies, is read-only, falls silent, or ends sessions.

use std::time::Duration;

use tokio::time::Instant;

use crate::soak;
use crate::support::checker::Report;
use crate::support::postgres::{Postgres, connect};
use crate::support::proxy::{Fault, Proxy};
use crate::support::rabbit;
use crate::support::relay::{Relay, Settings};
use crate::support::scene::{QUEUE, Scene, eventually, through};
use crate::support::writers::{Load, Writers};

const IN_FLIGHT: usize = 100;
/// What one loss of the database may repeat: what was confirmed and whose mark was lost, and
/// what was on its way meanwhile.
const REPEATED: usize = 2 * IN_FLIGHT;

/// A database of the test's own, and a relay under load.
struct Outage {
    postgres: Postgres,
    scene: Scene,
    relay: Relay,
    writers: Writers,
}

impl Outage {
    async fn prepare() -> Self {
        let postgres = Postgres::start().await;
        let database = postgres.create_database().await;
        let mut scene = Scene::on(database.url.clone(), rabbit::vhost().await).await;
        scene.set("RELAY__MAX_IN_FLIGHT", &IN_FLIGHT.to_string());
        let relay = scene.ready_relay().await;
        let mut writers = scene.writers(&Load::to(QUEUE));
        writers.write(200).await;
        Self {
            postgres,
            scene,
            relay,
            writers,
        }
    }

    async fn connect_again(&mut self) {
        self.scene.client = connect(&self.scene.database).await;
    }

    /// Waits until something written from now on has been sent.
    async fn flows(&mut self) {
        let now: i64 = self
            .scene
            .ask("SELECT coalesce(max(id), 0) FROM outbox.message")
            .await;
        self.writers.write(50).await;
        let sent = format!(
            "SELECT EXISTS (SELECT FROM outbox.message WHERE id > {now} AND sent_at IS NOT NULL)"
        );
        self.scene.until(&sent).await;
    }

    async fn finish(self) -> Report {
        self.writers.stop().await;
        finish(&self.scene, self.relay).await
    }
}

/// Lets everything come to its end and judges: an outage charges nothing.
async fn finish(scene: &Scene, relay: Relay) -> Report {
    scene.drained().await;
    assert_eq!(scene.count("attempts > 0 OR retry_at IS NOT NULL").await, 0);
    let sessions: i64 = scene.ask(SESSIONS).await;
    assert!(sessions <= 2, "{sessions} sessions");
    relay.stop().await;
    let report = scene.judge().await;
    println!("{report}");
    report
}

const SESSIONS: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE application_name LIKE 'outbox-relay/%' AND datname = current_database()";

/// F25: an administrator restarts it, then it is killed, under load.
#[tokio::test]
async fn a_database_that_is_restarted_or_killed_costs_nothing() {
    let mut outage = Outage::prepare().await;
    let rounds = soak(2, 20);
    for _ in 0..rounds {
        outage.postgres.restart().await;
        outage.connect_again().await;
        outage.flows().await;
        outage.postgres.kill();
        outage.relay.does_not_progress(&["unknown"]).await;
        outage.postgres.start_again().await;
        outage.connect_again().await;
        outage.flows().await;
        outage.relay.ready().await;
    }
    let loud = outage.relay.warnings();
    assert!(loud < 60 * rounds, "{loud} warnings");
    let report = outage.finish().await;
    assert!(report.duplicates <= 2 * rounds * REPEATED, "{report}");
}

/// F25.
#[tokio::test]
async fn terminated_backends_cost_nothing() {
    let mut scene = Scene::new().await;
    scene.set("RELAY__MAX_IN_FLIGHT", &IN_FLIGHT.to_string());
    let relay = scene.ready_relay().await;
    let mut writers = scene.writers(&Load::to(QUEUE));
    let rounds = soak(5, 100);
    for round in 0..rounds {
        writers.write(100).await;
        let role = ["reader", "settler", ""][round % 3];
        let pids = format!(
            "SELECT array_agg(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name LIKE 'outbox-relay/{role}%'"
        );
        let pids: Vec<i32> = scene.ask(&pids).await;
        let terminate = "SELECT count(pg_terminate_backend(pid)) FROM unnest($1::int[]) AS pid";
        scene
            .client
            .execute(terminate, &[&pids])
            .await
            .expect(terminate);
        let anew = format!(
            "SELECT count(*) = 2 AND NOT bool_or(pid = ANY ('{{{}}}')) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name LIKE 'outbox-relay/%'",
            pids.iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(",")
        );
        scene.until(&anew).await;
    }
    writers.stop().await;
    let report = finish(&scene, relay).await;
    assert!(report.duplicates <= rounds * REPEATED, "{report}");
}

/// F25: nothing is published that cannot be marked.
#[tokio::test]
async fn a_read_only_database_stops_publishing_and_says_so() {
    let mut outage = Outage::prepare().await;
    set_read_only(&outage, true).await;
    let relay = &outage.relay;
    eventually("/readyz tells that the database is read-only", async || {
        let page = relay.get("/readyz").await;
        page.is_some_and(|(code, body)| code == 503 && body.contains("read-only"))
    })
    .await;
    outage.relay.does_not_progress(&["unknown"]).await;
    nothing_is_published(&outage.scene).await;
    set_read_only(&outage, false).await;
    outage.relay.ready().await;
    outage.flows().await;
    let report = outage.finish().await;
    assert!(report.duplicates <= REPEATED, "{report}");
}

/// Changes the server's default and ends all sessions, as a fail-over does.
async fn set_read_only(outage: &Outage, read_only: bool) {
    let client = connect(&outage.scene.database).await;
    for sql in [
        "SET default_transaction_read_only = off",
        &format!("ALTER SYSTEM SET default_transaction_read_only = {read_only}"),
        "SELECT pg_reload_conf()",
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
         WHERE application_name LIKE 'outbox-relay/%'",
    ] {
        client.simple_query(sql).await.expect(sql);
    }
}

/// What was on its way arrives; then the queue stays as it is though rows are pending.
async fn nothing_is_published(scene: &Scene) {
    let mut length = scene.queues.length(QUEUE).await;
    let mut since = Instant::now();
    eventually("the queue stays as it is for two seconds", async || {
        let now = scene.queues.length(QUEUE).await;
        if now != length {
            (length, since) = (now, Instant::now());
        }
        since.elapsed() > Duration::from_secs(2)
    })
    .await;
}

/// F25: no RST, no answer; once under load and once while a poll waits.
#[tokio::test]
async fn a_database_that_falls_silent_is_noticed_and_nothing_is_published_meanwhile() {
    let mut scene = Scene::new().await;
    let proxy = Proxy::start(crate::support::scene::port(&scene.database)).await;
    scene.settings = Settings::new(&through(&scene.database, &proxy), &scene.vhost.url);
    scene.set("RELAY__MAX_IN_FLIGHT", &IN_FLIGHT.to_string());
    scene.set("DATABASE__STATEMENT_TIMEOUT", "1s");
    let relay = scene.ready_relay().await;
    for round in 0..2 {
        let idle = round == 1;
        if !idle {
            scene.write_many(2000, 2000).await;
            scene.queues.reaches(QUEUE, 300).await;
        }
        let silent = Instant::now();
        proxy.set(Fault::Swallow);
        relay.answers("/readyz", 503).await;
        assert!(
            silent.elapsed() < Duration::from_secs(15),
            "{:?}",
            silent.elapsed()
        );
        if idle {
            scene.write_many(500, 500).await;
        }
        nothing_is_published(&scene).await;
        assert!(
            scene.count("sent_at IS NULL").await > 0,
            "there would be something to send"
        );
        proxy.set(Fault::None);
        relay.ready().await;
        scene.drained().await;
    }
    let loud = relay.warnings();
    assert!(loud < 60, "{loud} warnings:\n{}", relay.output().join("\n"));
    // The sessions that fell silent still stand on the server's side.
    scene
        .run(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
              WHERE application_name LIKE 'outbox-relay/%' AND datname = current_database()",
        )
        .await;
    let report = finish(&scene, relay).await;
    assert!(report.duplicates <= 2 * REPEATED, "{report}");
}
