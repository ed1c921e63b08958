//! Exchanges and queues of a test, and what is in them.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicConsumeOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions,
    ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions,
    QueueDeleteOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use tokio::time::timeout;

use super::PATIENCE;

/// Says that everything published before it has been seen.
const LAST: &str = "the test's last message";

/// A message as it was delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// AMQP message-id.
    pub message_id: String,
    /// Header `x-outbox-id`.
    pub id: i64,
    /// Header `x-outbox-key`.
    pub key: Option<String>,
    /// Header `traceparent` (W3C Trace Context).
    pub traceparent: Option<String>,
    pub exchange: String,
    pub routing_key: String,
    pub body: Vec<u8>,
}

impl Letter {
    fn of(delivery: &Delivery) -> Self {
        let headers = delivery.properties.headers().clone().unwrap_or_default();
        let header = |name: &str| headers.inner().get(name);
        let Some(AMQPValue::LongLongInt(id)) = header("x-outbox-id") else {
            panic!("x-outbox-id is {:?}", header("x-outbox-id"))
        };
        let text = |name: &str| {
            header(name).map(|value| {
                let AMQPValue::LongString(text) = value else {
                    panic!("{name} is {value:?}")
                };
                text.to_string()
            })
        };
        let message_id = delivery.properties.message_id().as_ref();
        Self {
            message_id: message_id.map_or_else(String::new, ToString::to_string),
            id: *id,
            key: text("x-outbox-key"),
            traceparent: text("traceparent"),
            exchange: delivery.exchange.to_string(),
            routing_key: delivery.routing_key.to_string(),
            body: delivery.data.clone(),
        }
    }
}

/// A connection to a virtual host, for whoever sets it up and looks at it.
pub struct Queues {
    channel: Channel,
    _connection: Connection,
}

impl Queues {
    /// Connects.
    ///
    /// # Panics
    /// If the broker does not let us in.
    pub async fn connect(url: &str) -> Self {
        let opening = async {
            let connection = Connection::connect(url, ConnectionProperties::default()).await?;
            let channel = connection.create_channel().await?;
            let options = ConfirmSelectOptions::default();
            channel.confirm_select(options).await?;
            Ok::<_, lapin::Error>(Self {
                channel,
                _connection: connection,
            })
        };
        let opened = timeout(PATIENCE, opening).await.expect("in time");
        opened.expect("the broker lets us in")
    }

    /// A durable quorum queue.
    pub async fn quorum(&self, name: &str) {
        self.declare(name, &[("x-queue-type", text("quorum"))])
            .await;
    }

    /// The same with a dead-letter exchange.
    pub async fn quorum_with_dead_letters(&self, name: &str, exchange: &str) {
        let arguments = [
            ("x-queue-type", text("quorum")),
            ("x-dead-letter-exchange", text(exchange)),
        ];
        self.declare(name, &arguments).await;
    }

    /// A durable quorum queue that keeps so many messages and drops older ones, for whoever wants
    /// nothing of it but confirms.
    pub async fn rolling(&self, name: &str, length: u32) {
        let length = AMQPValue::LongLongInt(length.into());
        let arguments = [("x-queue-type", text("quorum")), ("x-max-length", length)];
        self.declare(name, &arguments).await;
    }

    /// A durable classic queue, which takes less to set up.
    pub async fn classic(&self, name: &str) {
        self.declare(name, &[]).await;
    }

    /// A durable classic queue that refuses what goes beyond its length.
    pub async fn limited(&self, name: &str, length: u32) {
        let length = AMQPValue::LongLongInt(length.into());
        let arguments = [
            ("x-max-length", length),
            ("x-overflow", text("reject-publish")),
        ];
        self.declare(name, &arguments).await;
    }

    async fn declare(&self, name: &str, arguments: &[(&str, AMQPValue)]) {
        let mut table = FieldTable::default();
        for (argument, value) in arguments {
            table.insert((*argument).into(), value.clone());
        }
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let declared = self.channel.queue_declare(name.into(), durable, table);
        declared.await.expect("the queue can be declared");
    }

    /// A durable topic exchange.
    pub async fn exchange(&self, name: &str) {
        self.topic_exchange(name, false).await;
    }

    /// One that takes messages from other exchanges only.
    pub async fn internal_exchange(&self, name: &str) {
        self.topic_exchange(name, true).await;
    }

    async fn topic_exchange(&self, name: &str, internal: bool) {
        let durable = ExchangeDeclareOptions {
            durable: true,
            internal,
            ..ExchangeDeclareOptions::default()
        };
        let (kind, none) = (ExchangeKind::Topic, FieldTable::default());
        let declared = self
            .channel
            .exchange_declare(name.into(), kind, durable, none);
        declared.await.expect("the exchange can be declared");
    }

