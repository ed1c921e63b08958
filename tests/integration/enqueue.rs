//! `outbox.enqueue`: what it writes, and what it refuses, in agreement with the relay.

use outbox_relay::message::{Body, OutboxRow, Publication, RowId};
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use crate::outbox::outbox;
use crate::support::publication::rules;

/// One message as an application might write it; texts that are JSON are casts in SQL.
#[derive(Clone, Debug)]
struct Written {
    exchange: String,
    routing_key: String,
    message_id: String,
    message_type: Option<String>,
    correlation_id: Option<String>,
    content_type: Option<String>,
    headers: Option<String>,
    properties: Option<String>,
}

fn usual() -> Written {
    Written {
        exchange: "orders".to_owned(),
        routing_key: "order.placed".to_owned(),
        message_id: "m".to_owned(),
        message_type: None,
        correlation_id: None,
        content_type: None,
        headers: None,
        properties: None,
    }
}

fn headers(text: impl Into<String>) -> Written {
    Written {
        headers: Some(text.into()),
        ..usual()
    }
}

fn properties(text: impl Into<String>) -> Written {
    Written {
        properties: Some(text.into()),
        ..usual()
    }
}

/// The refusal in words, if any.
async fn enqueued(client: &Client, written: &Written) -> Result<(), String> {
    let sql = "SELECT outbox.enqueue(payload => '{}', exchange => $1, routing_key => $2, \
               message_id => $3, type => $4, correlation_id => $5, content_type => $6, \
               headers => $7::text::jsonb, properties => $8::text::jsonb)";
    let parameters: [&(dyn ToSql + Sync); 8] = [
        &written.exchange,
        &written.routing_key,
        &written.message_id,
        &written.message_type,
        &written.correlation_id,
        &written.content_type,
        &written.headers,
        &written.properties,
    ];
    match client.query_one(sql, &parameters).await {
        Ok(row) => {
            assert_eq!(row.get::<_, String>(0), written.message_id);
            Ok(())
        }
        Err(error) => {
            let answer = error.as_db_error().unwrap_or_else(|| panic!("{error:?}"));
            assert_eq!(answer.code().code(), "22023", "{written:?}: {answer:?}");
            Err(answer.message().to_owned())
        }
    }
}

/// What the relay makes of the same message.
async fn published(client: &Client, written: &Written) -> Result<(), String> {
    let sql = "SELECT $1::text::jsonb::text, $2::text::jsonb::text";
    let row = client
        .query_one(sql, &[&written.headers, &written.properties])
        .await;
    let row = row.expect("JSON");
    let row = OutboxRow {
        id: RowId(1),
        message_id: written.message_id.clone(),
        exchange: written.exchange.clone(),
        routing_key: written.routing_key.clone(),
        ordering_key: None,
        payload: Body::Bytes("{}".into()),
        headers: row.get(0),
        message_type: written.message_type.clone(),
        correlation_id: written.correlation_id.clone(),
        content_type: written.content_type.clone(),
        properties: row.get(1),
        created_at: std::time::UNIX_EPOCH,
        attempts: 0,
    };
    match Publication::from_row(row, &rules()) {
        Ok(_) => Ok(()),
        Err(unfit) => Err(unfit.reason),
    }
}

fn nested(levels: usize) -> String {
    format!("{{\"a\": {}1{}}}", "[".repeat(levels), "]".repeat(levels))
}

