//! What a relay costs that has nothing to do, and how large its program is.

use std::time::Duration;

use outbox_relay::runtime::Clock;

use crate::Scale;
use crate::figure::{Figure, Goal};
use crate::stage::{QUEUE, run, scene, server};
use crate::support::relay::{Relay, program};
use crate::support::scene::{Draft, Scene};

/// A relay measures its outbox twice a minute.
const AT_LEAST: Duration = Duration::from_secs(30);

/// A few starts, and one long rest.
pub async fn measure(scale: &Scale) -> Vec<Figure> {
    let server = server(&[("shared_preload_libraries", "pg_stat_statements")]).await;
    let scene = scene(&server).await;
    run(&scene.client, "CREATE EXTENSION pg_stat_statements").await;
    let mut starts = Vec::new();
    for _ in 0..scale.rounds {
        let begun = Clock.now();
        let relay = scene.relay();
        relay.ready().await;
        starts.push(1e3 * Clock.now().since(begun).as_secs_f64());
        relay.stop().await;
    }
    let (statements, cpu, resident) = rest(&scene, scale.span.max(AT_LEAST)).await;
    let size = std::fs::metadata(program()).expect("the program").len() as f64 / 1e6;
    eprintln!(
        "idle: {statements:.2} statements/s, {cpu:.3} % CPU, {resident:.1} MB; \
         program {size:.1} MB; ready after {starts:.0?} ms"
    );
    let most = |must, aim| Goal::AtMost { must, aim };
    vec![
        Figure::new("idle", "statements to PostgreSQL", "/s", vec![statements])
            .goal(most(2.0, 1.0)),
        Figure::new("idle", "CPU", "%", vec![cpu]).goal(most(0.5, 0.1)),
        Figure::new("idle", "resident memory", "MB", vec![resident]),
        Figure::new("start", "time to ready", "ms", starts),
        Figure::new("program", "size", "MB", vec![size]).goal(most(15.0, 10.0)),
    ]
}

/// Statements a second, CPU in per cent of a processor, and resident memory in MB.
async fn rest(scene: &Scene, span: Duration) -> (f64, f64, f64) {
    let relay = scene.ready_to_rest().await;
    run(&scene.client, "SELECT pg_stat_statements_reset()").await;
    let (begun, before) = (Clock.now(), cpu(&relay));
    // The span is what is measured.
    tokio::time::sleep(span).await;
    let (took, spent) = (Clock.now().since(begun).as_secs_f64(), cpu(&relay) - before);
    let statements: f64 = scene
        .ask(
            "SELECT coalesce(sum(calls), 0)::float8 FROM pg_stat_statements
             WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
               AND query NOT LIKE '%pg_stat_statements%'",
        )
        .await;
    let resident = relay.resident() as f64 / 1e6;
    relay.stop().await;
    (statements / took, 100.0 * spent / took, resident)
}

impl Scene {
    /// A relay that has sent a row and sleeps.
    async fn ready_to_rest(&self) -> Relay {
        let relay = self.relay();
        relay.ready().await;
        self.flows(Draft::to(QUEUE)).await;
        let key = outbox_relay::store::postgres::schema::wake_key("outbox", "message");
        let asleep = format!(
            "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1
             AND mode = 'ExclusiveLock' AND granted
             AND (classid::int8 << 32 | objid::int8) = {key}
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
        );
        self.until(&asleep).await;
        relay
    }
}

/// Seconds of processor time so far (proc_pid_schedstat: nanoseconds on a processor, per thread).
fn cpu(relay: &Relay) -> f64 {
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
