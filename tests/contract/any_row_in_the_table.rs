//! Any row that PostgreSQL takes either arrives at a consumer as it was written, or is in quarantine
//! with its reason: never is a channel closed over it, and no row is left over.

use std::collections::BTreeMap;

use outbox_relay::message::{Body, OutboxRow, Publication, RowId, Rules};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use crate::on_rabbitmq::{OnRabbitMq, shared};
use crate::publisher_any_row::{END, assert_same, take_everything};
use crate::rows::rules;
use crate::support::postgres::database;
use crate::support::relay::{Settings, run};
use crate::support::scene::Scene;

const ROWS: usize = 600;

/// `relay.max_message_size` in this test.
const LARGEST: u64 = 1024;

#[tokio::test]
async fn any_row_of_the_table_arrives_as_it_was_written_or_is_quarantined_with_a_reason() {
    let stage = OnRabbitMq::start().await;
    let scene = scene(&stage).await;
    take_everything(&stage).await;
    let relay = scene.ready_relay().await;
    let before = publishing_channels(&scene).await;
    let written = write_any_rows(&scene.client).await;
    assert!(written.len() > ROWS / 2, "only {} of {ROWS}", written.len());
    scene.drained().await;
    assert_eq!(publishing_channels(&scene).await, before, "the same ones");
    let mut refused = reasons(&scene.client).await;
    let insert = "INSERT INTO outbox.message (routing_key, payload) VALUES ('q', $1)";
    scene
        .client
        .execute(insert, &[&END])
        .await
        .expect("the end");

    let mut arrived = BTreeMap::new();
    for delivery in stage.consume_up_to("q", END).await {
        let id = crate::publisher_amqp::row_id(&delivery);
        assert!(arrived.insert(id, delivery).is_none(), "{id} came twice");
    }
    for row in &written {
        let refusal = refused.remove(&row.id);
        match (Publication::from_row(row.clone(), &our_rules()), refusal) {
            (Err(unfit), Some((class, reason))) => {
                assert_eq!(
                    (class.as_str(), reason),
                    (unfit.class.as_str(), unfit.reason)
                );
            }
            (Ok(_), Some((class, reason))) => {
                let late = ["destination_refused", "unroutable"];
                assert!(late.contains(&class.as_str()), "{row:?}: {class}: {reason}");
                assert_ne!(row.exchange, "all", "{row:?} has a destination: {reason}");
            }
            (Ok(publication), None) => match arrived.get(&row.id) {
                Some(delivery) => {
                    assert_same(&publication, delivery);
                    assert_eq!(Body::Bytes(delivery.data.clone().into()), row.payload);
                }
                None => assert!(
                    publication.properties().expiration.is_some(),
                    "{row:?} is sent and did not arrive"
                ),
            },
            (Err(unfit), None) => panic!("{row:?} was sent: {unfit}"),
        }
    }
    relay.stop().await;
    assert_eq!(scene.count("attempts > 0").await, 0);
}

async fn scene(stage: &OnRabbitMq) -> Scene {
    let database = database().await;
    let url = database.url.clone();
    let bytea = ["migrate", "--database-url", &url, "--payload", "bytea"];
    let (status, output) = run(&Settings::default(), &bytea).await;
    assert!(status.success(), "{status}: {}", output.join("\n"));
    let mut scene = Scene::on(url, stage.vhost.clone()).await;
    scene.keep(database);
    for (name, value) in [
        ("RELAY__MAX_MESSAGE_SIZE", "1KiB"),
        ("RETRY__INITIAL", "200ms"),
        ("RETRY__MAX_DELAY", "1s"),
        ("RETRY__UNROUTABLE_AFTER", "1s"),
        ("RETRY__DESTINATION_AFTER", "1s"),
    ] {
        scene.set(name, value);
    }
    scene
}

fn our_rules() -> Rules {
    Rules {
        max_message_size: LARGEST,
        login: Some("guest".to_owned()),
        default_content_type: "application/octet-stream",
        ..rules()
    }
}