/// Headers that can never be sent, and what the refusal says.
const HEADERS: [(&str, &str); 12] = [
    ("[]", "headers are a JSON array"),
    ("1", "headers are a JSON number"),
    (r#"{"x-outbox-id": 1}"#, "belongs to the relay"),
    (r#"{"X-Outbox-Other": null}"#, "belongs to the relay"),
    (r#"{"CC": "q"}"#, "list of strings"),
    (r#"{"BCC": ["q", 1]}"#, "list of strings"),
    (r#"{"a": 9223372036854775808}"#, "64 bit"),
    (r#"{"a": [{"b": -9223372036854775809}]}"#, "64 bit"),
    // jsonb keeps it as an integer of 301 digits.
    (r#"{"a": 1.5e300}"#, "64 bit"),
    (r#"{"a": 1e400}"#, "64 bit"),
    (r#"{"a": [0.5, -1e-400]}"#, "64-bit float"),
    (r#"{"a": {"b": [{"c": 1e-330}]}}"#, "64-bit float"),
];

/// Properties that can never be sent, and what the refusal says.
const PROPERTIES: [(&str, &str); 20] = [
    ("\"x\"", "properties are a JSON string"),
    (r#"{"priorty": 1}"#, "known are"),
    (r#"{"message_id": "x"}"#, "comes from the column message_id"),
    (r#"{"headers": {}}"#, "comes from the column headers"),
    (r#"{"timestamp": 1}"#, "comes from the column created_at"),
    (r#"{"priority": 256}"#, "from 0 to 255"),
    (r#"{"priority": -1}"#, "from 0 to 255"),
    (r#"{"priority": "1"}"#, "from 0 to 255"),
    (r#"{"priority": 1.5}"#, "from 0 to 255"),
    (r#"{"priority": 1.0}"#, "from 0 to 255"),
    (r#"{"delivery_mode": 3}"#, "1 (transient) or 2"),
    (r#"{"delivery_mode": "2"}"#, "1 (transient) or 2"),
    (r#"{"delivery_mode": 2.0}"#, "1 (transient) or 2"),
    (r#"{"expiration": "soon"}"#, "milliseconds in digits"),
    (r#"{"expiration": ""}"#, "milliseconds in digits"),
    (r#"{"expiration": -1}"#, "milliseconds in digits"),
    (r#"{"expiration": "4294967296"}"#, "at most 4294967295"),
    (r#"{"expiration": true}"#, "milliseconds in digits"),
    (r#"{"app_id": 1}"#, "app_id must be a string"),
    (r#"{"reply_to": {}}"#, "reply_to must be a string"),
];

/// Every kind of refusal, with words that the refusal must contain.
fn refused() -> Vec<(Written, &'static str)> {
    let mut all = too_long();
    all.extend(HEADERS.map(|(text, words)| (headers(text), words)));
    all.push((headers(nested(32)), "32 levels"));
    all.extend(PROPERTIES.map(|(text, words)| (properties(text), words)));
    let twice = Written {
        message_type: Some("a".to_owned()),
        properties: Some(r#"{"type": "b"}"#.to_owned()),
        ..usual()
    };
    all.push((twice, "set by the column type too"));
    all.extend(without_a_place());
    all
}

/// No identity, or a destination that only the broker or a channel of its own may use.
fn without_a_place() -> [(Written, &'static str); 6] {
    let to_queue = |routing_key: &str| Written {
        exchange: String::new(),
        routing_key: routing_key.to_owned(),
        ..usual()
    };
    let nobody = Written {
        message_id: String::new(),
        ..usual()
    };
    let brokers_own = Written {
        exchange: "amq.rabbitmq.trace".to_owned(),
        ..usual()
    };
    let copy = Written {
        headers: Some(r#"{"BCC": ["a", "amq.rabbitmq.reply-to.g1h.x"]}"#.to_owned()),
        ..to_queue("q")
    };
    let asking = properties(r#"{"reply_to": "amq.rabbitmq.reply-to"}"#);
    [
        (nobody, "message_id is empty"),
        (brokers_own, "the broker's own"),
        (to_queue("amq.rabbitmq.reply-to"), "is a direct reply"),
        (to_queue("amq.rabbitmq.reply-to.g1h.x"), "is a direct reply"),
        (copy, "BCC\" names a direct reply"),
        (asking, "reply_to is amq.rabbitmq.reply-to"),
    ]
}

/// A text of 256 bytes at every place that takes 255.
fn too_long() -> Vec<(Written, &'static str)> {
    let accented = "é".repeat(128);
    let mut texts: [Written; 6] = std::array::from_fn(|_| usual());
    texts[0].routing_key = "x".repeat(256);
    texts[1].exchange.clone_from(&accented);
    texts[2].message_id.clone_from(&accented);
    texts[3].message_type = Some(accented.clone());
    texts[4].correlation_id = Some(accented.clone());
    texts[5].content_type = Some("x".repeat(256));
    let words = [
        "routing_key has 256 bytes, and an AMQP short string holds at most 255",
        "exchange has 256 bytes",
        "message_id has 256 bytes",
        "type has 256 bytes",
        "correlation_id has 256 bytes",
        "content_type has 256 bytes",
    ];
    let mut all: Vec<_> = texts.into_iter().zip(words).collect();
    all.push((headers(format!("{{\"{accented}\": 1}}")), "256 bytes"));
    all.push((
        headers(format!("{{\"a\": [{{\"{accented}\": 1}}]}}")),
        "256 bytes",
    ));
    let app_id = properties(format!("{{\"app_id\": \"{accented}\"}}"));
    all.push((app_id, "app_id has 256 bytes"));
    all
}

fn accepted() -> Vec<Written> {
    let longest = "x".repeat(255);
    let some = |text: &str| Some(text.to_owned());
    vec![
        usual(),
        Written {
            exchange: String::new(),
            routing_key: longest.clone(),
            message_id: longest.clone(),
            message_type: Some(longest.clone()),
            correlation_id: Some("é".repeat(127)),
            content_type: some("text/plain"),
            ..usual()
        },
        headers("null"),
        headers("{}"),
        headers(
            r#"{"s": "é", "i": 9223372036854775807, "j": -9223372036854775808, "f": 1.5e-300,
                    "t": true, "n": null, "o": {"l": [1, "a", {}]}, "x-outbox": 1, "e": 1e3}"#,
        ),
        headers(format!("{{\"{longest}\": 1}}")),
        headers(r#"{"CC": ["a", "b"], "BCC": []}"#),
        headers(r#"{"nested": {"x-outbox-id": 1, "CC": 1}}"#),
        headers(nested(31)),
        Written {
            routing_key: "amq.rabbitmq.reply-to.g1h.x".to_owned(),
            properties: Some(r#"{"reply_to": "amq.rabbitmq.reply-to.g1h.x"}"#.to_owned()),
            ..headers(r#"{"CC": ["amq.rabbitmq.reply-to.g1h.x"]}"#)
        },
        properties("null"),
        properties("{}"),
        properties(r#"{"priority": 0, "delivery_mode": 1, "expiration": "060000"}"#),
        properties(r#"{"priority": 255, "delivery_mode": 2, "expiration": 4294967295}"#),
        properties(
            r#"{"app_id": "a", "cluster_id": "c", "content_encoding": "gzip",
                       "reply_to": "r", "user_id": "u", "type": "t", "correlation_id": "k",
                       "content_type": "text/plain"}"#,
        ),
        properties(r#"{"priority": null, "expiration": null, "app_id": null}"#),
    ]
}

#[tokio::test]
async fn what_can_never_be_sent_is_refused_at_once_with_the_limit() {
    let (_database, client) = outbox().await;
    for (written, words) in refused() {
        let reason = enqueued(&client, &written)
            .await
            .expect_err(&format!("{written:?}"));
        assert!(
            reason.starts_with("this message can never be sent: "),
            "{reason}"
        );
        assert!(reason.contains(words), "{written:?}: {reason}");
    }
    let sql = "SELECT count(*) FROM outbox.message";
    assert_eq!(crate::outbox::number(&client, sql).await, 0);
}

#[tokio::test]
async fn enqueue_and_the_relay_agree_on_what_can_be_sent() {
    let (_database, client) = outbox().await;
    for (written, _) in refused() {
        let verdict = published(&client, &written).await;
        assert!(verdict.is_err(), "the relay would send {written:?}");
    }
    for written in accepted() {
        assert_eq!(enqueued(&client, &written).await, Ok(()), "{written:?}");
        assert_eq!(published(&client, &written).await, Ok(()), "{written:?}");
    }
}

#[tokio::test]
async fn every_argument_arrives_in_its_column() {
    let (_database, client) = outbox().await;
    let sql = "SELECT outbox.enqueue(payload => '{\"b\" : 1}', exchange => 'e', routing_key => 'r', \
               ordering_key => 'k', headers => '{\"h\": 1}', type => 't', correlation_id => 'c', \
               content_type => 'text/plain', properties => '{\"priority\": 3}', \
               available_at => '2030-01-01 00:00+00', message_id => 'invoice:842:send')";
    let id: String = client.query_one(sql, &[]).await.expect("enqueued").get(0);
    assert_eq!(id, "invoice:842:send");
    let sql = "SELECT concat_ws('|', message_id, exchange, routing_key, ordering_key, payload, \
               headers, type, correlation_id, content_type, properties, \
               available_at AT TIME ZONE 'UTC', attempts, retry_at, last_error, sent_at, id) \
               FROM outbox.message";
    let row: String = client.query_one(sql, &[]).await.expect("a row").get(0);
    assert_eq!(
        row,
        "invoice:842:send|e|r|k|{\"b\" : 1}|{\"h\": 1}|t|c|text/plain|{\"priority\": 3}|\
         2030-01-01 00:00:00|0|1"
    );
}

#[tokio::test]
async fn what_is_left_out_is_the_default() {
    let (_database, client) = outbox().await;
    let sql = "SELECT outbox.enqueue('1', exchange => NULL, routing_key => NULL)";
    let id: String = client.query_one(sql, &[]).await.expect("enqueued").get(0);
    assert_eq!(id.len(), 36, "a random UUID: {id}");
    let sql = "SELECT message_id, exchange || routing_key, ordering_key FROM outbox.message";
    let row = client.query_one(sql, &[]).await.expect("a row");
    assert_eq!(row.get::<_, String>(0), id);
    assert_eq!(row.get::<_, String>(1), "");
    assert_eq!(row.get::<_, Option<String>>(2), None);
}

#[tokio::test]
async fn a_null_payload_and_an_endless_delay_are_refused() {
    let (_database, client) = outbox().await;
    for (sql, words) in [
        ("SELECT outbox.enqueue(NULL)", "payload is NULL"),
        (
            "SELECT outbox.enqueue('1', available_at => 'infinity')",
            "available_at is infinite",
        ),
    ] {
        let error = client.batch_execute(sql).await.expect_err(sql);
        let answer = error.as_db_error().expect("an answer");
        assert_eq!(answer.code().code(), "22023");
        assert!(answer.message().contains(words), "{}", answer.message());
    }
}

#[tokio::test]
async fn a_plain_insert_always_works() {
    let (_database, client) = outbox().await;
    let sql = "INSERT INTO outbox.message (routing_key, payload, headers, properties) \
               VALUES (repeat('x', 300), '{}', '[]', '{\"expiration\": \"soon\"}')";
    client
        .batch_execute(sql)
        .await
        .expect("for the relay to judge");
}
