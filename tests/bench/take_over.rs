//! How long rows wait when one of two relays is killed: from SIGKILL until everything written at
//! that moment, to all partitions, has been sent by the other.

use std::time::Duration;

use outbox_relay::runtime::Clock;

use crate::Scale;
use crate::figure::{Figure, Goal};
use crate::support::scene::Scene;

/// All partitions are owned by two relays with an equal share.
const SHARED: &str = "SELECT count(owner) = 256 AND count(DISTINCT owner) = 2
      AND (SELECT max(n) = min(n) FROM (SELECT count(*) AS n FROM outbox.lease GROUP BY owner) AS shares)
    FROM outbox.lease";
/// Beyond the lease.
const GRACE: f64 = 2.0;

/// Kills again and again.
pub async fn measure(scale: &Scale) -> Vec<Figure> {
    let lease = scale.span;
    let mut scene = Scene::new().await;
    scene.set("RELAY__LEASE", &format!("{}ms", lease.as_millis()));
    let mut relays = vec![scene.ready_relay().await, scene.ready_relay().await];
    let mut runs = Vec::new();
    for round in 1..=scale.rounds {
        scene.until(SHARED).await;
        let mut victim = relays.remove(0);
        victim.kill();
        let killed = Clock.now();
        scene.write_many(1000, 1000).await;
        scene.drained().await;
        let took = Clock.now().since(killed).as_secs_f64();
        eprintln!("take-over, round {round}: {took:.2} s");
        runs.push(took);
        relays.push(scene.ready_relay().await);
    }
    for relay in relays {
        relay.stop().await;
    }
    let worst = runs.iter().copied().fold(0.0, f64::max);
    vec![
        figure("median", lease, runs),
        figure("longest", lease, vec![worst]),
    ]
}

fn figure(which: &str, lease: Duration, runs: Vec<f64>) -> Figure {
    let seconds = lease.as_secs_f64();
    let what = format!("{which}; lease {seconds} s, at most {GRACE} s more");
    let limit = seconds + GRACE;
    Figure::new("take-over", what, "s", runs).goal(Goal::AtMost {
        must: limit,
        aim: limit,
    })
}
