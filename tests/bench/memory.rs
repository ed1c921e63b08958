//! The most memory a relay takes: with a backlog of small rows, and with bodies of many times its
//! budget.

use outbox_relay::runtime::Clock;

use crate::Scale;
use crate::figure::{Figure, Goal};
use crate::stage::{QUEUE, fill, run, scene, server};
use crate::support::postgres::Postgres;
use crate::timeline::Timeline;

/// Bytes of a small row's payload.
const SMALL: i64 = 1_000;
/// Bytes of a large one's, and how many of them there are.
const LARGE: i64 = 10_000_000;
const LARGE_ROWS: i64 = 50;
/// The default of `relay.max_buffered_bytes`, in MB.
const BUDGET: f64 = 64.0 * 1024.0 * 1024.0 / 1e6;

/// One run of each: a peak needs no median.
pub async fn measure(scale: &Scale) -> Vec<Figure> {
    let server = server(&[]).await;
    let (rows, large) = (scale.rows, LARGE_ROWS.min(scale.rows / 100));
    let small = peak(&server, rows, SMALL).await;
    let huge = peak(&server, large, LARGE).await;
    let figure = |what: String, peak, goal| {
        eprintln!("memory, {what}: {peak:.1} MB");
        Figure::new("peak memory", what, "MB", vec![peak]).goal(goal)
    };
    vec![
        figure(
            format!("{rows} pending of 1 KB"),
            small,
            Goal::AtMost {
                must: 40.0,
                aim: 25.0,
            },
        ),
        figure(
            format!("{large} pending of 10 MB, budget 64 MiB"),
            huge,
            Goal::AtMost {
                must: BUDGET + 40.0,
                aim: BUDGET + 25.0,
            },
        ),
    ]
}

/// In MB, while it drains so many rows of that size.
async fn peak(server: &Postgres, rows: i64, size: i64) -> f64 {
    let scene = scene(server).await;
    if size == LARGE {
        // The broker is to hold only a few.
        scene.queues.delete(QUEUE).await;
        scene.queues.rolling(QUEUE, 3).await;
        let insert = format!(
            "INSERT INTO outbox.message (routing_key, ordering_key, payload)
             SELECT '{QUEUE}', 'k' || n, to_json(repeat('x', {size})) FROM generate_series(1, {rows}) AS n"
        );
        run(&scene.client, &insert).await;
    } else {
        fill(&scene.client, "outbox.message", rows, size).await;
    }
    run(&scene.client, "VACUUM ANALYZE outbox.message").await;
    let relay = scene.relay();
    Timeline::until(&[&relay], rows, Clock.now()).await;
    scene.drained().await;
    let peak = relay.peak() as f64 / 1e6;
    relay.stop().await;
    peak
}
