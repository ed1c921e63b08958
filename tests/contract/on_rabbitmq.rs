//! The stage on RabbitMQ.

use std::time::Duration;

use futures_util::{Stream, StreamExt};
use lapin::message::Delivery;
use lapin::options::{
    BasicConsumeOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{ConnectionProperties, ExchangeKind};
use outbox_relay::broker::AmqpBroker;
use outbox_relay::config::{BrokerAccess, BrokerEndpoint, Login};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::publisher::Stage;
use crate::support::PATIENCE;
use crate::support::rabbit::{Rabbit, Vhost};

/// One broker for all tests that leave it in peace.
pub async fn shared() -> &'static Rabbit {
    static SHARED: OnceCell<Rabbit> = OnceCell::const_new();
    SHARED.get_or_init(Rabbit::start).await
}

/// A virtual host on the shared broker.
pub struct OnRabbitMq {
    pub vhost: Vhost,
    pub broker: AmqpBroker,
    /// Kept: the channel ends with it.
    _connection: lapin::Connection,
    pub admin: lapin::Channel,
}

/// `guest` on a port of this machine.
pub fn endpoint(port: u16, vhost: &str) -> BrokerEndpoint {
    BrokerEndpoint {
        host: "127.0.0.1".to_owned(),
        port,
        vhost: vhost.to_owned(),
        tls: None,
        login: Login::Plain {
            user: "guest".to_owned(),
            password: "guest".into(),
        },
        heartbeat: Duration::from_secs(10),
        connect_timeout: Duration::from_secs(20),
    }
}

/// A broker at these endpoints, with that patience for confirms.
pub fn broker(endpoints: Vec<BrokerEndpoint>, confirm_timeout: Duration) -> AmqpBroker {
    AmqpBroker::new(move || {
        Ok(BrokerAccess {
            endpoints: endpoints.clone(),
            confirm_timeout,
        })
    })
}

/// The port in a URL of the test harness.
pub fn port(url: &str) -> u16 {
    let authority = url.split('/').nth(2).expect("a URL");
    let port = authority.rsplit(':').next().expect("a port");
    port.parse().expect("a number")
}

impl OnRabbitMq {
    pub async fn start() -> Self {
        let vhost = shared().await.create_vhost().await;
        let there = endpoint(port(&vhost.url), &vhost.name);
        let connection = lapin::Connection::connect(&vhost.url, ConnectionProperties::default())
            .await
            .expect("the broker lets us in");
        Self {
            broker: broker(vec![there], Duration::from_secs(30)),
            admin: connection.create_channel().await.expect("a channel"),
            vhost,
            _connection: connection,
        }
    }

    /// The broker's port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        port(&self.vhost.url)
    }

    async fn declare(&self, queue: &str, arguments: FieldTable) {
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let declared = self.admin.queue_declare(queue.into(), durable, arguments);
        declared.await.expect("the queue can be declared");
    }

    /// The next messages of a queue, acknowledged.
    pub async fn consume(&self, queue: &str, count: usize) -> Vec<Delivery> {
        let all = self.consumer(queue).await.take(count).collect();
        timeout(PATIENCE, all).await.expect("in time")
    }

    /// The messages of a queue, acknowledged, up to one whose body is `end`.
    pub async fn consume_up_to(&self, queue: &str, end: &[u8]) -> Vec<Delivery> {
        let before = |delivery: &Delivery| std::future::ready(delivery.data != end);
        let all = self.consumer(queue).await.take_while(before).collect();
        timeout(PATIENCE, all).await.expect("in time")
    }

    async fn consumer(&self, queue: &str) -> impl Stream<Item = Delivery> {
        let acked = BasicConsumeOptions {
            no_ack: true,
            ..BasicConsumeOptions::default()
        };
        let consumer = self
            .admin
            .basic_consume(queue.into(), "".into(), acked, FieldTable::default())
            .await
            .expect("the queue exists");
        consumer.map(|delivery| delivery.expect("a delivery"))
    }
}

impl Stage for OnRabbitMq {
    type Broker = AmqpBroker;

    fn broker(&self) -> &AmqpBroker {
        &self.broker
    }

    async fn declare_exchange(&self, exchange: &str) {
        let (kind, none) = (ExchangeKind::Direct, FieldTable::default());
        let declared = self.admin.exchange_declare(
            exchange.into(),
            kind,
            ExchangeDeclareOptions::default(),
            none,
        );
        declared.await.expect("the exchange can be declared");
    }

    async fn delete_exchange(&self, exchange: &str) {
        let options = ExchangeDeleteOptions::default();
        let deleted = self.admin.exchange_delete(exchange.into(), options);
        deleted.await.expect("the exchange can be deleted");
    }

    async fn declare_queue(&self, queue: &str) {
        self.declare(queue, FieldTable::default()).await;
    }

    async fn declare_limited_queue(&self, queue: &str, max_length: u32) {
        let mut arguments = FieldTable::default();
        arguments.insert(
            "x-max-length".into(),
            AMQPValue::LongLongInt(max_length.into()),
        );
        let overflow = AMQPValue::LongString("reject-publish".into());
        arguments.insert("x-overflow".into(), overflow);
        self.declare(queue, arguments).await;
    }

    async fn bind(&self, exchange: &str, routing_key: &str, queue: &str) {
        let bound = self.admin.queue_bind(
            queue.into(),
            exchange.into(),
            routing_key.into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        );
        bound.await.expect("the binding can be made");
    }

    async fn length(&self, queue: &str) -> usize {
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let found = self
            .admin
            .queue_declare(queue.into(), passive, FieldTable::default());
        let queue = found.await.expect("the queue exists");
        usize::try_from(queue.message_count()).expect("a small number")
    }

    async fn close_connections(&self) {
        let name = &self.vhost.name;
        let close = format!(
            "rabbit_connection_tracking:close_connections(\
             rabbit_connection_tracking:list(<<\"{name}\">>), \"test\", 0)"
        );
        shared().await.eval(&close).await;
    }
}
