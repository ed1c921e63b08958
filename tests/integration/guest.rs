//! P9: the relay is a good guest of the application's database.

use outbox_relay::store::postgres::schema::wake_key;
use tokio::time::Instant;

use crate::support::postgres::{Options, Postgres, connect};
use crate::support::proxy::{Fault, Proxy, Way};
use crate::support::rabbit;
use crate::support::relay::Relay;
use crate::support::scene::{Draft, QUEUE, Scene, eventually, port, through};

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
    scene
        .run("ALTER TABLE outbox.message ADD COLUMN tenant text")
        .await;
    scene.run("UPDATE outbox.message SET tenant = 'x'").await;
    scene
        .run("DELETE FROM outbox.message WHERE id % 2 = 0")
        .await;
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
    for _ in 0..100 {
        scene.write(&[Draft::to(QUEUE).of("k")]).await;
    }
    scene.run("VACUUM outbox.message").await;
    relay.resume();
    scene.drained().await;
    relay.stop().await;
    scene.judge().await;
}

#[tokio::test]
async fn it_opens_no_session_but_the_two_that_it_keeps() {
    let every_login = Options {
        settings: vec![("log_connections", "on".to_owned())],
        ..Options::default()
    };
    let server = Postgres::start_with(every_login).await;
    let database = server.create_database().await;
    let scene = Scene::on(database.url.clone(), rabbit::vhost().await).await;
    let logins = || {
        let log = server.log().into_iter();
        log.filter(|line| line.contains("connection authorized") && line.contains("outbox-relay/"))
            .count()
    };
    let before = logins();
    let relay = scene.ready_relay().await;
    scene.flows(Draft::to(QUEUE)).await;
    assert_eq!(logins() - before, 2, "{:?}", server.log());
    relay.stop().await;
}

/// Idle it asks PostgreSQL once for each poll and for little else (product: at most two statements
/// a second), and takes next to no CPU. Counted by the server's log, sessions of the relay only.
#[tokio::test]
async fn idle_it_is_quiet() {
    const POLLS: usize = 8;
    let every_statement = Options {
        settings: vec![("log_min_duration_statement", "0".to_owned())],
        ..Options::default()
    };
    let server = Postgres::start_with(every_statement).await;
    let database = server.create_database().await;
    let mut scene = Scene::on(database.url.clone(), rabbit::vhost().await).await;
    // As by default: each renewal is two statements.
    scene.set("RELAY__LEASE", "15s");
    let relay = scene.ready_relay().await;
    scene.flows(Draft::to(QUEUE)).await;
    eventually("it sleeps", async || asleep(&scene).await).await;
    let polled = |more: usize| {
        let (server, from) = (&server, polls(&server));
        async move { eventually("a poll", async || polls(server) >= from + more).await }
    };
    polled(1).await;
    let (begun, cpu, before) = (Instant::now(), cpu_seconds(&relay), said(&server).len());
    polled(POLLS).await;
    let (spent, span) = (cpu_seconds(&relay) - cpu, begun.elapsed());
    let said: Vec<String> = said(&server).split_off(before);
    let count = |wanted: fn(&str) -> bool| said.iter().filter(|line| wanted(line)).count();
    let (reads, measured, rounds) = (count(is_poll), count(measures), count(begins_to_measure));
    let told = format!(
        "{rounds} rounds of measuring, {span:?}:\n{}",
        said.join("\n")
    );
    // A slower machine polls later, not more often.
    assert!(reads as f64 <= span.as_secs_f64() + 1.0, "{told}");
    // Measurements come in one burst: once after the last work, then every half minute.
    assert!(rounds as f64 <= 2.0 + span.as_secs_f64() / 30.0, "{told}");
    let burst = measured as f64 / rounds.max(1) as f64;
    let steady = (said.len() - measured) as f64 / reads as f64 + burst / 30.0;
    assert!(steady <= 2.0, "{steady} statements a second; {told}");
    // Unoptimised and with the tests' load beside it: ten times of what is promised.
    assert!(
        spent / (reads as f64) < 0.05,
        "{spent} s of CPU for {reads} polls"
    );
    relay.stop().await;
}

/// Does the relay hold the gate's lock?
async fn asleep(scene: &Scene) -> bool {
    let key = wake_key("outbox", "message");
    let held = format!(
        "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1
         AND mode = 'ExclusiveLock' AND granted
         AND (classid::int8 << 32 | objid::int8) = {key}
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
    );
    scene.ask(&held).await
}

/// Statements of the relay that the server has finished, as its log has them.
fn said(server: &Postgres) -> Vec<String> {
    let log = server.log().into_iter();
    log.filter(|line| {
        line.contains(" outbox-relay/")
            && (line.contains(" execute ") || line.contains(" statement: "))
    })
    .map(|line| line.chars().take(250).collect())
    .collect()
}

fn is_poll(line: &str) -> bool {
    line.contains(": SELECT part, id, message_id")
}

