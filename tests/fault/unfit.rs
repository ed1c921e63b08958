//! Rows that can never be sent as they are: they are found out before they reach a channel.

use crate::support::queues::Queues;
use crate::support::rabbit;
use crate::support::scene::{Draft, QUEUE, Scene};

/// The relay's connections, as the broker names them.
async fn connections(scene: &Scene) -> String {
    let list = format!(
        "rabbit_connection_tracking:list(<<\"{}\">>)",
        scene.vhost.name
    );
    rabbit::shared().await.eval(&list).await
}

/// Errors that the broker logged for the scene's virtual host.
async fn errors(scene: &Scene) -> Vec<String> {
    let log = rabbit::shared().await.log();
    let ours = |line: &String| line.contains("[error]") && line.contains(&scene.vhost.name);
    log.into_iter().filter(ours).collect()
}

/// The reason class and reason of every quarantined row, by id.
async fn reasons(scene: &Scene) -> Vec<(String, String)> {
    let select = "SELECT reason_class, reason FROM outbox.quarantine ORDER BY id";
    let rows = scene.client.query(select, &[]).await.expect(select);
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// Writes 100 good rows with these around them, waits for the end, and expects that the good
/// ones arrived, the connection is the same, and the broker had nothing to complain about.
async fn beside_good_rows(scene: &Scene, insert: &str, bad: i64) {
    let relay = scene.ready_relay().await;
    scene.write(&[Draft::to(QUEUE)]).await;
    scene.drained().await;
    let before = connections(scene).await;
    scene.write_many(50, 50).await;
    scene.run(insert).await;
    scene.write_many(50, 50).await;
    scene.drained().await;
    scene
        .until(&format!("SELECT count(*) = {bad} FROM outbox.quarantine"))
        .await;
    assert_eq!(connections(scene).await, before, "the same connections");
    assert_eq!(errors(scene).await, Vec::<String>::new());
    assert_eq!(relay.exit_status(), None);
    relay.stop().await;
    assert_eq!(scene.count("attempts > 0 OR retry_at IS NOT NULL").await, 0);
}

/// F4.
#[tokio::test]
async fn an_invalid_expiration_never_reaches_the_channel() {
    let scene = Scene::new().await;
    let insert = "INSERT INTO outbox.message (routing_key, payload, properties)
         VALUES ('q', '{}', '{\"expiration\": \"soon\"}')";
    beside_good_rows(&scene, insert, 1).await;
    let (class, reason) = &reasons(&scene).await[0];
    assert_eq!(class, "invalid_properties");
    assert!(
        reason.contains("expiration") && reason.contains("digits"),
        "{reason}"
    );
    assert_eq!(scene.judge().await.duplicates, 0);
}

/// F5.
#[tokio::test]
async fn names_that_are_too_long_are_refused_and_the_longest_allowed_is_sent() {
    let scene = Scene::new().await;
    let longest = "x".repeat(255);
    scene.queues.classic(&longest).await;
    let insert = format!(
        "INSERT INTO outbox.message (routing_key, payload, headers, type) VALUES
         ('{longest}', '{{}}', NULL, NULL),
         (repeat('x', 256), '{{}}', NULL, NULL),
         (repeat('é', 128), '{{}}', NULL, NULL),
         ('q', '{{}}', jsonb_build_object(repeat('h', 300), 1), NULL),
         ('q', '{{}}', NULL, repeat('t', 300))"
    );
    beside_good_rows(&scene, &insert, 4).await;
    let classes: Vec<String> = reasons(&scene)
        .await
        .into_iter()
        .map(|(class, _)| class)
        .collect();
    let expected = [
        "invalid_routing_key",
        "invalid_routing_key",
        "invalid_headers",
        "invalid_type",
    ];
    assert_eq!(classes, expected);
    assert_eq!(scene.queues.take_all(&longest).await.len(), 1);
    assert_eq!(scene.judge().await.duplicates, 0);
}

/// F6.
#[tokio::test]
async fn headers_larger_than_a_frame_are_refused_and_cost_no_connection() {
    let scene = Scene::new().await;
    let insert = "INSERT INTO outbox.message (routing_key, payload, headers)
         SELECT 'q', '{}', jsonb_object_agg('h' || n, repeat('x', 2000)) FROM generate_series(1, 100) AS n";
    beside_good_rows(&scene, insert, 1).await;
    let (class, reason) = &reasons(&scene).await[0];
    assert_eq!(class, "headers_too_large");
    assert!(
        reason.contains("131072") || reason.contains("131064"),
        "names the limit: {reason}"
    );
    assert_eq!(scene.judge().await.duplicates, 0);
}

/// F7.
#[tokio::test]
async fn a_payload_above_the_limit_is_quarantined_once_with_both_numbers() {
    let mut scene = Scene::new().await;
    scene.set("RELAY__MAX_MESSAGE_SIZE", "100KiB");
    // One that compresses to next to nothing in the table, and one that does not.
    let insert = "INSERT INTO outbox.message (routing_key, payload)
         SELECT 'q', to_json(repeat('x', 200000));
         INSERT INTO outbox.message (routing_key, payload)
         SELECT 'q', to_json(string_agg(md5(n::text), '')) FROM generate_series(1, 5000) AS n";
    beside_good_rows(&scene, insert, 2).await;
    for ((class, reason), size) in reasons(&scene).await.iter().zip(["200002", "160002"]) {
        assert_eq!(class, "too_large");
        assert!(
            reason.contains(size) && reason.contains("102400"),
            "{reason}"
        );
    }
    assert_eq!(scene.judge().await.duplicates, 0);
}

/// What RabbitMQ answers by closing the channel or the connection, in one row each.
#[tokio::test]
async fn what_the_broker_would_close_the_channel_for_never_reaches_it() {
    let scene = Scene::new().await;
    let insert = r#"INSERT INTO outbox.message
           (exchange, routing_key, message_id, payload, headers, properties) VALUES
         ('', 'q', '', '{}', NULL, NULL),
         ('', 'q', 'b', '{}', NULL, '{"reply_to": "amq.rabbitmq.reply-to"}'),
         ('', 'amq.rabbitmq.reply-to.g2dkABFyYWJiaXRAbG9jYWxob3N0AAAAAAAAAAAAAAAA.abc',
           'c', '{}', NULL, NULL),
         ('', 'q', 'd', '{}',
           '{"CC": ["amq.rabbitmq.reply-to.g2dkABFyYWJiaXRAbG9jYWxob3N0AAAAAAAAAAAAAAAA.abc"]}', NULL),
         ('amq.rabbitmq.trace', 'q', 'e', '{}', NULL, NULL),
         ('', 'q', 'f', '{}', NULL, '{"user_id": "somebody"}'),
         ('', 'q', 'g', '{}', NULL, '{"user_id": ""}'),
         ('', 'q', 'h', '{}', '{"CC": "q"}', NULL),
         ('', 'q', 'i', '{}', '{"BCC": null}', NULL),
         ('', 'q', 'j', '{}', NULL, '{"expiration": ""}'),
         ('', 'q', 'k', '{}', NULL, '{"expiration": "4294967296"}'),
         ('', 'q', 'l', '{}', NULL, '{"delivery_mode": 9}'),
         ('', 'q', 'm', '{}', NULL, '{"priority": 256}')"#;
    beside_good_rows(&scene, insert, 13).await;
    let expected = [
        ("invalid_message_id", "message_id is empty"),
        ("invalid_properties", "reply_to"),
        ("invalid_routing_key", "direct reply"),
        ("invalid_headers", "direct reply"),
        ("invalid_exchange", "the broker's own"),
        ("invalid_properties", "user_id"),
        ("invalid_properties", "user_id"),
        ("invalid_headers", "CC"),
        ("invalid_headers", "BCC"),
        ("invalid_properties", "expiration"),
        ("invalid_properties", "expiration"),
        ("invalid_properties", "delivery_mode"),
        ("invalid_properties", "priority"),
    ];
    for ((class, reason), (kind, word)) in reasons(&scene).await.iter().zip(expected) {
        assert_eq!(class, kind, "{reason}");
        assert!(reason.contains(word), "{reason}");
    }
    assert_eq!(scene.judge().await.duplicates, 0);
}

/// F30, on the way through: what the table holds is what the consumer gets.
#[tokio::test]
async fn payloads_arrive_byte_for_byte_whatever_their_size() {
    let scene = Scene::new().await;
    scene
        .run(
            "INSERT INTO outbox.message (routing_key, payload) VALUES
             ('q', '{\"a\":1,  \"a\" : 2}'), ('q', '{\"n\": 9007199254740993, \"big\": 1e400}'),
             ('q', ' [ \"\\u0000 ü 🐇\" ,\t2 ] '), ('q', 'null');
             INSERT INTO outbox.message (routing_key, payload)
             SELECT 'q', to_json(repeat('ü', size)) FROM unnest(ARRAY[900, 1100, 5000, 100000, 2000000]) AS size;
             INSERT INTO outbox.message (routing_key, payload)
             SELECT 'q', to_json(string_agg(md5(n::text), '')) FROM generate_series(1, 50000) AS n",
        )
        .await;
    scene.run_until_empty().await;
    let rows = scene
        .client
        .query(
            "SELECT id, payload::text FROM outbox.message ORDER BY id",
            &[],
        )
        .await
        .expect("rows");
    let queues = Queues::connect(&scene.vhost.url).await;
    let mut letters = queues.take_all(QUEUE).await;
    letters.sort_by_key(|letter| letter.id);
    assert_eq!(letters.len(), rows.len());
    for (letter, row) in letters.iter().zip(&rows) {
        assert_eq!(letter.id, row.get::<_, i64>(0));
        let stored: String = row.get(1);
        assert!(
            letter.body == stored.as_bytes(),
            "row {} differs",
            letter.id
        );
    }
}

/// A row to an exchange that the configuration does not allow never reaches the broker.
#[tokio::test]
async fn what_is_not_allowed_is_quarantined_and_the_rest_is_sent() {
    let mut scene = Scene::new().await;
    scene.set("RELAY__ALLOWED_EXCHANGES", "amq.*");
    scene.queues.bind(QUEUE, "amq.direct", "k").await;
    let relay = scene.ready_relay().await;
    scene
        .write(&[Draft::by("amq.direct", "k"), Draft::to(QUEUE)])
        .await;
    scene
        .until("SELECT count(*) = 1 FROM outbox.quarantine WHERE reason_class = 'not_allowed'")
        .await;
    scene.queues.reaches(QUEUE, 1).await;
    scene.drained().await;
    relay.stop().await;
    assert_eq!(scene.queues.take_all(QUEUE).await.len(), 1);
}

/// Reason, column, and a value that has it.
const FAULTS: [(&str, &str, &str); 13] = [
    ("invalid_exchange", "exchange", "repeat('e', 256)"),
    ("invalid_routing_key", "routing_key", "repeat('r', 256)"),
    ("invalid_message_id", "message_id", "repeat('m', 256)"),
    ("invalid_type", "type", "repeat('t', 256)"),
    (
        "invalid_correlation_id",
        "correlation_id",
        "repeat('c', 256)",
    ),
    ("invalid_content_type", "content_type", "repeat('c', 256)"),
    ("invalid_created_at", "created_at", "'1900-01-01'"),
    ("invalid_headers", "headers", "'[1]'"),
    ("invalid_headers", "headers", "'{\"n\": 1e400}'"),
    ("reserved_header", "headers", "'{\"x-outbox-id\": 1}'"),
    (
        "headers_too_large",
        "headers",
        "jsonb_build_object('h', repeat('h', 200000))",
    ),
    (
        "invalid_properties",
        "properties",
        "'{\"expiration\": \"soon\"}'",
    ),
    ("too_large", "payload", "to_json(repeat('x', 2000000))"),
];

/// A row whose only fault is this value; the others name it.
fn insert(place: usize, column: &str, value: &str) -> String {
    let note = format!("'fault {place}'");
    let usual = [
        ("routing_key", "'q'"),
        ("payload", "'{}'"),
        ("correlation_id", note.as_str()),
    ];
    let usual = usual.into_iter().filter(|(name, _)| *name != column);
    let (columns, values): (Vec<_>, Vec<_>) = usual.chain([(column, value)]).unzip();
    let (columns, values) = (columns.join(", "), values.join(", "));
    format!("INSERT INTO outbox.message ({columns}) VALUES ({values})")
}

/// Each reason that a row can hold in itself, beside a good row.
#[tokio::test]
async fn each_fault_of_a_row_has_its_reason_and_its_neighbours_are_sent() {
    let mut scene = Scene::new().await;
    scene.set("RELAY__MAX_MESSAGE_SIZE", "1MiB");
    let relay = scene.ready_relay().await;
    for (place, (_, column, value)) in FAULTS.iter().enumerate() {
        scene.run(&insert(place, column, value)).await;
        scene.flows(Draft::to(QUEUE)).await;
    }
    scene.drained().await;
    for (place, (reason, column, _)) in FAULTS.iter().enumerate() {
        let which = if *column == "correlation_id" {
            "correlation_id LIKE 'ccc%'".to_owned()
        } else {
            format!("correlation_id = 'fault {place}'")
        };
        let found = format!("SELECT reason_class FROM outbox.quarantine WHERE {which}");
        assert_eq!(scene.ask::<String>(&found).await, *reason, "{column}");
    }
    relay.stop().await;
    assert_eq!(scene.queues.take_all(QUEUE).await.len(), FAULTS.len());
}
