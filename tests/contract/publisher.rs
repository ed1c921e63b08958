//! What every publisher must do, run against RabbitMQ and against the broker in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use outbox_relay::broker::{Broker, Channel, ChannelLost, Link, LinkState, LossCause, Outcome};
use outbox_relay::message::{Body, Publication, RowId};
use tokio::time::timeout;

use crate::rows::{of, publication, row};
use crate::support::PATIENCE;

/// A broker and what tests need to set up around it.
pub trait Stage {
    /// The publisher under test.
    type Broker: Broker;

    fn broker(&self) -> &Self::Broker;
    async fn declare_exchange(&self, exchange: &str);
    async fn delete_exchange(&self, exchange: &str);
    async fn declare_queue(&self, queue: &str);
    /// A queue that nacks what goes beyond its length.
    async fn declare_limited_queue(&self, queue: &str, max_length: u32);
    async fn bind(&self, exchange: &str, routing_key: &str, queue: &str);
    /// How many messages the queue holds.
    async fn length(&self, queue: &str) -> usize;
    /// The broker ends all connections.
    async fn close_connections(&self);
}

type Judged = BTreeMap<RowId, Outcome>;

/// Waits until so many fates are certain.
pub async fn judged<C: Channel>(channel: &mut C, count: usize) -> Judged {
    let mut all = Judged::new();
    while all.len() < count {
        let judged = timeout(PATIENCE, channel.judged()).await;
        for (id, outcome) in judged.expect("in time").expect("the channel stays open") {
            assert!(all.insert(id, outcome).is_none(), "{id} reported twice");
        }
    }
    assert_eq!(all.len(), count);
    all
}

/// Waits until the channel is lost; also returns what was judged before.
pub async fn lost<C: Channel>(channel: &mut C) -> (Judged, ChannelLost) {
    let mut all = Judged::new();
    loop {
        match timeout(PATIENCE, channel.judged()).await.expect("in time") {
            Ok(judged) => all.extend(judged),
            Err(lost) => return (all, lost),
        }
    }
}

pub fn is_confirmed(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Confirmed(_))
}

pub fn ids(publications: &[Arc<Publication>]) -> Vec<RowId> {
    publications
        .iter()
        .map(|publication| publication.id())
        .collect()
}

async fn channel<S: Stage>(stage: &S) -> (<S::Broker as Broker>::Link, ChannelOf<S>) {
    let link = stage.broker().connect().await.expect("a connection");
    let channel = link.open_channel().await.expect("a channel");
    (link, channel)
}

type ChannelOf<S> = <<<S as Stage>::Broker as Broker>::Link as Link>::Channel;

pub async fn a_routed_message_is_confirmed<S: Stage>(stage: &S) {
    stage.declare_queue("q").await;
    stage.declare_exchange("orders").await;
    stage.bind("orders", "created", "q").await;
    let (_link, mut channel) = channel(stage).await;
    let batch = vec![publication(1, "orders", "created"), publication(2, "", "q")];
    channel.publish(batch).await;
    let judged = judged(&mut channel, 2).await;
    assert!(judged.values().all(is_confirmed), "{judged:?}");
    assert_eq!(stage.length("q").await, 2);
}

pub async fn exactly_the_unroutable_one_is_returned<S: Stage>(stage: &S) {
    const BATCH: i64 = 500;
    stage.declare_queue("q").await;
    let (_link, mut channel) = channel(stage).await;
    for round in 0..200 {
        let first = round * BATCH;
        let unroutable = first + (round * 37) % BATCH;
        let one_message_id = round % 2 == 1;
        let batch = (first..first + BATCH).map(|id| {
            let mut row = row(id, "", if id == unroutable { "nowhere" } else { "q" });
            if one_message_id {
                row.message_id = "the same".to_owned();
            }
            of(&row)
        });
        channel.publish(batch.collect()).await;
        for (id, outcome) in judged(&mut channel, 500).await {
            match outcome {
                Outcome::Confirmed(_) => assert_ne!(id.0, unroutable, "round {round}"),
                Outcome::Returned { code, text } => {
                    assert_eq!(id.0, unroutable, "round {round}");
                    assert_eq!((code, text.as_str()), (312, "NO_ROUTE"));
                }
                Outcome::Nacked => panic!("{id} nacked in round {round}"),
            }
        }
    }
    assert_eq!(stage.length("q").await, 200 * 499);
}

pub async fn without_mandatory_an_unroutable_message_is_confirmed<S: Stage>(stage: &S) {
    stage.declare_exchange("optional.metrics").await;
    let (_link, mut channel) = channel(stage).await;
    channel
        .publish(vec![publication(1, "optional.metrics", "cpu")])
        .await;
    let judged = judged(&mut channel, 1).await;
    assert!(judged.values().all(is_confirmed), "{judged:?}");
}

