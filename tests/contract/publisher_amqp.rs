//! The stage on RabbitMQ, and what only it can show: that a consumer gets what a row says.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicConsumeOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{ConnectionProperties, ExchangeKind};
use outbox_relay::broker::{AmqpBroker, Broker, BrokerError, Channel, Link, LossCause, Outcome};
use outbox_relay::config::{BrokerAccess, BrokerEndpoint, Login};
use outbox_relay::message::{Body, OutboxRow, RowId};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::publisher::{Stage, is_confirmed, judged, lost};
use crate::rows::{of, publication, row};
use crate::support::PATIENCE;
use crate::support::rabbit::{Rabbit, Vhost};

/// One broker for all tests that leave it in peace.
async fn shared() -> &'static Rabbit {
    static SHARED: OnceCell<Rabbit> = OnceCell::const_new();
    SHARED.get_or_init(Rabbit::start).await
}

/// A virtual host on the shared broker.
pub struct OnRabbitMq {
    pub vhost: Vhost,
    pub broker: AmqpBroker,
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
        let acked = BasicConsumeOptions {
            no_ack: true,
            ..BasicConsumeOptions::default()
        };
        let consumer = self
            .admin
            .basic_consume(queue.into(), "".into(), acked, FieldTable::default())
            .await
            .expect("the queue exists");
        let all = consumer
            .take(count)
            .map(|d| d.expect("a delivery"))
            .collect();
        timeout(PATIENCE, all).await.expect("in time")
    }
}

impl Stage for OnRabbitMq {
    type Broker = AmqpBroker;

    fn broker(&self) -> &AmqpBroker {
        &self.broker
    }