/// Looks only, and on the settling session: it is for metrics.
fn measures(line: &str) -> bool {
    line.contains(" outbox-relay/settler/") && line.contains(": SELECT ")
        || line.contains(": WITH RECURSIVE class ")
}

fn begins_to_measure(line: &str) -> bool {
    measures(line) && line.contains(": SELECT (SELECT count(*) FROM (SELECT FROM ")
}

fn polls(server: &Postgres) -> usize {
    said(server).iter().filter(|line| is_poll(line)).count()
}

/// Processor time so far (proc_pid_schedstat: nanoseconds on a processor, per thread).
fn cpu_seconds(relay: &Relay) -> f64 {
    let threads = format!("/proc/{}/task", relay.pid().as_raw_nonzero());
    let threads = std::fs::read_dir(threads).expect("it lives");
    let spent = threads.map(|thread| {
        let path = thread.expect("a thread").path().join("schedstat");
        let line = std::fs::read_to_string(path).expect("it lives");
        let first = line.split_whitespace().next().expect("a number");
        first.parse::<f64>().expect("a number") / 1e9
    });
    spent.sum()
}

/// A scene on a server that counts statements.
async fn counted() -> (Postgres, Scene) {
    let server = Postgres::start_with(Options {
        settings: vec![
            ("shared_preload_libraries", "pg_stat_statements".to_owned()),
            ("pg_stat_statements.track_planning", "on".to_owned()),
        ],
        ..Options::default()
    })
    .await;
    let database = server.create_database().await;
    let scene = Scene::on(database.url.clone(), rabbit::vhost().await).await;
    scene.run("CREATE EXTENSION pg_stat_statements").await;
    (server, scene)
}

/// `calls` or `plans` of the statement that marks rows sent.
async fn marking(scene: &Scene, what: &str) -> i64 {
    let sql = format!(
        "SELECT sum({what})::bigint FROM pg_stat_statements
         WHERE query LIKE 'WITH known%SET sent_at%'"
    );
    scene.ask(&sql).await
}

/// Of a few rows the server would plan each settlement anew.
#[tokio::test]
async fn settlements_are_not_planned_again_and_again() {
    let (_server, scene) = counted().await;
    let relay = scene.ready_relay().await;
    for _ in 0..20 {
        scene.flows(Draft::to(QUEUE)).await;
    }
    relay.stop().await;
    assert_eq!(marking(&scene, "calls").await, 20);
    let plans = marking(&scene, "plans").await;
    assert!(plans <= 1, "{plans} plans");
}

/// Each wait for a row that somebody holds is an error in the server's log.
#[tokio::test]
async fn rows_that_somebody_holds_are_waited_for_now_and_then_only() {
    let (server, scene) = counted().await;
    let relay = scene.ready_relay().await;
    relay.pause();
    let row = scene.write(&[Draft::to(QUEUE).of("held")]).await[0];
    let holder = connect(&scene.database).await;
    let hold = format!("BEGIN; SELECT FROM outbox.message WHERE id = {row} FOR UPDATE");
    holder.batch_execute(&hold).await.expect("held");
    relay.resume();
    // Were the other waited for each time, only its trials would count here.
    let tried = "SELECT coalesce(sum(calls), 0)::bigint >= 20 FROM pg_stat_statements
         WHERE query LIKE 'WITH target%SET sent_at%'";
    while !scene.ask::<bool>(tried).await {
        scene.flows(Draft::to(QUEUE)).await;
    }
    holder.batch_execute("COMMIT").await.expect("let go");
    scene.drained().await;
    relay.stop().await;
    let log = server.log();
    let waits = log.iter().filter(|line| line.contains("lock timeout"));
    let waits = waits.count();
    assert!((1..=5).contains(&waits), "{waits} waits");
}

/// Each marking is a commit in the application's database.
#[tokio::test]
async fn rows_at_a_steady_rate_are_marked_together() {
    const ROWS: u32 = 1000;
    let (_server, scene) = counted().await;
    let relay = scene.ready_relay().await;
    let begun = Instant::now();
    // The pause makes a steady rate of it, so that the relay never has a backlog.
    let write = format!(
        "DO $$ BEGIN FOR n IN 1..{ROWS} LOOP
           INSERT INTO outbox.message (routing_key, payload) VALUES ('{QUEUE}', '{{}}');
           COMMIT;
           -- The load itself: nothing is waited for.
           PERFORM pg_sleep(0.001);
         END LOOP; END $$"
    );
    scene.run(&write).await;
    scene.drained().await;
    let span = begun.elapsed();
    relay.stop().await;
    let calls = marking(&scene, "calls").await;
    // One every 10 ms, whatever the machine, or one for each quarter of the window.
    let most = 2.0 + span.as_secs_f64() / 0.01 + f64::from(ROWS) / 250.0;
    println!("{calls} markings of {ROWS} rows in {span:?}, at most {most}");
    assert!(calls as f64 <= most, "{calls} in {span:?}");
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
