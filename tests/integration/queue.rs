//! Queues of a test's virtual host, and what arrives in them.

use futures_util::StreamExt;
use lapin::options::{
    BasicConsumeOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, Consumer, ExchangeKind};

use crate::support::PATIENCE;

/// One queue and its only consumer. Deliveries are acked at once.
pub struct Queue {
    consumer: Consumer,
    _channel: Channel,
    _connection: Connection,
}

impl Queue {
    /// Declares the queue, and, unless the exchange is the default one, a fanout exchange bound
    /// to it; then consumes.
    pub async fn behind(url: &str, exchange: &str, queue: &str) -> Self {
        let connection = Connection::connect(url, ConnectionProperties::default());
        let connection = connection.await.expect("a connection");
        let channel = connection.create_channel().await.expect("a channel");
        channel
            .queue_declare(
                queue.into(),
                QueueDeclareOptions::default(),
                FieldTable::default(),
            )
            .await
            .expect("a queue");
        if !exchange.is_empty() {
            channel
                .exchange_declare(
                    exchange.into(),
                    ExchangeKind::Fanout,
                    ExchangeDeclareOptions::default(),
                    FieldTable::default(),
                )
                .await
                .expect("an exchange");
            channel
                .queue_bind(
                    queue.into(),
                    exchange.into(),
                    "".into(),
                    QueueBindOptions::default(),
                    FieldTable::default(),
                )
                .await
                .expect("a binding");
        }
        let options = BasicConsumeOptions {
            no_ack: true,
            ..BasicConsumeOptions::default()
        };
        let consumer = channel
            .basic_consume(queue.into(), "".into(), options, FieldTable::default())
            .await
            .expect("a consumer");
        Self {
            consumer,
            _channel: channel,
            _connection: connection,
        }
    }

    /// The outbox's id of the next delivery, and its message_id.
    pub async fn next(&mut self) -> (i64, String) {
        let delivery = tokio::time::timeout(PATIENCE, self.consumer.next()).await;
        let delivery = delivery
            .expect("a delivery in time")
            .expect("the channel stays")
            .expect("a delivery");
        let headers = delivery.properties.headers().clone().unwrap_or_default();
        let Some(AMQPValue::LongLongInt(id)) = headers.inner().get("x-outbox-id").cloned() else {
            panic!("no x-outbox-id in {headers:?}");
        };
        let message_id = delivery.properties.message_id().as_ref();
        let message_id = message_id.expect("a message_id").to_string();
        (id, message_id)
    }
}
