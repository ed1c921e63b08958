//! The writer's half of the library: what it writes, and what it says where that is refused.

use std::time::{Duration, UNIX_EPOCH};

use outbox_relay::outbox::{EnqueueError, Message, Outbox};
use serde_json::{Value, json};

use crate::support::postgres::{Database, database};
use crate::support::relay::{Settings, run};
use crate::support::scene::{QUEUE, Scene};

/// A database with an outbox of this schema and payload.
async fn outbox(schema: &str, payload: &str) -> Database {
    let database = database().await;
    let settings = Settings::default().with("OUTBOX_RELAY__OUTBOX__SCHEMA", schema);
    let migrate = [
        "migrate",
        "--payload",
        payload,
        "--database-url",
        &database.url,
    ];
    let (status, output) = run(&settings, &migrate).await;
    assert!(status.success(), "{output:?}");
    database
}

#[tokio::test]
async fn a_message_goes_out_if_its_transaction_commits() {
    let mut scene = Scene::new().await;
    let to = |order: i64| {
        let payload = json!({ "order": order });
        let message = Message::json(&payload).expect("a value");
        message.routing_key(QUEUE).ordering_key("order-42")
    };
    let transaction = scene.client.transaction().await.expect("begun");
    let outbox = Outbox::default();
    outbox.enqueue(&transaction, &to(1)).await.expect("written");
    transaction.rollback().await.expect("rolled back");
    let transaction = scene.client.transaction().await.expect("begun");
    let id = outbox.enqueue(&transaction, &to(2)).await.expect("written");
    transaction.commit().await.expect("committed");
    scene.run_until_empty().await;
    let letters = scene.queues.take_all(QUEUE).await;
    let [letter] = &letters[..] else {
        panic!("{letters:?}")
    };
    assert_eq!(
        (&letter.message_id, &letter.body[..]),
        (&id, &br#"{"order":2}"#[..])
    );
    assert_eq!(letter.key.as_deref(), Some("order-42"));
}

#[tokio::test]
async fn every_column_gets_what_was_said() {
    let database = outbox("outbox", "json").await;
    let mut client = database.connect().await;
    let message = Message::json(&[1, 2])
        .expect("a value")
        .exchange("orders")
        .routing_key("order.placed")
        .ordering_key("order-42")
        .header("tenant", "a")
        .header("retry", 3)
        .message_type("order.placed")
        .correlation_id("c-1")
        .content_type("application/cloudevents+json")
        .property("priority", 5)
        .available_at(UNIX_EPOCH + Duration::from_secs(4_000_000_000))
        .message_id("order:42:placed");
    let transaction = client.transaction().await.expect("begun");
    let id = Outbox::default().enqueue(&transaction, &message).await;
    assert_eq!(id.expect("written"), "order:42:placed");
    let columns = "SELECT to_jsonb(m) - ARRAY['id', 'xid', 'created_at', 'attempts', 'retry_at',
           'last_error', 'sent_at'] || jsonb_build_object('payload', payload::text)
         FROM outbox.message AS m";
    let row = transaction.query_one(columns, &[]).await.expect("one row");
    let expected = json!({
        "message_id": "order:42:placed",
        "exchange": "orders",
        "routing_key": "order.placed",
        "ordering_key": "order-42",
        "payload": "[1,2]",
        "headers": { "tenant": "a", "retry": 3 },
        "type": "order.placed",
        "correlation_id": "c-1",
        "content_type": "application/cloudevents+json",
        "properties": { "priority": 5 },
        "available_at": "2096-10-02T07:06:40+00:00",
    });
    assert_eq!(row.get::<_, Value>(0), expected);
}

#[tokio::test]
async fn each_type_of_payload_has_its_constructor_and_others_are_told_apart() {
    let value = json!({ "quote": "\\\"" });
    let all = [
        ("json", Message::json(&value).expect("a value")),
        ("jsonb", Message::jsonb(&value).expect("a value")),
        ("text", Message::text("\\x00")),
        ("bytea", Message::bytes([0, 255])),
    ];
    for (payload, expected) in [
        ("json", r#"{"quote":"\\\""}"#),
        ("jsonb", r#"{"quote": "\\\""}"#),
        ("text", "\\x00"),
        ("bytea", "\\x00ff"),
    ] {
        let database = outbox("we\"ird", payload).await;
        let mut client = database.connect().await;
        let outbox = Outbox::in_schema("we\"ird").expect("a name");
        for (name, message) in &all {
            let transaction = client.transaction().await.expect("begun");
            let written = outbox.enqueue(&transaction, message).await;
            if *name != payload {
                let error = written.expect_err("another type");
                let remedy = format!("outbox-relay migrate --payload {name}");
                assert!(
                    matches!(error, EnqueueError::NoFunction { .. }),
                    "{error:?}"
                );
                assert!(error.to_string().contains(&remedy), "{error}");
                continue;
            }
            written.expect("written");
            let stored = "SELECT payload::text FROM \"we\"\"ird\".message";
            let row = transaction.query_one(stored, &[]).await.expect("one row");
            assert_eq!(row.get::<_, String>(0), expected, "{payload}");
        }
    }
}

#[tokio::test]
async fn what_can_never_be_sent_is_refused_with_its_limit() {
    let database = outbox("outbox", "json").await;
    let mut client = database.connect().await;
    let transaction = client.transaction().await.expect("begun");
    let message = Message::json("x")
        .expect("a value")
        .routing_key("k".repeat(256));
    let refused = Outbox::default().enqueue(&transaction, &message).await;
    let error = refused.expect_err("too long");
    assert!(matches!(error, EnqueueError::Refused { .. }), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("routing_key has 256 bytes"), "{said}");
}