    async fn declare_exchange(&self, exchange: &str) {
        let (kind, none) = (ExchangeKind::Direct, FieldTable::default());
        let declared = self
            .admin
            .exchange_declare(exchange.into(), kind, Default::default(), none);
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

#[tokio::test]
async fn messages_arrive_in_order() {
    let stage = OnRabbitMq::start().await;
    let sent =
        crate::publisher::messages_arrive_in_the_order_of_publishing_whatever_their_size(&stage)
            .await;
    let arrived: Vec<_> = stage
        .consume("q", sent.len())
        .await
        .iter()
        .map(row_id)
        .collect();
    assert_eq!(arrived, sent);
}

fn row_id(delivery: &Delivery) -> RowId {
    let headers = delivery.properties.headers().as_ref().expect("headers");
    match headers.inner().get("x-outbox-id") {
        Some(AMQPValue::LongLongInt(id)) => RowId(*id),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_consumer_gets_what_the_row_says() {
    let stage = OnRabbitMq::start().await;
    stage.declare_queue("q").await;
    let bytes: Vec<u8> = (0..=255).collect();
    let row = OutboxRow {
        payload: Body::Bytes(bytes.clone().into()),
        correlation_id: Some("conversation".to_owned()),
        content_type: Some("application/octet-stream".to_owned()),
        headers: Some(
            r#"{"s": "é", "i": -9007199254740993, "f": 0.5, "b": true, "n": null,
                "l": [1, "two", [false]], "o": {"deep": {"er": 1}}}"#
                .to_owned(),
        ),
        properties: Some(
            r#"{"priority": 9, "expiration": "4294967295", "app_id": "shop", "reply_to": "r",
                "content_encoding": "identity", "delivery_mode": 1, "user_id": "guest",
                "cluster_id": "c"}"#
                .to_owned(),
        ),
        ..row(42, "", "q")
    };
    let link = stage.broker.connect().await.unwrap();
    let mut channel = link.open_channel().await.unwrap();
    channel.publish(vec![of(&row)]).await;
    assert!(is_confirmed(&judged(&mut channel, 1).await[&RowId(42)]));

    let delivery = stage.consume("q", 1).await.remove(0);
    assert_eq!(delivery.data, bytes);
    let properties = &delivery.properties;
    let text = |text: &Option<lapin::types::ShortString>| text.as_ref().map(ToString::to_string);
    assert_eq!(text(properties.message_id()).unwrap(), "message-42");
    assert_eq!(text(properties.kind()).unwrap(), "OrderCreated");
    assert_eq!(text(properties.correlation_id()).unwrap(), "conversation");
    assert_eq!(
        text(properties.content_type()).unwrap(),
        "application/octet-stream"
    );
    assert_eq!(text(properties.content_encoding()).unwrap(), "identity");
    assert_eq!(text(properties.expiration()).unwrap(), "4294967295");
    assert_eq!(text(properties.app_id()).unwrap(), "shop");
    assert_eq!(text(properties.reply_to()).unwrap(), "r");
    assert_eq!(text(properties.user_id()).unwrap(), "guest");
    assert_eq!(text(properties.cluster_id()).unwrap(), "c");
    assert_eq!(*properties.priority(), Some(9));
    assert_eq!(*properties.delivery_mode(), Some(1));
    assert_eq!(*properties.timestamp(), Some(1_700_000_000));
    assert_eq!(headers_of(&delivery), expected_headers());
}

fn headers_of(delivery: &Delivery) -> BTreeMap<String, AMQPValue> {
    let headers = delivery.properties.headers().as_ref().expect("headers");
    let headers = headers.inner().iter();
    headers
        .map(|(name, value)| (name.to_string(), value.clone()))
        .collect()
}

fn expected_headers() -> BTreeMap<String, AMQPValue> {
    let text = |text: &str| AMQPValue::LongString(text.into());
    let list = |items: Vec<AMQPValue>| AMQPValue::FieldArray(items.into());
    let table = |name: &str, value| {
        let mut table = FieldTable::default();
        table.insert(name.into(), value);
        AMQPValue::FieldTable(table)
    };
    let integer = AMQPValue::LongLongInt;
    let inner = list(vec![AMQPValue::Boolean(false)]);
    [
        ("s", text("é")),
        ("i", integer(-9_007_199_254_740_993)),
        ("f", AMQPValue::Double(0.5)),
        ("b", AMQPValue::Boolean(true)),
        ("n", AMQPValue::Void),
        ("l", list(vec![integer(1), text("two"), inner])),
        ("o", table("deep", table("er", integer(1)))),
        ("x-outbox-id", integer(42)),
        ("x-outbox-key", text("key-2")),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

#[tokio::test]
async fn the_largest_header_that_is_fit_passes() {
    let stage = OnRabbitMq::start().await;
    stage.declare_queue("q").await;
    let with = |bytes: usize| OutboxRow {
        headers: Some(format!("{{\"h\": \"{}\"}}", "x".repeat(bytes))),
        ..row(1, "", "q")
    };
    let small = of(&with(0)).header_len();
    let link = stage.broker.connect().await.unwrap();
    assert_eq!(link.frame_max(), 131_072);
    let mut channel = link.open_channel().await.unwrap();
    let largest = of(&with(131_064 - small));
    assert_eq!(largest.header_len(), 131_064);
    channel.publish(vec![largest]).await;
    assert!(is_confirmed(&judged(&mut channel, 1).await[&RowId(1)]));
    assert_eq!(stage.length("q").await, 1);
}

#[tokio::test]
async fn further_routing_keys_route() {
    let stage = OnRabbitMq::start().await;
    for queue in ["copy", "blind"] {
        stage.declare_queue(queue).await;
    }
    let row = OutboxRow {
        headers: Some(r#"{"CC": ["copy"], "BCC": ["blind"]}"#.to_owned()),
        ..row(1, "", "nowhere")
    };
    let link = stage.broker.connect().await.unwrap();
    let mut channel = link.open_channel().await.unwrap();
    channel.publish(vec![of(&row)]).await;
    assert!(is_confirmed(&judged(&mut channel, 1).await[&RowId(1)]));
    assert_eq!(
        (stage.length("copy").await, stage.length("blind").await),
        (1, 1)
    );
}

#[tokio::test]
async fn what_validation_could_not_know_is_the_rows_fault() {
    let stage = OnRabbitMq::start().await;
    let row = OutboxRow {
        properties: Some(r#"{"user_id": "somebody"}"#.to_owned()),
        ..row(1, "", "q")
    };
    let link = stage.broker.connect().await.unwrap();
    let mut channel = link.open_channel().await.unwrap();
    channel.publish(vec![of(&row)]).await;
    let (_, lost) = lost(&mut channel).await;
    assert!(
        matches!(lost.cause, LossCause::Closed { code: 406, .. }),
        "{lost:?}"
    );
    assert_eq!(lost.unknown, [RowId(1)]);
}

#[tokio::test]
async fn the_reason_of_a_refused_login_is_told_without_the_password() {
    let stage = OnRabbitMq::start().await;
    let mut there = endpoint(port(&stage.vhost.url), &stage.vhost.name);
    there.login = Login::Plain {
        user: "guest".to_owned(),
        password: "canary".into(),
    };
    let refused = broker(vec![there], PATIENCE).connect().await;
    let error = refused.err().expect("refused").to_string();
    assert!(
        error.contains("AMQP handshake") && error.contains("ACCESS_REFUSED"),
        "{error}"
    );
    assert!(!error.contains("canary"), "{error}");

    let there = endpoint(port(&stage.vhost.url), "missing");
    let error = broker(vec![there], PATIENCE)
        .connect()
        .await
        .err()
        .expect("refused");
    assert!(
        error.to_string().contains("vhost missing not found"),
        "{error}"
    );
}

#[tokio::test]
async fn hosts_are_tried_in_order() {
    let stage = OnRabbitMq::start().await;
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = endpoint(nobody.local_addr().unwrap().port(), "/");
    drop(nobody);
    let there = endpoint(port(&stage.vhost.url), &stage.vhost.name);
    let second = broker(vec![closed.clone(), there], PATIENCE)
        .connect()
        .await;
    assert!(second.is_ok());

    let error = broker(vec![closed.clone(), closed], PATIENCE)
        .connect()
        .await;
    let error = error.err().expect("nobody there");
    assert!(matches!(
        error,
        BrokerError::Failed {
            step: "connect",
            ..
        }
    ));
    assert_eq!(
        error
            .to_string()
            .matches("TCP connect: Connection refused")
            .count(),
        2
    );
}

/// The window of the relay, with its real mixture of fates, for a long time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_sliding_window_no_return_is_misjudged() {
    const TOTAL: i64 = 20_000;
    let stage = OnRabbitMq::start().await;
    stage.declare_queue("q").await;
    let link = stage.broker.connect().await.unwrap();
    let mut channel = link.open_channel().await.unwrap();
    let is_unroutable = |id: i64| id % 10 < 3;
    let (mut next, mut open, mut done) = (0, 0, 0);
    while done < TOTAL {
        let mut batch = Vec::new();
        while next < TOTAL && open < 500 {
            let to = if is_unroutable(next) { "nowhere" } else { "q" };
            batch.push(publication(next, "", to));
            (next, open) = (next + 1, open + 1);
        }
        channel.publish(batch).await;
        for (id, outcome) in channel.judged().await.expect("the channel stays open") {
            let returned = matches!(outcome, Outcome::Returned { .. });
            assert_eq!(returned, is_unroutable(id.0), "{id}");
            (open, done) = (open - 1, done + 1);
        }
    }
    assert_eq!(stage.length("q").await, 14_000);
}
