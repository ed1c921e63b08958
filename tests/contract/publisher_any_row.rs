//! Any row either arrives at a consumer equal to what was written, or is refused with a reason
//! before it reaches the channel.

use std::collections::BTreeMap;
use std::sync::Arc;

use lapin::BasicProperties;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions};
use lapin::types::{AMQPValue, FieldTable as LapinTable, ShortString};
use lapin::{ExchangeKind, message::Delivery};
use outbox_relay::broker::{Broker, Channel, Link};
use outbox_relay::message::{
    Body, FieldTable, FieldValue, Properties, Publication, RowId, Rules, ShortText,
};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::on_rabbitmq::OnRabbitMq;
use crate::publisher::{Stage, is_confirmed, judged};
use crate::rows::{of, row, rules};

const ROWS: usize = 1000;

/// The body of the last message.
pub const END: &[u8] = b"the end";

#[tokio::test]
async fn any_row_arrives_as_it_was_written_or_is_refused_with_a_reason() {
    let stage = OnRabbitMq::start().await;
    take_everything(&stage).await;
    let mut fit = fit_rows();
    assert!(fit.len() > ROWS / 4, "only {} of {ROWS} fit", fit.len());
    let link = stage.broker.connect().await.expect("let in");
    let mut channel = link.open_channel().await.expect("a channel");
    channel.publish(fit.values().cloned().collect()).await;
    let all = judged(&mut channel, fit.len()).await;
    assert!(all.values().all(is_confirmed), "{all:?}");
    let mut end = row(0, "all", "");
    end.payload = Body::Bytes(END.into());
    channel.publish(vec![of(&end)]).await;
    judged(&mut channel, 1).await;

    for delivery in stage.consume_up_to("q", END).await {
        let id = crate::publisher_amqp::row_id(&delivery);
        assert_same(&fit.remove(&id).expect("it arrives once"), &delivery);
    }
    // What is left had no time to live.
    let left = fit.into_values();
    let immortal = left.filter(|p| p.properties().expiration.is_none());
    assert_eq!(immortal.collect::<Vec<_>>(), []);
}

fn fit_rows() -> BTreeMap<RowId, Arc<Publication>> {
    let rules = Rules {
        max_message_size: 1000,
        login: Some("guest".to_owned()),
        ..rules()
    };
    let mut runner = TestRunner::deterministic();
    let any_row = crate::message::any_row::any_row();
    let mut fit = BTreeMap::new();
    for number in 0..ROWS {
        let mut row = any_row.new_tree(&mut runner).expect("a row").current();
        "all".clone_into(&mut row.exchange);
        match Publication::from_row(row.clone(), &rules) {
            Ok(publication) => {
                fit.insert(row.id, publication.into());
            }
            Err(unfit) => assert!(unfit.reason.len() > 10, "row {number}: {unfit}"),
        }
    }
    fit
}

pub async fn take_everything(stage: &OnRabbitMq) {
    stage.declare_queue("q").await;
    let (kind, none) = (ExchangeKind::Fanout, LapinTable::default());
    let options = ExchangeDeclareOptions::default();
    let declared = stage
        .admin
        .exchange_declare("all".into(), kind, options, none);
    declared.await.expect("an exchange");
    let (options, none) = (QueueBindOptions::default(), LapinTable::default());
    let bound = stage
        .admin
        .queue_bind("q".into(), "all".into(), "".into(), options, none);
    bound.await.expect("a binding");
}

pub fn assert_same(publication: &Publication, delivery: &Delivery) {
    assert_eq!(delivery.data, publication.payload().as_ref());
    assert_eq!(
        delivery.routing_key.as_str(),
        publication.routing_key().as_str()
    );
    let (sent, arrived) = (publication.properties(), &delivery.properties);
    for (name, sent, arrived) in texts(sent, arrived) {
        let sent = sent.as_ref().map(ShortText::as_str);
        let arrived = arrived.as_ref().map(ShortString::as_str);
        assert_eq!(sent, arrived, "{name} of {publication:?}");
    }
    assert_eq!(*arrived.delivery_mode(), Some(sent.delivery_mode.code()));
    assert_eq!(*arrived.priority(), sent.priority);
    assert_eq!(*arrived.timestamp(), sent.timestamp);
    let mut headers = lapin_table(&sent.headers);
    let arrived = arrived.headers().clone().expect("headers");
    if headers.contains_key("BCC") {
        // The broker removes it (<https://www.rabbitmq.com/docs/sender-selected>).
        let kept = headers
            .inner()
            .iter()
            .filter(|(name, _)| name.as_str() != "BCC");
        let kept: BTreeMap<_, _> = kept.map(|(n, v)| (n.clone(), v.clone())).collect();
        headers = LapinTable::from(kept);
    }
    assert_eq!(arrived, headers, "headers of {publication:?}");
}

type Text<'a> = (&'static str, &'a Option<ShortText>, &'a Option<ShortString>);

fn texts<'a>(sent: &'a Properties, arrived: &'a BasicProperties) -> [Text<'a>; 10] {
    [
        ("content_type", &sent.content_type, arrived.content_type()),
        (
            "content_encoding",
            &sent.content_encoding,
            arrived.content_encoding(),
        ),
        (
            "correlation_id",
            &sent.correlation_id,
            arrived.correlation_id(),
        ),
        ("reply_to", &sent.reply_to, arrived.reply_to()),
        ("expiration", &sent.expiration, arrived.expiration()),
        ("message_id", &sent.message_id, arrived.message_id()),
        ("type", &sent.message_type, arrived.kind()),
        ("user_id", &sent.user_id, arrived.user_id()),
        ("app_id", &sent.app_id, arrived.app_id()),
        ("cluster_id", &sent.cluster_id, arrived.cluster_id()),
    ]
}

fn lapin_table(table: &FieldTable) -> LapinTable {
    let mut expected = LapinTable::default();
    for (name, value) in table.iter() {
        expected.insert(name.as_str().into(), lapin_value(value));
    }
    expected
}

fn lapin_value(value: &FieldValue) -> AMQPValue {
    match value {
        FieldValue::Void => AMQPValue::Void,
        FieldValue::Bool(bool) => AMQPValue::Boolean(*bool),
        FieldValue::Integer(integer) => AMQPValue::LongLongInt(*integer),
        FieldValue::Float(float) => AMQPValue::Double(*float),
        FieldValue::Text(text) => AMQPValue::LongString(text.as_str().into()),
        FieldValue::List(items) => {
            AMQPValue::FieldArray(items.iter().map(lapin_value).collect::<Vec<_>>().into())
        }
        FieldValue::Table(table) => AMQPValue::FieldTable(lapin_table(table)),
    }
}
