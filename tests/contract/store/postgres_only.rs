//! What only PostgreSQL has: payload types, JSON columns, other columns, sessions that end.

use std::time::Duration;

use outbox_relay::config::OnSent;
use outbox_relay::message::Body;
use outbox_relay::relay::rules::Fetched;
use outbox_relay::store::{Announcement, Reader, Settler, Store, StoreError};
use tokio::time::timeout;

use super::alive::sign;
use super::on_postgres::OnPostgres;
use super::settling::{quarantine, sent};
use super::{New, Stage, first, noise, owner, read, reader, settler, told, wanted};
use crate::support::PATIENCE;

/// Inserts payloads given as SQL and returns the bodies that come with a read, and those that
/// are fetched.
async fn bodies(payload_type: &str, payloads: &[&str]) -> (Vec<Vec<u8>>, &'static str) {
    let stage = OnPostgres::with_payload(payload_type).await;
    for payload in payloads {
        let insert = format!("INSERT INTO outbox.message (payload) VALUES ({payload})");
        stage.client.batch_execute(&insert).await.expect(payload);
    }
    let mut reader = reader(&stage).await;
    let content_type = reader.content_type();
    let page = read(&mut reader, &first()).await.page;
    let ids = super::ids(&page);
    let bytes = |body: &Body| match body {
        Body::Bytes(bytes) => bytes.to_vec(),
        Body::Null | Body::Oversized(_) => panic!("{body:?}"),
    };
    let inline: Vec<Vec<u8>> = page
        .into_iter()
        .map(|found| bytes(&found.into_row().expect("small").payload))
        .collect();
    let fetched = reader.fetch(&wanted(&ids), 1 << 20).await.expect("fetched");
    for ((_, fetched), inline) in fetched.iter().zip(&inline) {
        let Fetched::Body(body) = fetched else {
            panic!("not brought")
        };
        assert_eq!(&bytes(body), inline, "fetched as it was read");
    }
    (inline, content_type)
}

#[tokio::test]
async fn json_is_brought_byte_for_byte() {
    let odd = [
        r#"{"a":1,  "a" : 2}"#,
        r#"{"n": 9007199254740993, "big": 1e400, "u": "\u0000 \ud83d\ude00 ü"}"#,
        " [ 1 ,\t2 ] ",
        "null",
        r#""""#,
    ];
    let payloads: Vec<String> = odd.iter().map(|text| format!("$${text}$$")).collect();
    let payloads: Vec<&str> = payloads.iter().map(String::as_str).collect();
    let (bodies, content_type) = bodies("json", &payloads).await;
    assert_eq!(bodies, odd.map(|text| text.as_bytes().to_vec()));
    assert_eq!(content_type, "application/json");
}