/// Channels in confirm mode, by the broker's names for them. The one that asks for exchanges may be
/// closed and opened again.
async fn publishing_channels(scene: &Scene) -> String {
    let list = format!(
        "lists:sort([P || [{{pid, P}}, {{vhost, V}}, {{confirm, true}}] <- \
         rabbit_channel:info_all([pid, vhost, confirm]), V =:= <<\"{}\">>])",
        scene.vhost.name
    );
    shared().await.eval(&list).await
}

/// Where a row goes: mostly to somebody who takes everything.
fn directed(number: usize, row: &mut OutboxRow) {
    match number % 12 {
        0 => {}
        1 => row.exchange.clear(),
        2 => {
            row.exchange.clear();
            "q".clone_into(&mut row.routing_key);
        }
        // RabbitMQ takes line ends off a name that is declared, and not off one published to.
        3 => "all\r\n".clone_into(&mut row.exchange),
        _ => "all".clone_into(&mut row.exchange),
    }
}

/// Writes rows of every kind; those that PostgreSQL took, as it has them.
async fn write_any_rows(client: &Client) -> Vec<OutboxRow> {
    let mut runner = TestRunner::deterministic();
    let any_row = crate::message::any_row::any_row();
    let mut written = Vec::new();
    for number in 0..ROWS {
        let mut row = any_row.new_tree(&mut runner).expect("a row").current();
        directed(number, &mut row);
        if let Some(id) = write(client, &row).await {
            row.id = id;
            written.push(read_back(client, row).await);
        }
    }
    written
}

/// `None` if PostgreSQL refuses it: U+0000 in a text, JSON that is none, NULL as payload.
async fn write(client: &Client, row: &OutboxRow) -> Option<RowId> {
    let payload = match &row.payload {
        Body::Bytes(bytes) => Some(bytes.to_vec()),
        Body::Null | Body::Oversized(_) => None,
    };
    let insert = "WITH new AS (INSERT INTO outbox.message (message_id, exchange, routing_key, \
           ordering_key, payload, headers, type, correlation_id, content_type, properties, created_at) \
         VALUES ($1, $2, $3, $4, $5, $6::text::jsonb, $7, $8, $9, $10::text::jsonb, $11) RETURNING *) \
         INSERT INTO written SELECT id, headers::text, properties::text, created_at FROM new RETURNING id";
    client
        .batch_execute(
            "CREATE TEMP TABLE IF NOT EXISTS written \
             (id bigint, headers text, properties text, created_at timestamptz)",
        )
        .await
        .expect("a table");
    let values: [&(dyn ToSql + Sync); 11] = [
        &row.message_id,
        &row.exchange,
        &row.routing_key,
        &row.ordering_key,
        &payload,
        &row.headers,
        &row.message_type,
        &row.correlation_id,
        &row.content_type,
        &row.properties,
        &row.created_at,
    ];
    let inserted = client.query_one(insert, &values).await;
    inserted.ok().map(|row| RowId(row.get(0)))
}

/// `jsonb` keeps neither spacing nor the order of names.
async fn read_back(client: &Client, row: OutboxRow) -> OutboxRow {
    let select = "SELECT headers, properties, created_at FROM written WHERE id = $1";
    let stored = client.query_one(select, &[&row.id.0]).await.expect(select);
    OutboxRow {
        headers: stored.get(0),
        properties: stored.get(1),
        created_at: stored.get(2),
        ..row
    }
}

async fn reasons(client: &Client) -> BTreeMap<RowId, (String, String)> {
    let select = "SELECT id, reason_class, reason FROM outbox.quarantine";
    let rows = client.query(select, &[]).await.expect(select);
    let reason = |row: &tokio_postgres::Row| (RowId(row.get(0)), (row.get(1), row.get(2)));
    rows.iter().map(reason).collect()
}
