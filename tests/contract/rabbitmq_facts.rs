//! Observations of RabbitMQ that `message` is built around: which values of a message it answers
//! by closing the channel, or even the connection, under every other message on it. If one of
//! these fails with another release, look at what that release does instead.

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Confirmation, Connection, ConnectionProperties, Error, ErrorKind};

use crate::on_rabbitmq::OnRabbitMq;
use crate::publisher::Stage;

/// An address of a direct reply whose process does not exist.
const DAMAGED: &str = "amq.rabbitmq.reply-to.g2dkABFyYWJiaXRAbG9jYWxob3N0AAAAAAAAAAAAAAAA.abc";

/// What the broker makes of a message.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Taken,
    Returned,
    /// With this code.
    ChannelClosed(u16),
    ConnectionClosed(u16),
}

async fn answer(
    stage: &OnRabbitMq,
    exchange: &str,
    routing_key: &str,
    properties: BasicProperties,
) -> Answer {
    let connection = Connection::connect(&stage.vhost.url, ConnectionProperties::default()).await;
    let channel = connection.expect("let in").create_channel().await;
    let channel = channel.expect("a channel");
    let select = channel.confirm_select(ConfirmSelectOptions::default());
    select.await.expect("confirm mode");
    let mandatory = BasicPublishOptions {
        mandatory: true,
        immediate: false,
    };
    let published = channel.basic_publish(
        exchange.into(),
        routing_key.into(),
        mandatory,
        b"",
        properties,
    );
    match published.await.expect("written").await {
        Ok(Confirmation::Ack(None)) => Answer::Taken,
        Ok(Confirmation::Ack(Some(_))) => Answer::Returned,
        Ok(other) => panic!("{other:?}"),
        Err(error) => closed(&error),
    }
}

fn closed(error: &Error) -> Answer {
    let ErrorKind::ProtocolError(said) = error.kind() else {
        panic!("{error:?}")
    };
    if error.is_amqp_soft_error() {
        Answer::ChannelClosed(said.get_id())
    } else {
        Answer::ConnectionClosed(said.get_id())
    }
}

fn properties() -> BasicProperties {
    BasicProperties::default()
}

fn header(name: &str, value: AMQPValue) -> BasicProperties {
    let mut table = FieldTable::default();
    table.insert(name.into(), value);
    properties().with_headers(table)
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

fn list(key: &str) -> AMQPValue {
    AMQPValue::FieldArray(vec![text(key)].into())
}

/// See `message::direct_reply`.
#[tokio::test]
async fn a_direct_reply_can_neither_be_asked_for_nor_given_without_a_channel_of_its_own() {
    let stage = OnRabbitMq::start().await;
    stage.declare_queue("q").await;
    let asking = properties().with_reply_to("amq.rabbitmq.reply-to".into());
    let passed_on = properties().with_reply_to(DAMAGED.into());
    assert_eq!(
        answer(&stage, "", "q", asking).await,
        Answer::ChannelClosed(406)
    );
    assert_eq!(answer(&stage, "", "q", passed_on).await, Answer::Taken);
    for (exchange, key, headers, expected) in [
        ("", "amq.rabbitmq.reply-to", properties(), Answer::Returned),
        ("", DAMAGED, properties(), Answer::ConnectionClosed(541)),
        (
            "",
            "q",
            header("CC", list(DAMAGED)),
            Answer::ConnectionClosed(541),
        ),
        (
            "",
            "q",
            header("BCC", list(DAMAGED)),
            Answer::ConnectionClosed(541),
        ),
        ("amq.direct", DAMAGED, properties(), Answer::Returned),
    ] {
        let given = answer(&stage, exchange, key, headers).await;
        // RabbitMQ 4 knows better, and the relay goes by the strictest.
        let kinder = expected == Answer::ConnectionClosed(541)
            && matches!(given, Answer::Returned | Answer::Taken);
        assert!(given == expected || kinder, "{exchange} {key}: {given:?}");
    }
}

/// See `message::properties`, `message::headers` and `message::publication`.
#[tokio::test]
async fn some_values_close_the_channel_under_every_message_on_it() {
    let stage = OnRabbitMq::start().await;
    stage.declare_queue("q").await;
    for (name, exchange, message, code) in [
        ("internal", "amq.rabbitmq.trace", properties(), 403),
        ("user_id", "", properties().with_user_id("x".into()), 406),
        ("no user_id", "", properties().with_user_id("".into()), 406),
        (
            "no digits",
            "",
            properties().with_expiration("".into()),
            406,
        ),
        (
            "words",
            "",
            properties().with_expiration("soon".into()),
            406,
        ),
        (
            "negative",
            "",
            properties().with_expiration("-1".into()),
            406,
        ),
        ("mode", "", properties().with_delivery_mode(9), 406),
        ("CC", "", header("CC", text("q")), 406),
        ("BCC", "", header("BCC", AMQPValue::Void), 406),
    ] {
        let given = answer(&stage, exchange, "q", message).await;
        // RabbitMQ 4 takes any delivery mode, and the relay goes by the strictest.
        let kinder = name == "mode" && given == Answer::Taken;
        let strict = given == Answer::ChannelClosed(code);
        assert!(strict || kinder, "{name}: {given:?}");
    }
}

/// What looks like it, and is none of the relay's business.
#[tokio::test]
async fn other_odd_values_are_taken() {
    let stage = OnRabbitMq::start().await;
    stage.declare_queue("q").await;
    for (name, message) in [
        ("priority", properties().with_priority(255)),
        ("timestamp", properties().with_timestamp(u64::MAX)),
        (
            "expiration",
            properties().with_expiration("4294967295".into()),
        ),
        ("no name", header("", text("q"))),
        ("long CC", header("CC", list(&"x".repeat(70_000)))),
        ("x-death", header("x-death", text("q"))),
        ("x-delay", header("x-delay", text("soon"))),
        ("x-received-from", header("x-received-from", text("q"))),
    ] {
        assert_eq!(
            answer(&stage, "", "q", message).await,
            Answer::Taken,
            "{name}"
        );
    }
}
