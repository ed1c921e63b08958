//! How fast one ordering key goes: of it one row is under way at a time, so that a row for each
//! confirm time is the most there can be. Beside a bare publisher that does the same.

use std::time::Duration;

use outbox_relay::broker::{Broker, Channel, Link};
use outbox_relay::runtime::Clock;

use crate::Scale;
use crate::figure::{Figure, Goal};
use crate::inside::Inside;
use crate::publication::publication;
use crate::stage::{QUEUE, SIZE, body, broker, run, server, store, target};
use crate::support::postgres::Postgres;
use crate::support::queues::Queues;
use crate::support::rabbit::{Vhost, vhost};
use crate::support::relay;

/// Takes turns.
pub async fn measure(scale: &Scale) -> Vec<Figure> {
    let server = server(&[]).await;
    let rows = scale.rows.min(2_000);
    let (mut bare, mut hot) = (Vec::new(), Vec::new());
    for round in 1..=scale.rounds {
        let vhost = vhost().await;
        Queues::connect(&vhost.url).await.quorum(QUEUE).await;
        let one_by_one = publish(&vhost, rows).await;
        let by_relay = drain(&server, &vhost, rows).await;
        eprintln!(
            "hot key, round {round}: bare {:.2} ms a confirm, relay {:.2} ms a row",
            each(one_by_one, rows),
            each(by_relay, rows)
        );
        bare.push(1e3 / each(one_by_one, rows));
        hot.push(1e3 / each(by_relay, rows));
    }
    let goal = Goal::AtLeast {
        must: 0.9,
        aim: 0.95,
    };
    let figure = Figure::new("hot key", "rows/s × bare confirm time", "rows/s", hot);
    vec![figure.beside(&bare).goal(goal)]
}

/// Milliseconds.
fn each(took: Duration, rows: i64) -> f64 {
    took.as_secs_f64() * 1e3 / rows as f64
}

async fn publish(vhost: &Vhost, rows: i64) -> Duration {
    let link = broker(&vhost.url).connect().await.expect("a connection");
    let mut channel = link.open_channel().await.expect("a channel");
    let publications: Vec<_> = (1..=rows).map(publication).collect();
    let begun = Clock.now();
    for publication in publications {
        channel.publish(vec![publication]).await;
        let judged = channel.judged().await.expect("the channel lives");
        assert_eq!(judged.len(), 1);
    }
    let took = Clock.now().since(begun);
    link.close().await;
    took
}

async fn drain(server: &Postgres, vhost: &Vhost, rows: i64) -> Duration {
    let database = server.create_database().await;
    relay::migrate(&database.url).await;
    let client = database.connect().await;
    let insert = format!(
        "INSERT INTO outbox.message (routing_key, ordering_key, payload)
         SELECT '{QUEUE}', 'customer-1', '{}' FROM generate_series(1, {rows})",
        body(SIZE)
    );
    run(&client, &insert).await;
    run(&client, "VACUUM ANALYZE outbox.message").await;
    let (store, broker) = (store(&database.url), broker(&vhost.url));
    let relay = Inside::start(store, broker, &target(&vhost.url));
    relay.until_confirmed(rows.unsigned_abs()).await;
    let took = relay.took();
    relay.stop().await;
    took
}
