//! The bare confirmed publisher: the relay's own client with nothing before it and nothing
//! behind it. Its messages are what the relay would make of rows.

use std::sync::Arc;

use outbox_relay::broker::{AmqpBroker, AmqpChannel, Broker, Channel, Link, Outcome};
use outbox_relay::config::{BrokerSection, BrokerTarget, Secret};
use outbox_relay::message::{Publication, RowId};
use tokio::task::JoinSet;

use crate::support::publication::publication;
use crate::{CHANNELS, IN_FLIGHT, KEYS, body, messages};

/// Publishes all messages over all channels and waits for every confirm.
pub async fn publish(url: &str) {
    let target = BrokerTarget::new(BrokerSection {
        url: vec![Secret::Value(url.to_owned().into())],
        ..BrokerSection::default()
    });
    let broker = AmqpBroker::new(move || target.resolve().map_err(|error| error.to_string()));
    let link = broker.connect().await.expect("a connection");
    let mut tasks = JoinSet::new();
    for number in 0..CHANNELS {
        let channel = link.open_channel().await.expect("a channel");
        tasks.spawn(publish_share(channel, number));
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic");
    }
    link.close().await;
}

async fn publish_share(mut channel: AmqpChannel, share: usize) {
    let mut left = (share..messages()).step_by(CHANNELS).map(message);
    let mut in_flight = 0;
    loop {
        let batch: Vec<_> = left
            .by_ref()
            .take(IN_FLIGHT / CHANNELS - in_flight)
            .collect();
        in_flight += batch.len();
        if in_flight == 0 {
            return;
        }
        if !batch.is_empty() {
            channel.publish(batch).await;
        }
        let judged = channel.judged().await.expect("the channel lives");
        in_flight -= judged.len();
        let confirmed = |(_, outcome): &(RowId, Outcome)| matches!(outcome, Outcome::Confirmed(_));
        assert!(judged.iter().all(confirmed));
    }
}

fn message(number: usize) -> Arc<Publication> {
    let id = i64::try_from(number).expect("small");
    let key = format!("customer-{}", number % KEYS);
    publication(id, "orders", &key, body(number))
}
