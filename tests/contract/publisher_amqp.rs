//! What only RabbitMQ can show: that a consumer gets what a row says.

use std::collections::BTreeMap;

use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable};
use outbox_relay::broker::{Broker, BrokerError, Channel, Link, LossCause, Outcome};
use outbox_relay::config::Login;
use outbox_relay::message::{Body, OutboxRow, RowId};

use crate::on_rabbitmq::{OnRabbitMq, broker, endpoint};
use crate::publisher::{Stage, is_confirmed, judged, lost};
use crate::rows::{of, publication, row};
use crate::support::PATIENCE;

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

/// The id in a message of ours.
pub fn row_id(delivery: &Delivery) -> RowId {
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
    let mut there = endpoint(stage.port(), &stage.vhost.name);
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

    let there = endpoint(stage.port(), "missing");
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
    let there = endpoint(stage.port(), &stage.vhost.name);
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
