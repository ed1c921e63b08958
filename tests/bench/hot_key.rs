//! How fast one ordering key goes: of it one row is under way at a time, so that a row for each
//! confirm time is the most there can be. Beside a bare publisher that does the same, and beside
//! the time in which a row was under way. PostgreSQL does not flush, or it would be measured how
//! broker and database share a disk.

use std::time::Duration;

use outbox_relay::broker::{AmqpBroker, AmqpChannel, AmqpLink, Broker, Channel, Link};
use outbox_relay::runtime::Clock;
use tokio_postgres::Client;

use crate::Scale;
use crate::figure::{Figure, Goal};
use crate::inside::{Inside, Thread};
use crate::stage::{QUEUE, SIZE, body, broker, run, store, target};
use crate::support::postgres::Postgres;
use crate::support::publication::publication;
use crate::support::queues::Queues;
use crate::support::rabbit::vhost;
use crate::support::relay;

/// Rows of a stretch; a round is several of each kind in turn.
const STRETCH: i64 = 200;
const STRETCHES: usize = 5;

/// Takes turns.
pub async fn measure(scale: &Scale) -> Vec<Figure> {
    let (server, vhost) = (Postgres::start().await, vhost().await);
    Queues::connect(&vhost.url).await.quorum(QUEUE).await;
    let database = server.create_database().await;
    relay::migrate(&database.url).await;
    let client = database.connect().await;
    let mut publisher = Publisher::start(broker(&vhost.url)).await;
    let (store, broker) = (store(&database.url), broker(&vhost.url));
    let relay = Inside::start(store, broker, &target(&vhost.url));
    relay.ready().await;
    drain(&relay, &client).await;
    let (mut bare, mut hot, mut busy, mut all) = (vec![], vec![], vec![], vec![]);
    for round in 1..=scale.rounds {
        let [mut one_by_one, mut by_relay, mut under_way] = [Duration::ZERO; 3];
        for _ in 0..STRETCHES {
            one_by_one += publisher.publish().await;
            by_relay += drain(&relay, &client).await;
            under_way += relay.under_way();
        }
        busy.push(under_way.as_secs_f64());
        all.push(by_relay.as_secs_f64());
        let rate = |took: Duration| {
            let rows = STRETCH * i64::try_from(STRETCHES).expect("few");
            rows as f64 / took.as_secs_f64()
        };
        bare.push(rate(one_by_one));
        hot.push(rate(by_relay));
        eprintln!(
            "hot key, round {round}: bare publisher {:.0} confirms/s, relay {:.0} rows/s",
            bare[round - 1],
            hot[round - 1]
        );
    }
    relay.stop().await;
    publisher.stop().await;
    let goal = Goal::AtLeast {
        must: 0.9,
        aim: 0.95,
    };
    let figure = Figure::new("hot key", "rows/s × bare confirm time", "rows/s", hot);
    let share = "time with a row under way ÷ all the time";
    vec![
        figure.beside(&bare).goal(goal),
        Figure::new("hot key", share, "s", busy).beside(&all),
    ]
}

/// A bare publisher, on a thread such as the relay's.
struct Publisher {
    thread: Thread,
    link: AmqpLink,
    /// Lent to the thread now and then.
    channel: Option<AmqpChannel>,
}

impl Publisher {
    async fn start(broker: AmqpBroker) -> Self {
        let thread = Thread::start();
        let opened = thread.spawn(async move {
            let link = broker.connect().await.expect("a connection");
            let channel = link.open_channel().await.expect("a channel");
            (link, channel)
        });
        let (link, channel) = opened.await.expect("no panic");
        Self {
            thread,
            link,
            channel: Some(channel),
        }
    }

    async fn publish(&mut self) -> Duration {
        let channel = self.channel.take().expect("given back");
        let published = self.thread.spawn(publish(channel)).await;
        let (took, channel) = published.expect("no panic");
        self.channel = Some(channel);
        took
    }

    async fn stop(self) {
        self.link.close().await;
    }
}

/// One after the other, each when the one before is confirmed.
async fn publish(mut channel: AmqpChannel) -> (Duration, AmqpChannel) {
    let publications: Vec<_> = (1..=STRETCH)
        .map(|number| publication(number, QUEUE, "customer-1", body(SIZE)))
        .collect();
    let begun = Clock.now();
    for publication in publications {
        channel.publish(vec![publication]).await;
        let judged = channel.judged().await.expect("the channel lives");
        assert_eq!(judged.len(), 1);
    }
    (Clock.now().since(begun), channel)
}

/// From the read that finds them to the last confirm.
async fn drain(relay: &Inside, client: &Client) -> Duration {
    relay.begin_anew();
    let insert = format!(
        "INSERT INTO outbox.message (routing_key, ordering_key, payload)
         SELECT '{QUEUE}', 'customer-1', '{}' FROM generate_series(1, {STRETCH})",
        body(SIZE)
    );
    let goal = relay.confirmed() + STRETCH.unsigned_abs();
    run(client, &insert).await;
    relay.until_confirmed(goal).await;
    relay.took()
}