pub async fn what_a_full_queue_refuses_is_nacked<S: Stage>(stage: &S) {
    stage.declare_limited_queue("full", 10).await;
    stage.declare_queue("q").await;
    let (_link, mut channel) = channel(stage).await;
    let to = |id| if id % 2 == 0 { "full" } else { "q" };
    channel
        .publish((0..100).map(|id| publication(id, "", to(id))).collect())
        .await;
    let judged = judged(&mut channel, 100).await;
    let nacked = judged.values().filter(|o| **o == Outcome::Nacked).count();
    let good: Vec<_> = judged.iter().filter(|(id, _)| id.0 % 2 == 1).collect();
    assert!(good.iter().all(|(_, o)| is_confirmed(o)), "{good:?}");
    // A queue notices that it is full a little late.
    assert!((30..=40).contains(&nacked), "{nacked} nacked");
    assert_eq!(stage.length("full").await, 50 - nacked);
    assert_eq!(stage.length("q").await, 50);
}

pub async fn a_missing_exchange_costs_the_channel_and_nothing_else<S: Stage>(stage: &S) {
    stage.declare_queue("q").await;
    stage.declare_exchange("gone").await;
    stage.delete_exchange("gone").await;
    let (link, mut channel) = channel(stage).await;
    let mut batch: Vec<_> = (0..20).map(|id| publication(id, "", "q")).collect();
    batch.insert(7, publication(99, "gone", "q"));
    channel.publish(batch.clone()).await;
    let (judged, lost) = lost(&mut channel).await;
    let LossCause::Closed { code, text } = &lost.cause else {
        panic!("{:?}", lost.cause)
    };
    assert_eq!(*code, 404);
    assert!(text.contains("'gone'"), "{text}");
    assert!(judged.values().all(is_confirmed), "{judged:?}");
    let mut expected = ids(&batch);
    expected.retain(|id| !judged.contains_key(id));
    assert_eq!(lost.unknown, expected, "in the order of publishing");
    assert!(lost.unknown.contains(&RowId(99)));

    let mut channel = link.open_channel().await.expect("the connection is fine");
    channel.publish(vec![publication(100, "", "q")]).await;
    assert!(is_confirmed(
        &self::judged(&mut channel, 1).await[&RowId(100)]
    ));
}

pub async fn it_can_be_asked_whether_an_exchange_exists<S: Stage>(stage: &S) {
    let (link, mut channel) = channel(stage).await;
    let long = "x".repeat(300);
    for round in 0..3 {
        for exchange in ["there", "missing", &long] {
            let expected = exchange == "there" && round > 0;
            assert_eq!(
                link.exchange_exists(exchange).await.expect("an answer"),
                expected
            );
        }
        assert!(link.exchange_exists("").await.expect("an answer"));
        stage.declare_exchange("there").await;
    }
    stage.declare_queue("q").await;
    channel.publish(vec![publication(1, "", "q")]).await;
    assert!(is_confirmed(&judged(&mut channel, 1).await[&RowId(1)]));
}

pub async fn when_the_broker_closes_the_connection_everything_open_is_unknown<S: Stage>(stage: &S) {
    stage.declare_queue("q").await;
    let (link, mut busy) = channel(stage).await;
    let mut idle = link.open_channel().await.expect("a channel");
    let mut state = link.state();
    assert_eq!(*state.borrow(), LinkState::Open);
    let batch: Vec<_> = (0..50).map(|id| publication(id, "", "q")).collect();
    busy.publish(batch.clone()).await;
    stage.close_connections().await;
    for channel in [&mut busy, &mut idle] {
        let (judged, lost) = lost(channel).await;
        assert!(
            matches!(lost.cause, LossCause::Connection { .. }),
            "{lost:?}"
        );
        let reported = judged.len() + lost.unknown.len();
        assert!(reported == 50 || reported == 0, "{reported} reported");
        // Asked once more, it has nothing left to say.
        let (judged, again) = self::lost(channel).await;
        assert!(judged.is_empty() && again.unknown.is_empty());
    }
    let last = timeout(
        PATIENCE,
        state.wait_for(|s| matches!(s, LinkState::Lost(_))),
    )
    .await;
    last.expect("in time").expect("the last word is Lost");
    assert!(link.open_channel().await.is_err());
    assert!(link.exchange_exists("any").await.is_err());
}