    /// One that fails, and takes the publisher's connection with it, when a message has a header that
    /// is a list (<https://github.com/rabbitmq/rabbitmq-server/issues/2575>). Needs the plugin
    /// `rabbitmq_jms_topic_exchange`. The queue is bound to it by `routing_key`.
    pub async fn frail_exchange(&self, name: &str, queue: &str, routing_key: &str) {
        let durable = ExchangeDeclareOptions {
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        let kind = ExchangeKind::Custom("x-jms-topic".to_owned());
        let declared =
            self.channel
                .exchange_declare(name.into(), kind, durable, FieldTable::default());
        declared.await.expect("the exchange can be declared");
        let mut all = FieldTable::default();
        all.insert(
            "rjms_erlang_selector".into(),
            text("{'is_null', {'ident', <<\"list\">>}}."),
        );
        let options = QueueBindOptions::default();
        let bound =
            self.channel
                .queue_bind(queue.into(), name.into(), routing_key.into(), options, all);
        bound.await.expect("the binding can be made");
    }

    pub async fn delete_exchange(&self, name: &str) {
        let options = ExchangeDeleteOptions::default();
        let deleted = self.channel.exchange_delete(name.into(), options);
        deleted.await.expect("the exchange can be deleted");
    }

    pub async fn bind(&self, queue: &str, exchange: &str, routing_key: &str) {
        let bound = self.channel.queue_bind(
            queue.into(),
            exchange.into(),
            routing_key.into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        );
        bound.await.expect("the binding can be made");
    }

    pub async fn unbind(&self, queue: &str, exchange: &str, routing_key: &str) {
        let unbound = self.channel.queue_unbind(
            queue.into(),
            exchange.into(),
            routing_key.into(),
            FieldTable::default(),
        );
        unbound.await.expect("the binding can be removed");
    }

    pub async fn purge(&self, queue: &str) {
        let options = QueuePurgeOptions::default();
        let purged = self.channel.queue_purge(queue.into(), options);
        purged.await.expect("the queue can be purged");
    }

    pub async fn delete(&self, queue: &str) {
        let options = QueueDeleteOptions::default();
        let deleted = self.channel.queue_delete(queue.into(), options);
        deleted.await.expect("the queue can be deleted");
    }

    /// How many messages a classic queue holds. (That of a quorum queue is an estimate.)
    pub async fn length(&self, queue: &str) -> usize {
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let none = FieldTable::default();
        let found = self.channel.queue_declare(queue.into(), passive, none);
        let found = found.await.expect("the queue exists");
        usize::try_from(found.message_count()).expect("a small number")
    }

    /// Takes everything out of a queue, in order.
    ///
    /// # Panics
    /// If the queue does not give it.
    pub async fn take_all(&self, queue: &str) -> Vec<Letter> {
        let properties = BasicProperties::default().with_message_id(LAST.into());
        let options = BasicPublishOptions::default();
        let sent = self
            .channel
            .basic_publish("".into(), queue.into(), options, b"", properties)
            .await
            .expect("the broker is up");
        timeout(PATIENCE, sent)
            .await
            .expect("in time")
            .expect("confirmed");
        let unacked = BasicConsumeOptions {
            no_ack: true,
            ..BasicConsumeOptions::default()
        };
        let none = FieldTable::default();
        let mut deliveries = self
            .channel
            .basic_consume(queue.into(), "".into(), unacked, none)
            .await
            .expect("the queue exists");
        let mut letters = Vec::new();
        loop {
            let delivery = timeout(PATIENCE, deliveries.next()).await;
            let delivery = delivery
                .expect("in time")
                .expect("the consumer lives")
                .expect("a delivery");
            let id = delivery.properties.message_id().as_ref();
            if id.is_some_and(|id| id.as_str() == LAST) {
                break;
            }
            letters.push(Letter::of(&delivery));
        }
        let tag = deliveries.tag();
        let cancelled = self.channel.basic_cancel(tag, Default::default());
        cancelled.await.expect("the consumer can be cancelled");
        letters
    }

    /// Takes what is in a queue now, in order; also out of one that would refuse a last message.
    pub async fn take_ready(&self, queue: &str) -> Vec<Letter> {
        let unacked = BasicGetOptions { no_ack: true };
        let mut letters = Vec::new();
        loop {
            let got = self.channel.basic_get(queue.into(), unacked);
            let got = timeout(PATIENCE, got).await.expect("in time");
            let Some(message) = got.expect("the queue exists") else {
                return letters;
            };
            letters.push(Letter::of(&message.delivery));
        }
    }

    /// Waits until a classic queue holds at least so many messages.
    ///
    /// # Panics
    /// If it does not.
    pub async fn reaches(&self, queue: &str, count: usize) {
        let filling = async {
            while self.length(queue).await < count {
                // The broker is asked: it signals no length.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let reached = timeout(PATIENCE, filling).await;
        assert!(
            reached.is_ok(),
            "{queue} never held {count} messages, but {}",
            self.length(queue).await
        );
    }
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

/// The repetitions among letters: those whose row had been delivered before.
pub fn repetitions(letters: &[Letter]) -> usize {
    let mut seen = std::collections::HashSet::new();
    letters
        .iter()
        .filter(|letter| !seen.insert(letter.id))
        .count()
}

/// The ids of letters in the order of their first deliveries.
pub fn first_ids(letters: &[Letter]) -> VecDeque<i64> {
    let mut seen = std::collections::HashSet::new();
    letters
        .iter()
        .filter(|letter| seen.insert(letter.id))
        .map(|letter| letter.id)
        .collect()
}