#[tokio::test]
async fn jsonb_is_brought_as_postgresql_writes_it() {
    let (bodies, content_type) =
        bodies("jsonb", &[r#"'{"b":1,"a":2,"b":9007199254740993}'"#]).await;
    assert_eq!(bodies, [br#"{"a": 2, "b": 9007199254740993}"#.to_vec()]);
    assert_eq!(content_type, "application/json");
}

#[tokio::test]
async fn text_is_brought_byte_for_byte() {
    let (bodies, content_type) = bodies("text", &["''", "E' ü\\n\\t🐇 '"]).await;
    assert_eq!(
        bodies,
        ["".as_bytes().to_vec(), " ü\n\t🐇 ".as_bytes().to_vec()]
    );
    assert_eq!(content_type, "text/plain; charset=utf-8");
}

#[tokio::test]
async fn bytea_is_brought_with_every_value_of_a_byte() {
    let all: Vec<u8> = (0..=u8::MAX).collect();
    let hex: String = all.iter().map(|byte| format!("{byte:02x}")).collect();
    let (bodies, content_type) = bodies("bytea", &[&format!("'\\x{hex}'"), "''"]).await;
    assert_eq!(bodies, [all, Vec::new()]);
    assert_eq!(content_type, "application/octet-stream");
}

#[tokio::test]
async fn a_large_json_is_measured_as_it_is_published() {
    let stage = OnPostgres::with_payload("json").await;
    // Compresses to next to nothing in the table.
    let insert = "INSERT INTO outbox.message (payload)
         SELECT to_json(repeat('ü', n)) FROM unnest(ARRAY[30000, 49999, 50000]) AS n";
    stage.client.batch_execute(insert).await.expect(insert);
    let mut reader = reader(&stage).await;
    let page = read(&mut reader, &first()).await.page;
    let fetched = reader
        .fetch(&wanted(&super::ids(&page)), 60_002)
        .await
        .expect("fetched");
    assert_eq!(
        told(&fetched),
        ["body 60002", "no room 100000", "oversized 100002"]
    );
}

#[tokio::test]
async fn columns_are_brought_as_they_are() {
    let stage = OnPostgres::with_payload("json").await;
    let insert = r#"INSERT INTO outbox.message
        (message_id, exchange, routing_key, ordering_key, payload, headers, type, correlation_id,
         content_type, properties)
        VALUES ('m:1', 'e', 'r', 'k', '{}', '{"z": 1.50, "a": [null, true, "x"]}', 't', 'c', 'x/y',
                '{"priority": 3}')
        RETURNING id, created_at"#;
    let row = stage.client.query_one(insert, &[]).await.expect(insert);
    let mut page = read(&mut reader(&stage).await, &first()).await.page;
    let found = page.pop().expect("one row").into_row().expect("small");
    assert_eq!((found.id.0, found.created_at), (row.get(0), row.get(1)));
    assert_eq!(
        (found.message_id.as_str(), found.exchange.as_str()),
        ("m:1", "e")
    );
    assert_eq!(
        (found.routing_key.as_str(), found.ordering_key.as_deref()),
        ("r", Some("k"))
    );
    let headers = r#"{"a": [null, true, "x"], "z": 1.50}"#;
    assert_eq!(found.headers.as_deref(), Some(headers));
    assert_eq!(found.properties.as_deref(), Some(r#"{"priority": 3}"#));
    assert_eq!(found.message_type.as_deref(), Some("t"));
    assert_eq!(found.correlation_id.as_deref(), Some("c"));
    assert_eq!(found.content_type.as_deref(), Some("x/y"));
    assert_eq!(found.attempts, 0);
}

#[tokio::test]
async fn quarantine_keeps_every_column() {
    let stage = OnPostgres::with_payload("json").await;
    let insert = r#"INSERT INTO outbox.message
        (message_id, exchange, routing_key, ordering_key, payload, headers, type, correlation_id,
         content_type, properties, available_at, attempts, retry_at, last_error)
        VALUES ('m:1', 'e', 'r', 'k', '{"a":  1}', '{"h": 1}', 't', 'c', 'x/y', '{"priority": 3}',
                '2020-01-01', 3, '2020-01-02', 'why')
        RETURNING id"#;
    let id: i64 = stage
        .client
        .query_one(insert, &[])
        .await
        .expect(insert)
        .get(0);
    let columns =
        "id, message_id, exchange, routing_key, ordering_key, payload::text, headers, type,
         correlation_id, content_type, properties, available_at, created_at, attempts, retry_at,
         last_error, sent_at, xid";
    let whole = async |table: &str| -> Option<String> {
        let select = format!("SELECT t::text FROM (SELECT {columns} FROM outbox.{table}) AS t");
        let row = stage.client.query_opt(&select, &[]).await.expect("a table");
        row.map(|row| row.get(0))
    };
    let before = whole("message").await;
    assert!(before.is_some());
    let id = outbox_relay::message::RowId(id);
    let report = owner(&stage).await.settle(&[quarantine(id, 1, "no")]).await;
    assert_eq!(report.expect("settled").written.len(), 1);
    assert_eq!(whole("quarantine").await, before);
    assert_eq!(whole("message").await, None);
}

#[tokio::test]
async fn a_sent_row_is_deleted_where_the_configuration_says_so() {
    let mut stage = OnPostgres::new().await;
    stage.store.on_sent = OnSent::Delete;
    let rows = stage.commit_small(2).await;
    let report = owner(&stage).await.settle(&[sent(rows[0], 1).await]).await;
    assert_eq!(report.expect("settled").written.len(), 1);
    assert_eq!(stage.stored(rows[0]).await, None);
    assert!(stage.stored(rows[1]).await.is_some());
}

#[tokio::test]
async fn a_terminated_session_is_told_with_its_reason() {
    let stage = OnPostgres::new().await;
    let (mut reader, mut settler) = (reader(&stage).await, settler(&stage).await);
    let terminate = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
         WHERE application_name LIKE 'outbox-relay/%' AND datname = current_database()";
    let ended: i64 = stage
        .client
        .query_one(terminate, &[])
        .await
        .expect(terminate)
        .get(0);
    assert_eq!(ended, 2);
    for error in [
        timeout(PATIENCE, reader.ended()).await.expect("told"),
        timeout(PATIENCE, settler.ended()).await.expect("told"),
    ] {
        assert!(matches!(error, StoreError::Unreachable(_)), "{error}");
        assert_eq!(error.sqlstate(), Some("57P01"), "{error}");
    }
}

#[tokio::test]
async fn a_missing_outbox_is_told_as_such() {
    let stage = OnPostgres::new().await;
    stage
        .client
        .batch_execute("DROP SCHEMA outbox CASCADE")
        .await
        .expect("dropped");
    let Err(error) = stage.store.open_reader().await else {
        panic!("opened")
    };
    assert!(matches!(error, StoreError::Schema(_)), "{error}");
    let Err(error) = stage.store.open_settler().await else {
        panic!("opened")
    };
    assert!(matches!(error, StoreError::Schema(_)), "{error}");
}

#[tokio::test]
async fn a_database_made_read_only_says_so_when_it_is_written_to() {
    let stage = OnPostgres::new().await;
    let rows = stage.commit_small(1).await;
    let mut settler = owner(&stage).await;
    let name = &stage.database.name;
    let read_only = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
    stage
        .client
        .batch_execute(&read_only)
        .await
        .expect("read-only");
    // Sessions that stand are not touched by it; new ones are refused.
    settler
        .settle(&[sent(rows[0], 1).await])
        .await
        .expect("settled");
    let Err(error) = stage.store.open_settler().await else {
        panic!("opened")
    };
    assert!(matches!(error, StoreError::ReadOnly(_)), "{error}");
}

#[tokio::test]
async fn a_statement_that_takes_too_long_is_told_and_the_session_lives() {
    let mut stage = OnPostgres::new().await;
    stage.store.statement_timeout = Duration::from_millis(300);
    // Longer than the statement may take.
    let slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
         -- The fault itself: longer than the statement may take.
         'BEGIN PERFORM pg_sleep(60); RETURN new; END';
         CREATE TRIGGER slow BEFORE UPDATE ON outbox.message
         FOR EACH ROW EXECUTE FUNCTION slow()";
    stage.client.batch_execute(slow).await.expect(slow);
    let rows = stage.commit_small(1).await;
    let mut settler = owner(&stage).await;
    let error = settler.settle(&[sent(rows[0], 1).await]).await;
    let error = error.expect_err("it sleeps");
    assert!(matches!(error, StoreError::TimedOut(_)), "{error}");
    let quick = "DROP TRIGGER slow ON outbox.message";
    stage.client.batch_execute(quick).await.expect(quick);
    let report = settler.settle(&[sent(rows[0], 2).await]).await;
    assert_eq!(report.expect("settled").written.len(), 1);
}

#[tokio::test]
async fn a_locked_table_is_told_as_busy_and_the_session_lives() {
    let mut stage = OnPostgres::new().await;
    stage.store.statement_timeout = Duration::from_millis(300);
    let rows = stage.commit_small(1).await;
    let mut settler = owner(&stage).await;
    let locker = stage.database.connect().await;
    let lock = "BEGIN; LOCK TABLE outbox.message IN EXCLUSIVE MODE";
    locker.batch_execute(lock).await.expect(lock);
    let error = settler.settle(&[sent(rows[0], 1).await]).await;
    let error = error.expect_err("it waits");
    assert!(matches!(error, StoreError::Retryable(_)), "{error}");
    locker.batch_execute("COMMIT").await.expect("unlocked");
    let report = settler.settle(&[sent(rows[0], 2).await]).await;
    assert_eq!(report.expect("settled").written.len(), 1);
}

#[tokio::test]
async fn a_body_that_postgresql_compressed_is_published_whole() {
    let stage = OnPostgres::with_payload("bytea").await;
    let row = stage
        .commit_each([New {
            payload: vec![7; 90_000],
            ..New::default()
        }])
        .await[0];
    let mut reader = reader(&stage).await;
    let fetched = reader.fetch(&wanted(&[row]), 1).await.expect("fetched");
    let [(_, Fetched::Body(Body::Bytes(bytes)))] = &fetched[..] else {
        panic!("not brought")
    };
    assert_eq!(bytes[..], vec![7; 90_000]);
    assert_ne!(bytes[..], noise(90_000));
}

/// The schema of the version before.
#[tokio::test]
async fn a_sign_of_life_is_given_where_there_is_no_place_for_what_is_held_back() {
    let stage = OnPostgres::new().await;
    let drop = "ALTER TABLE outbox.instance DROP COLUMN held_back";
    stage.client.batch_execute(drop).await.expect("dropped");
    let mut settler = settler(&stage).await;
    for _ in 0..2 {
        assert!(settler.announce(&sign(1)).await.expect("written"));
    }
    let measures = settler.measure().await.expect("measured");
    assert_eq!(measures.instances.len(), 1);
}

#[tokio::test]
async fn a_sign_of_life_waits_for_no_lock_and_sweeps_the_dead() {
    let stage = OnPostgres::new().await;
    let mut settler = settler(&stage).await;
    for instance in [1, 2, 3] {
        settler.announce(&sign(instance)).await.expect("written");
    }
    let age = "UPDATE outbox.instance SET heartbeat_at = now() - interval '61 minutes' \
         WHERE name = 'pod:7' AND instance <> '00000000-0000-0000-0000-000000000001'";
    stage.client.batch_execute(age).await.expect("aged");
    let other = stage.database.connect().await;
    let lock = "BEGIN; SELECT FROM outbox.instance WHERE instance IN \
         ('00000000-0000-0000-0000-000000000001', '00000000-0000-0000-0000-000000000002') \
         FOR UPDATE";
    other.batch_execute(lock).await.expect("locked");
    let renewed = Announcement {
        partitions: 1,
        ..sign(1)
    };
    // lock_timeout would end a wait with an error.
    settler.announce(&renewed).await.expect("no wait");
    let alive = stage.alive().await;
    let found: Vec<_> = alive
        .iter()
        .map(|sign| (sign.instance.as_u128(), sign.partitions))
        .collect();
    assert_eq!(
        found,
        [(1, 256), (2, 256)],
        "the locked ones are as they were"
    );
    other.batch_execute("ROLLBACK").await.expect("unlocked");
    settler.announce(&renewed).await.expect("renewed");
    let alive = stage.alive().await;
    assert_eq!(alive, [renewed]);
}

#[tokio::test]
async fn a_refused_sign_of_life_leaves_the_session_usable() {
    let stage = OnPostgres::new().await;
    let rows = stage.commit_small(1).await;
    let mut settler = settler(&stage).await;
    let drop = "ALTER TABLE outbox.instance RENAME TO away";
    stage.client.batch_execute(drop).await.expect("dropped");
    let refused = settler.announce(&sign(1)).await;
    assert!(matches!(refused, Err(StoreError::Schema(_))), "{refused:?}");
    let report = settler.settle(&[sent(rows[0], 1).await]).await;
    assert_eq!(report.expect("settled").written.len(), 1);
}
