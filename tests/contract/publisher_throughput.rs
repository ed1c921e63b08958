//! How fast the publisher is beside a bare one over the same client with the same window, and
//! what a message costs. A measurement, not a test: run it alone and optimised,
//! `cargo test --release --test contract throughput -- --ignored --nocapture`.

use std::sync::Arc;
use std::task::Poll;

use futures_util::stream::{FuturesUnordered, StreamExt};
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel as LapinChannel};
use outbox_relay::broker::{Broker, Channel, Link};
use outbox_relay::message::{Body, Publication};
use tokio::time::Instant;

use crate::on_rabbitmq::OnRabbitMq;
use crate::publisher::is_confirmed;
use crate::rows::{of, row};

const MESSAGES: i64 = 100_000;
const WINDOW: usize = 1000;
const BODY: usize = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn throughput_beside_a_bare_publisher() {
    let stage = OnRabbitMq::start().await;
    let mut quorum = FieldTable::default();
    let kind = AMQPValue::LongString("quorum".into());
    quorum.insert("x-queue-type".into(), kind);
    let durable = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    let declared = stage.admin.queue_declare("q".into(), durable, quorum);
    declared.await.expect("a queue");
    for round in 0..5 {
        let publications = publications();
        let begun = Measure::begin();
        ours(&stage, publications).await;
        println!("round {round}, ours: {}", begun.end());
        let begun = Measure::begin();
        bare(&stage).await;
        println!("round {round}, bare: {}", begun.end());
    }
}

struct Measure(Instant, f64);

impl Measure {
    fn begin() -> Self {
        Self(Instant::now(), cpu_seconds())
    }

    fn end(self) -> String {
        #[allow(clippy::cast_precision_loss, reason = "a small number")]
        let messages = MESSAGES as f64;
        let rate = messages / self.0.elapsed().as_secs_f64();
        let cpu = (cpu_seconds() - self.1) / messages * 1e6;
        format!("{rate:.0} messages/s, {cpu:.1} µs CPU each")
    }
}

/// User and system time of this process (proc(5), stat, fields 14 and 15).
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let (_, fields) = stat.rsplit_once(')').expect("a name in parentheses");
    let ticks = fields.split_whitespace().skip(11).take(2);
    ticks
        .map(|ticks| ticks.parse::<f64>().expect("a number") / 100.0)
        .sum()
}

fn publications() -> Vec<Arc<Publication>> {
    let one = |id| {
        let mut row = row(id, "", "q");
        row.payload = Body::Bytes(vec![b'x'; BODY].into());
        of(&row)
    };
    (0..MESSAGES).map(one).collect()
}

async fn ours(stage: &OnRabbitMq, publications: Vec<Arc<Publication>>) {
    let link = stage.broker.connect().await.expect("a connection");
    let mut channel = link.open_channel().await.expect("a channel");
    let mut publications = publications.into_iter();
    let (mut open, mut done) = (0, 0);
    while done < MESSAGES {
        let batch: Vec<_> = publications.by_ref().take(WINDOW - open).collect();
        open += batch.len();
        channel.publish(batch).await;
        let judged = channel.judged().await.expect("the channel stays open");
        assert!(judged.iter().all(|(_, outcome)| is_confirmed(outcome)));
        open -= judged.len();
        done += i64::try_from(judged.len()).expect("a small number");
    }
    link.close().await;
    purge(stage).await;
}

async fn bare(stage: &OnRabbitMq) {
    let channel = stage.connection.create_channel().await.expect("a channel");
    let select = channel.confirm_select(ConfirmSelectOptions::default());
    select.await.expect("confirm mode");
    let body = [b'x'; BODY];
    let mut in_flight = FuturesUnordered::new();
    let (mut next, mut done) = (0, 0);
    while done < MESSAGES {
        while in_flight.len() < WINDOW && next < MESSAGES {
            let mut publish = Box::pin(publish(&channel, next, &body));
            next += 1;
            match futures_util::poll!(&mut publish) {
                Poll::Pending => in_flight.push(publish),
                Poll::Ready(()) => done += 1,
            }
        }
        if in_flight.next().await.is_some() {
            done += 1;
        }
    }
    purge(stage).await;
}

/// The same properties as a row's.
async fn publish(channel: &LapinChannel, id: i64, body: &[u8]) {
    let text = |text: String| AMQPValue::LongString(text.into());
    let mut headers = FieldTable::default();
    headers.insert("tenant".into(), text("eu".to_owned()));
    headers.insert("x-outbox-id".into(), AMQPValue::LongLongInt(id));
    headers.insert("x-outbox-key".into(), text(format!("key-{}", id % 10)));
    let properties = BasicProperties::default()
        .with_delivery_mode(2)
        .with_message_id(format!("message-{id}").into())
        .with_type("OrderCreated".into())
        .with_content_type("application/json".into())
        .with_timestamp(1_700_000_000)
        .with_headers(headers);
    let mandatory = BasicPublishOptions {
        mandatory: true,
        immediate: false,
    };
    let published = channel.basic_publish("".into(), "q".into(), mandatory, body, properties);
    let confirm = published.await.expect("written").await;
    assert!(confirm.expect("confirmed").is_ack());
}

async fn purge(stage: &OnRabbitMq) {
    let purged = stage
        .admin
        .queue_purge("q".into(), QueuePurgeOptions::default());
    purged.await.expect("purged");
}
