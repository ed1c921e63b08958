//! Throughput of several relays on one outbox, beside that of one.

use outbox_relay::runtime::Clock;

use crate::Scale;
use crate::figure::Figure;
use crate::stage::{KEYS, QUEUE, SIZE, body, run, scene, server};
use crate::support::relay::Relay;
use crate::support::scene::Scene;
use crate::timeline::Timeline;

const RELAYS: [usize; 3] = [1, 2, 4];

/// Takes turns.
pub async fn measure(scale: &Scale) -> Vec<Figure> {
    let server = server(&[]).await;
    let scene = scene(&server).await;
    let rows = scale.rows.min(50_000);
    let mut rates = RELAYS.map(|_| Vec::new());
    for round in 0..scale.rounds {
        for turn in 0..RELAYS.len() {
            let place = (round + turn) % RELAYS.len();
            let rate = drain(&scene, RELAYS[place], rows).await;
            eprintln!(
                "replicas, round {}: {} send {rate:.0} rows/s",
                round + 1,
                RELAYS[place]
            );
            rates[place].push(rate);
        }
    }
    let [one, others @ ..] = &rates;
    let figure = |(relays, runs): (&usize, &Vec<f64>)| {
        let what = format!("{relays} relays ÷ one, on one machine");
        Figure::new("replicas", what, "rows/s", runs.clone()).beside(one)
    };
    RELAYS[1..].iter().zip(others).map(figure).collect()
}

/// Rows a second: all relays are up and have their shares when the rows are committed.
async fn drain(scene: &Scene, relays: usize, rows: i64) -> f64 {
    run(&scene.client, "TRUNCATE outbox.message").await;
    let mut all = Vec::new();
    for _ in 0..relays {
        let relay = scene.relay();
        relay.ready().await;
        all.push(relay);
    }
    let shared = format!(
        "SELECT count(owner) = 256 AND count(DISTINCT owner) = {relays}
           AND (SELECT max(n) - min(n) <= 1 FROM
             (SELECT count(*) AS n FROM outbox.lease GROUP BY owner) AS shares)
         FROM outbox.lease"
    );
    scene.until(&shared).await;
    let insert = format!(
        "INSERT INTO outbox.message (routing_key, ordering_key, payload)
         SELECT '{QUEUE}', 'customer-' || n % {KEYS}, '{}' FROM generate_series(1, {rows}) AS n",
        body(SIZE)
    );
    run(&scene.client, &insert).await;
    let begun = Clock.now();
    let looked_at: Vec<&Relay> = all.iter().collect();
    let took = Timeline::until(&looked_at, rows, begun).await.last();
    for relay in all {
        relay.stop().await;
    }
    rows as f64 / took
}