pub async fn judging_is_cancel_safe<S: Stage>(stage: &S) {
    stage.declare_queue("q").await;
    let (_link, mut channel) = channel(stage).await;
    let mut seen = BTreeSet::new();
    for first in (0..2000).step_by(100) {
        let to = |id: i64| if id % 7 == 0 { "nowhere" } else { "q" };
        let batch = (first..first + 100).map(|id| publication(id, "", to(id)));
        channel.publish(batch.collect()).await;
        while seen.len() < usize::try_from(first).expect("positive") {
            // Most of these are dropped before they end.
            let Ok(judged) = timeout(Duration::from_micros(50), channel.judged()).await else {
                continue;
            };
            for (id, outcome) in judged.expect("the channel stays open") {
                assert!(seen.insert(id), "{id} reported twice");
                assert_eq!(is_confirmed(&outcome), id.0 % 7 != 0, "{id}");
            }
        }
    }
    while seen.len() < 2000 {
        for (id, _) in channel.judged().await.expect("the channel stays open") {
            assert!(seen.insert(id), "{id} reported twice");
        }
    }
}

pub async fn messages_arrive_in_the_order_of_publishing_whatever_their_size<S: Stage>(
    stage: &S,
) -> Vec<RowId> {
    stage.declare_queue("q").await;
    let (_link, mut channel) = channel(stage).await;
    let batch: Vec<_> = (0..120)
        .zip([0, 10, 400_000, 131_064, 131_065].into_iter().cycle())
        .map(|(id, size)| {
            let mut row = row(id, "", "q");
            row.payload = Body::Bytes(vec![b'x'; size].into());
            of(&row)
        })
        .collect();
    for part in batch.chunks(17) {
        channel.publish(part.to_vec()).await;
    }
    let judged = judged(&mut channel, 120).await;
    assert!(judged.values().all(is_confirmed), "{judged:?}");
    ids(&batch)
}

pub async fn closing_is_bounded_and_ends_the_channels<S: Stage>(stage: &S) {
    let (link, mut channel) = channel(stage).await;
    let state = link.state();
    timeout(PATIENCE, link.close()).await.expect("bounded");
    let (_, lost) = lost(&mut channel).await;
    assert!(
        matches!(lost.cause, LossCause::Connection { .. }),
        "{lost:?}"
    );
    let mut state = state;
    let last = timeout(
        PATIENCE,
        state.wait_for(|s| matches!(s, LinkState::Lost(_))),
    )
    .await;
    last.expect("in time").expect("the last word is Lost");
}

/// Runs the suite on a stage.
macro_rules! suite {
    ($($test:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test]
            async fn $test() {
                super::$test(&super::InMemory::default()).await;
            })*
        }

        mod rabbitmq {
            $(#[tokio::test]
            async fn $test() {
                super::$test(&crate::on_rabbitmq::OnRabbitMq::start().await).await;
            })*
        }
    };
}

suite!(
    a_routed_message_is_confirmed,
    exactly_the_unroutable_one_is_returned,
    without_mandatory_an_unroutable_message_is_confirmed,
    what_a_full_queue_refuses_is_nacked,
    a_missing_exchange_costs_the_channel_and_nothing_else,
    it_can_be_asked_whether_an_exchange_exists,
    when_the_broker_closes_the_connection_everything_open_is_unknown,
    judging_is_cancel_safe,
    closing_is_bounded_and_ends_the_channels,
);

/// The broker in memory.
#[derive(Default)]
pub struct InMemory(outbox_relay::broker::memory::MemoryBroker);

impl Stage for InMemory {
    type Broker = outbox_relay::broker::memory::MemoryBroker;

    fn broker(&self) -> &Self::Broker {
        &self.0
    }

    async fn declare_exchange(&self, exchange: &str) {
        self.0.declare_exchange(exchange);
    }

    async fn delete_exchange(&self, exchange: &str) {
        self.0.delete_exchange(exchange);
    }

    async fn declare_queue(&self, queue: &str) {
        self.0.declare_queue(queue);
    }

    async fn declare_limited_queue(&self, queue: &str, max_length: u32) {
        self.0.limit_queue(queue, usize::try_from(max_length).ok());
    }

    async fn bind(&self, exchange: &str, routing_key: &str, queue: &str) {
        self.0.bind(exchange, routing_key, queue);
    }

    async fn length(&self, queue: &str) -> usize {
        self.0.messages(queue).len()
    }

    async fn close_connections(&self) {
        self.0.cut("CONNECTION_FORCED - test");
    }
}

#[tokio::test]
async fn in_memory_messages_arrive_in_order() {
    let stage = InMemory::default();
    let sent = messages_arrive_in_the_order_of_publishing_whatever_their_size(&stage).await;
    assert_eq!(ids(&stage.0.messages("q")), sent);
}
