//! A relay that is started with a backlog: when its first row is confirmed, beside one that finds
//! a small backlog, and when it goes at full speed.

use outbox_relay::runtime::Clock;

use crate::Scale;
use crate::figure::Figure;
use crate::stage::{SIZE, fill, run, scene, server};
use crate::support::scene::Scene;
use crate::timeline::Timeline;

/// Rows of a small backlog.
const FEW: i64 = 1_000;
/// The part of a large one that a run takes away.
const PART: i64 = 10;

/// Takes turns.
pub async fn measure(scale: &Scale) -> Vec<Figure> {
    let server = server(&[]).await;
    let (small, large) = (scene(&server).await, scene(&server).await);
    // Runs take a part of it each.
    let rows = scale.rows;
    fill(&large.client, "outbox.message", rows, SIZE).await;
    run(&large.client, "VACUUM ANALYZE outbox.message").await;
    let (mut few, mut many, mut full) = (vec![], vec![], vec![]);
    for round in 1..=scale.rounds {
        fill(&small.client, "outbox.message", FEW, SIZE).await;
        few.push(1e3 * start(&small, FEW).await.first());
        let part = (rows / PART).min(rows / i64::try_from(scale.rounds).expect("few"));
        let timeline = start(&large, part).await;
        many.push(1e3 * timeline.first());
        full.push(1e3 * timeline.full_speed());
        eprintln!(
            "restart, round {round}: first confirm after {:.0} ms, with {FEW} pending {:.0} ms; \
             full speed after {:.0} ms",
            many[round - 1],
            few[round - 1],
            full[round - 1],
        );
    }
    let first = format!("first confirm, {rows} pending ÷ {FEW} pending");
    let speed = format!("full speed, {rows} pending ÷ their first confirm");
    vec![
        Figure::new("restart", first, "ms", many.clone()).beside(&few),
        Figure::new("restart", speed, "ms", full).beside(&many),
    ]
}

/// Starts a relay and lets it send so many rows, or a few more.
async fn start(scene: &Scene, rows: i64) -> Timeline {
    let begun = Clock.now();
    let relay = scene.relay();
    let timeline = Timeline::until(&[&relay], rows, begun).await;
    relay.stop().await;
    timeline
}
