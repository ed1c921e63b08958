//! P9: the relay is a good guest of the application's database.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::support::proxy::{Fault, Proxy, Way};
use crate::support::scene::{AT_ONCE, Draft, QUEUE, Scene, port, through};

const SESSIONS: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'outbox-relay/%'";

#[tokio::test]
async fn it_has_two_sessions_that_say_whose_they_are() {
    let scene = Scene::new().await;
    let relay = scene.ready_relay().await;
    scene.write_many(500, 50).await;
    let mut most = 0;
    while scene.count("sent_at IS NULL").await > 0 {
        most = most.max(scene.ask::<i64>(SESSIONS).await);
    }
    assert_eq!(most, 2);
    let mut names: Vec<String> = scene
        .ask(
            "SELECT array_agg(application_name) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name LIKE 'outbox-relay/%'",
        )
        .await;
    names.sort();
    let pid = relay.pid().as_raw_nonzero();
    for (name, role) in names.iter().zip(["reader", "settler"]) {
        assert!(name.starts_with(&format!("outbox-relay/{role}/")), "{name}");
        assert!(name.ends_with(&format!(":{pid}")), "{name}");
    }
    relay.stop().await;
    scene.until(&format!("SELECT ({SESSIONS}) = 0")).await;
}

/// No lock and no snapshot is held while the broker takes its time.
#[tokio::test]
async fn it_holds_nothing_while_it_waits_for_the_broker() {
    let mut scene = Scene::new().await;
    let proxy = Proxy::start(port(&scene.vhost.url)).await;
    let url = through(&scene.vhost.url, &proxy);
    scene.set("BROKER__URL", &url);
    scene.set("RELAY__MAX_IN_FLIGHT", "100");
    let relay = scene.ready_relay().await;
    proxy.set_way(Way::ToClient, Fault::Stall);
    scene.write_many(300, 300).await;
    scene.queues.reaches(QUEUE, 100).await;
    let holding = "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND application_name LIKE 'outbox-relay/%'
           AND (backend_xid IS NOT NULL OR state LIKE 'idle in transaction%')";
    for _ in 0..20 {
        assert_eq!(scene.ask::<i64>(holding).await, 0);
    }
    // So that the application may even change the table.
    let start = Instant::now();
    scene
        .run("ALTER TABLE outbox.message ADD COLUMN tenant text")
        .await;
    scene.run("UPDATE outbox.message SET tenant = 'x'").await;
    scene
        .run("DELETE FROM outbox.message WHERE id % 2 = 0")
        .await;
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    proxy.set(Fault::None);
    scene.drained().await;
    relay.stop().await;
}

#[tokio::test]
async fn the_applications_inserts_do_not_wait_for_a_relay_that_is_frozen() {
    let scene = Scene::new().await;
    let relay = scene.ready_relay().await;
    scene.write_many(100, 10).await;
    relay.pause();
    let start = Instant::now();
    for _ in 0..100 {
        scene.write(&[Draft::to(QUEUE).of("k")]).await;
    }
    scene.run("VACUUM outbox.message").await;
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    relay.resume();
    scene.drained().await;
    relay.stop().await;
    scene.judge().await;
}

/// Idle it asks PostgreSQL about twice a second at the most, and takes next to no CPU.
#[tokio::test]
async fn idle_it_is_quiet() {
    let scene = Scene::new().await;
    let relay = scene.ready_relay().await;
    scene.flows(Draft::to(QUEUE)).await;
    // The last work is done with when the sessions' queries stop changing quickly.
    let statements = "SELECT sum(xact_commit + xact_rollback)::bigint FROM pg_stat_database
         WHERE datname = current_database()";
    sleep(Duration::from_secs(2)).await;
    let (before, cpu) = (scene.ask::<i64>(statements).await, cpu_seconds(&relay));
    let span = Duration::from_secs(5);
    sleep(span).await;
    let (after, cpu) = (
        scene.ask::<i64>(statements).await,
        cpu_seconds(&relay) - cpu,
    );
    let rate = (after - before) as f64 / span.as_secs_f64();
    assert!(rate <= 3.0, "{rate} transactions a second, ours included");
    assert!(
        cpu / span.as_secs_f64() < 0.05,
        "{cpu} s of CPU in {span:?}"
    );
    let start = Instant::now();
    scene.flows(Draft::to(QUEUE)).await;
    assert!(
        start.elapsed() < Duration::from_millis(900),
        "woken, not polled: {:?}",
        start.elapsed()
    );
    relay.stop().await;
}

fn cpu_seconds(relay: &crate::support::relay::Relay) -> f64 {
    let path = format!("/proc/{}/stat", relay.pid().as_raw_nonzero());
    let stat = std::fs::read_to_string(path).expect("it lives");
    let (_, fields) = stat.rsplit_once(')').expect("a name in parentheses");
    let ticks = fields.split_whitespace().skip(11).take(2);
    ticks
        .map(|t| t.parse::<f64>().expect("a number") / 100.0)
        .sum()
}

/// F47, a tenth of it: bodies of many times the budget pass through.
#[tokio::test]
async fn large_bodies_pass_within_the_memory_budget() {
    let mut scene = Scene::new().await;
    scene.set("RELAY__MAX_BUFFERED_BYTES", "8MiB");
    scene.set("RELAY__MAX_MESSAGE_SIZE", "4MiB");
    let relay = scene.ready_relay().await;
    let before = relay.resident();
    scene
        .run(
            "INSERT INTO outbox.message (routing_key, ordering_key, payload)
             SELECT 'q', 'k' || n, to_json(repeat('x', 2000000)) FROM generate_series(1, 60) AS n",
        )
        .await;
    let mut most = 0;
    while scene.count("sent_at IS NULL").await > 0 {
        most = most.max(relay.resident());
    }
    let grown = most.saturating_sub(before);
    assert!(grown < (8 + 40) << 20, "{grown} bytes more");
    relay.stop().await;
    let letters = scene.queues.take_all(QUEUE).await;
    assert_eq!(letters.len(), 60);
    assert!(letters.iter().all(|letter| letter.body.len() == 2_000_002));
}
