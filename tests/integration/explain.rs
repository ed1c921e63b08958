//! `outbox-relay explain`: every state that a row can be in, with the operator's least rights.

use serde_json::json;
use tokio_postgres::Client;

use crate::operator::{json, operator, said};
use crate::outbox::{outbox, until};
use crate::support::ports::Port;
use crate::support::postgres::Database;
use crate::support::queues::Queues;
use crate::support::rabbit::vhost;
use crate::support::relay::{Relay, Settings};

async fn write(admin: &Client, sql: &str) {
    let written = admin.batch_execute(sql).await;
    written.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

/// Asks for the row: exit code, state and everything said.
async fn explained(operator: &Settings, id: &str) -> (i32, String, String) {
    let (code, object) = json(operator, &["explain", id]).await;
    let rows = object["rows"].as_array().expect("a list");
    let states: Vec<_> = rows
        .iter()
        .filter_map(|row| row["state"].as_str())
        .collect();
    let (same, text) = said(operator, &["explain", id]).await;
    assert_eq!(code, same);
    (code, states.join(" "), text)
}

async fn is(operator: &Settings, id: &str, state: &str, parts: &[&str]) {
    let (code, found, text) = explained(operator, id).await;
    assert_eq!((code, found.as_str()), (0, state), "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains("secret"), "{text}");
}

const ROWS: &str = r#"
    INSERT INTO outbox.message (message_id, ordering_key, exchange, payload, sent_at, available_at,
        retry_at, attempts, last_error) VALUES
      ('sent', NULL, '', '"secret"', '2026-01-02 03:04:05Z', NULL, NULL, 0, NULL),
      ('later', 'k', '', '"secret"', NULL, '2126-01-02 03:04:05Z', NULL, 0, NULL),
      ('retry', 'k', '', '"secret"', NULL, NULL, '2126-05-06 07:08:09Z', 2, 'queue is full'),
      ('behind', 'k', '', '"secret"', NULL, NULL, NULL, 0, NULL),
      ('due', 'other', 'orders', '"secret"', NULL, NULL, NULL, 0, NULL),
      ('due', NULL, '', '"secret"', NULL, NULL, now(), 0, 'no queue');
    INSERT INTO outbox.quarantine (id, message_id, exchange, routing_key, payload, created_at, attempts,
        reason_class, reason, first_failed_at, last_failed_at, quarantined_at)
      VALUES (70, 'poison', '', '', '"secret"', now(), 1, 'refused', 'it is bad', now(), now(),
        '2026-02-03 04:05:06Z')"#;

/// An outbox with rows in every state.
async fn filled() -> (Database, Client, Settings) {
    let (database, admin) = outbox().await;
    write(&admin, ROWS).await;
    let operator = operator(&database, &admin).await;
    (database, admin, operator)
}

/// A relay that is alive.
const ALIVE: &str = "INSERT INTO outbox.instance (relation, instance, name, version, ready, heartbeat_at, \
     partitions) VALUES ('message', gen_random_uuid(), 'pod:1', '1', true, now() + interval '1 h', 256)";

#[tokio::test]
async fn what_a_row_itself_tells_is_told() {
    let (_database, _admin, operator) = filled().await;
    is(
        &operator,
        "sent",
        "sent",
        &[
            "was sent at 2026-01-02 03:04:05 UTC",
            "resend --since 2026-01-02T03:04:05Z --after=0 --limit 1 --reason WHY",
        ],
    )
    .await;
    is(&operator, "1", "sent", &["Row 1 (sent) was sent"]).await;
    is(
        &operator,
        "later",
        "scheduled",
        &["scheduled for 2126-01-02 03:04:05 UTC"],
    )
    .await;
    let poison = [
        "in quarantine since 2026-02-03 04:05:06 UTC",
        "refused: it is bad",
        "replay --id 70",
    ];
    is(&operator, "70", "quarantined", &poison).await;
    is(&operator, "poison", "quarantined", &poison).await;
    let (code, state, text) = explained(&operator, "absent").await;
    assert_eq!((code, state.as_str()), (1, ""), "{text}");
    let absent = "No row has the id or message_id absent";
    assert!(text.contains(absent), "{text}");
}

#[tokio::test]
async fn a_due_row_waits_for_relays_and_what_they_wait_for() {
    let (_database, admin, operator) = filled().await;
    let nobody = ["is due, and no relay runs.", "outbox-relay run"];
    is(&operator, "5", "no_relay", &nobody).await;
    // A relay that was stopped has not mended what the row was refused for.
    let refused = ["no relay runs; the last attempt failed: no queue."];
    is(&operator, "6", "no_relay", &refused).await;
    write(
        &admin,
        "INSERT INTO outbox.instance (relation, instance, name, version, ready, heartbeat_at, partitions) VALUES \
         ('message', gen_random_uuid(), 'pod:1', '1', true, now() - interval '1 min', 256)",
    )
    .await;
    let dead = ["no relay gives a sign of life: pod:1 was last seen at"];
    is(&operator, "5", "no_relay", &dead).await;
    let refused = ["UTC; the last attempt failed: no queue."];
    is(&operator, "6", "no_relay", &refused).await;
    write(
        &admin,
        "UPDATE outbox.instance SET heartbeat_at = now() + interval '1 h', ready = false, \
         waits_for = 'broker blocked: memory'; \
         INSERT INTO outbox.instance (relation, instance, name, version, ready, heartbeat_at) VALUES \
         ('message', gen_random_uuid(), 'stand-by:1', '1', true, now() + interval '1 h')",
    )
    .await;
    let waits = [
        "the relay pod:1 waits, as it said at",
        ": broker blocked: memory",
    ];
    is(&operator, "5", "relay_waits", &waits).await;
    write(&admin, "UPDATE outbox.instance SET ready = true").await;
    is(
        &operator,
        "5",
        "due",
        &["is due, and no relay holds its partition at the moment"],
    )
    .await;
    is(
        &operator,
        "due",
        "due due",
        &["the last attempt failed: no queue"],
    )
    .await;
}

/// Others are well; but the row is its owner's to send.
#[tokio::test]
async fn a_due_row_waits_for_the_relay_that_owns_its_partition() {
    let (_database, admin, operator) = filled().await;
    write(&admin, ALIVE).await;
    write(
        &admin,
        "INSERT INTO outbox.instance (relation, instance, name, version, ready, waits_for, heartbeat_at, \
           partitions, lease_for) VALUES \
         ('message', '00000000-0000-0000-0000-000000000001', 'owner:1', '1', false, \
          'broker disconnected: refused', now(), 256, '1 h'), \
         ('other', gen_random_uuid(), 'stranger:1', '1', true, NULL, now(), 256, '1 h'); \
         UPDATE outbox.lease SET owner = '00000000-0000-0000-0000-000000000001' WHERE relation = 'message'",
    )
    .await;
    let waits = [
        "the relay owner:1 waits, as it said at",
        ": broker disconnected: refused",
    ];
    is(&operator, "5", "relay_waits", &waits).await;
    let owner = "UPDATE outbox.instance SET ready = true WHERE name = 'owner:1'";
    write(&admin, owner).await;
    let sends = ["not confirmed yet by owner:1, which holds its partition"];
    is(&operator, "5", "due", &sends).await;
    let silent =
        "UPDATE outbox.instance SET heartbeat_at = now() - interval '1 min' WHERE name = 'owner:1'";
    write(&admin, silent).await;
    let silent = ["the relay owner:1, which holds its partition, was last seen at"];
    is(&operator, "5", "relay_silent", &silent).await;
    let (_, object) = json(&operator, &["status"]).await;
    let relays = object["instances"].as_array().expect("a list");
    assert_eq!(relays.len(), 2, "none of another outbox: {object}");
    let over = "UPDATE outbox.instance SET heartbeat_at = now() - interval '4 s', lease_for = '2 s' \
                WHERE name = 'owner:1'";
    write(&admin, over).await;
    is(
        &operator,
        "5",
        "due",
        &["is due, and no relay holds its partition at the moment"],
    )
    .await;
    let (_, object) = json(&operator, &["status"]).await;
    let relays = object["instances"].as_array().expect("a list");
    let dead = relays.iter().find(|one| one["alive"] == json!(false));
    assert_eq!(dead.expect("its lease is over")["name"], json!("owner:1"));
}

/// What the relay holds back is not said to be about to be sent.
#[tokio::test]
async fn a_row_that_its_relay_holds_back_is_told_with_the_relay_s_words() {
    let (_database, admin, operator) = filled().await;
    write(&admin, ALIVE).await;
    let told = |what: &str| {
        format!(
            "UPDATE outbox.instance SET held_back = '[{{{what}, \"for_seconds\": 72, \"why\": \"541, a list.\"}}]'"
        )
    };
    let elsewhere = r#""exchange": "orders", "routing_key": "elsewhere", "tried_by": null"#;
    write(&admin, &told(elsewhere)).await;
    is(&operator, "5", "due", &[]).await;
    let one = r#""exchange": "orders", "routing_key": "", "tried_by": null"#;
    write(&admin, &told(one)).await;
    let words = ["pod:1 has held back rows to its destination for 1m 12s: 541, a list."];
    is(&operator, "5", "held_back", &words).await;
    let all = r#""exchange": "orders", "routing_key": null, "tried_by": 3"#;
    write(&admin, &told(all)).await;
    let words =
        ["rows to its exchange for 1m 12s: 541, a list; row 3 tries it, and the others follow."];
    is(&operator, "5", "held_back", &words).await;
    write(
        &admin,
        &told(r#""fate": "waits", "ids": [4, 5], "rows": 2"#),
    )
    .await;
    let words = [
        "is to wait for another attempt, says pod:1, which cannot write that down (of some rows for 1m 12s): 541",
    ];
    is(&operator, "5", "unmarked", &words).await;
    let (_, object) = json(&operator, &["explain", "5"]).await;
    assert_eq!(object["rows"][0]["held_back"]["ids"], json!([4, 5]));
    let (_, text) = said(&operator, &["status"]).await;
    assert!(
        text.contains("marks of 2 rows refused, from 4 on"),
        "{text}"
    );
    let dead = "UPDATE outbox.instance SET heartbeat_at = now() - interval '1 min'";
    write(&admin, dead).await;
    is(&operator, "5", "no_relay", &[]).await;
    let (_, text) = said(&operator, &["status"]).await;
    assert!(!text.contains("marks of"), "{text}");
}

/// It was sent and somebody holds it locked: neither is it about to be sent, nor is that idleness.
#[tokio::test]
async fn a_row_that_cannot_be_marked_is_told_apart_from_one_that_is_due() {
    let (database, admin) = outbox().await;
    let operator = operator(&database, &admin).await;
    let broker = vhost().await;
    let queues = Queues::connect(&broker.url).await;
    queues.classic("q").await;
    let rows = "INSERT INTO outbox.message (routing_key, ordering_key, payload) \
         VALUES ('q', 'k', '1'), ('q', 'k', '2')";
    write(&admin, rows).await;
    let locker = database.connect().await;
    write(&locker, "BEGIN; SELECT FROM outbox.message FOR UPDATE").await;
    let relay = Relay::start(&Settings::new(&database.url, &broker.url));
    until(
        &admin,
        "SELECT EXISTS (SELECT FROM outbox.instance WHERE held_back IS NOT NULL)",
    )
    .await;
    let words = ["was sent by", "holds them locked", "pg_locks"];
    is(&operator, "1", "unmarked", &words).await;
    // It went out although the first of its key is not marked.
    is(&operator, "2", "unmarked", &words).await;
    let (_, text) = said(&operator, &["status"]).await;
    assert!(text.contains("marks of 2 rows sent, from 1 on"), "{text}");
    write(&locker, "COMMIT").await;
    until(
        &admin,
        "SELECT NOT EXISTS (SELECT FROM outbox.instance WHERE held_back IS NOT NULL)",
    )
    .await;
    is(&operator, "1", "sent", &[]).await;
    relay.stop().await;
}

/// Each of them has its reason; and when they take all the room there is, the others are told so.
#[tokio::test]
async fn rows_that_the_database_refuses_to_mark_are_told_with_the_reason_of_each() {
    let (database, admin) = outbox().await;
    let operator = operator(&database, &admin).await;
    let broker = vhost().await;
    let queues = Queues::connect(&broker.url).await;
    queues.classic("q").await;
    write(
        &admin,
        "CREATE FUNCTION outbox.veto() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           IF NEW.id % 2 = 0 THEN RAISE EXCEPTION 'no' USING ERRCODE = 'UEVEN'; END IF;
           RAISE EXCEPTION 'no' USING ERRCODE = 'UODDS'; END $$;
         CREATE TRIGGER veto BEFORE UPDATE ON outbox.message FOR EACH ROW
         WHEN (OLD.id <= 60) EXECUTE FUNCTION outbox.veto();
         INSERT INTO outbox.message (routing_key, payload) SELECT 'q', '1' FROM generate_series(1, 80)",
    )
    .await;
    let small = Settings::new(&database.url, &broker.url)
        .with("OUTBOX_RELAY__RELAY__MAX_IN_FLIGHT", "10")
        .with("OUTBOX_RELAY__RELAY__BATCH_SIZE", "10");
    let relay = Relay::start(&small);
    let told = |what: &str| {
        format!("SELECT EXISTS (SELECT FROM outbox.instance WHERE held_back::text LIKE '%{what}%')")
    };
    for what in ["UEVEN", "UODDS", "unmarked"] {
        until(&admin, &told(what)).await;
    }
    is(&operator, "2", "unmarked", &["was sent by", "UEVEN"]).await;
    is(&operator, "3", "unmarked", &["was sent by", "UODDS"]).await;
    let words = ["is due", "has been unable", "outbox-relay status for what"];
    is(&operator, "80", "held_back", &words).await;
    let (_, text) = said(&operator, &["status"]).await;
    assert!(text.contains("all rows that are not in memory"), "{text}");
    write(&admin, "DROP TRIGGER veto ON outbox.message").await;
    let all = "SELECT NOT EXISTS (SELECT FROM outbox.message WHERE sent_at IS NULL)";
    until(&admin, all).await;
    relay.stop().await;
    assert_eq!(queues.length("q").await, 80);
}

/// Whoever writes an id by hand can write one that no relay looks for; and a name can hold what moves
/// the cursor of a terminal.
#[tokio::test]
async fn a_row_that_is_never_read_is_told_so_and_no_name_reaches_the_terminal_raw() {
    let (_database, admin, operator) = filled().await;
    write(
        &admin,
        "INSERT INTO outbox.message (id, message_id, payload) OVERRIDING SYSTEM VALUE
         VALUES (-7, E'a\x1b[2J\nb', '1')",
    )
    .await;
    is(
        &operator,
        "-7",
        "never_read",
        &["will not be sent: its id is below 1"],
    )
    .await;
    let (_, text) = said(&operator, &["explain", "-7"]).await;
    assert!(text.contains("(a\u{fffd}[2J\u{fffd}b)"), "{text:?}");
}

/// The one that was heard of last, whatever another had said of itself before.
#[tokio::test]
async fn of_relays_that_fell_silent_the_last_is_named() {
    let (_database, admin, operator) = filled().await;
    write(
        &admin,
        "INSERT INTO outbox.instance (relation, instance, name, version, ready, heartbeat_at, partitions)
         VALUES ('message', gen_random_uuid(), 'pod:old', '1', true, now() - interval '30 min', 256),
           ('message', gen_random_uuid(), 'pod:new', '1', false, now() - interval '1 min', 0)",
    )
    .await;
    is(&operator, "5", "no_relay", &["pod:new"]).await;
}

/// Relays live, and cannot say so.
#[tokio::test]
async fn a_database_that_accepts_no_writes_is_told_and_not_that_no_relay_runs() {
    let (database, admin, operator) = filled().await;
    let name: String = admin
        .query_one("SELECT current_database()::text", &[])
        .await
        .expect("a name")
        .get(0);
    let read_only = format!("ALTER DATABASE \"{name}\" SET default_transaction_read_only = on");
    write(&admin, &read_only).await;
    let words = [
        "the database accepts no writes",
        "no relay can give a sign of life",
    ];
    is(&operator, "5", "read_only", &words).await;
    let words = ["if the database accepts writes again by then"];
    is(&operator, "retry", "retry", &words).await;
    let (_, text) = said(&operator, &["status"]).await;
    assert!(text.contains("The database accepts no writes"), "{text}");
    drop(database);
}

#[tokio::test]
async fn a_row_behind_another_waits_for_what_that_one_waits_for() {
    let (_database, admin, operator) = filled().await;
    let words = ["if a relay runs by then", "Start one"];
    is(&operator, "retry", "retry", &words).await;
    write(&admin, ALIVE).await;
    let retry = [
        "tried again at 2126-05-06 07:08:09 UTC; 2 attempts",
        "queue is full",
    ];
    is(&operator, "retry", "retry", &retry).await;
    let behind = [
        "waits behind row 3 of its ordering key k, which is tried again at",
        "queue is full",
    ];
    is(&operator, "behind", "behind", &behind).await;
    let (_, object) = json(&operator, &["explain", "behind"]).await;
    assert_eq!(object["rows"][0]["behind"]["id"], json!(3));
}

#[tokio::test]
async fn a_paused_row_names_who_paused_it() {
    let (_database, admin, operator) = filled().await;
    write(&admin, ALIVE).await;
    let pause = ["pause", "--exchange", "orders", "--reason", "deploy"];
    assert_eq!(said(&operator, &pause).await.0, 0);
    is(
        &operator,
        "5",
        "paused",
        &[
            "ann paused its exchange at",
            ": deploy.",
            "--exchange 'orders'",
        ],
    )
    .await;
    is(&operator, "6", "due", &[]).await;
    assert_eq!(
        said(&operator, &["pause", "--reason", "upgrade"]).await.0,
        0
    );
    is(
        &operator,
        "6",
        "paused",
        &[
            "ann paused everything at",
            "outbox-relay resume --reason WHY",
        ],
    )
    .await;
}

#[tokio::test]
async fn a_relay_without_a_broker_is_named_with_what_it_waits_for() {
    let (database, admin) = outbox().await;
    write(&admin, "INSERT INTO outbox.message (payload) VALUES ('1')").await;
    let operator = operator(&database, &admin).await;
    let nobody = Port::take();
    let dead = format!("amqp://guest:guest@127.0.0.1:{}", nobody.number());
    let relay = Relay::start(&Settings::new(&database.url, &dead));
    let waits = "SELECT EXISTS (SELECT FROM outbox.instance WHERE waits_for LIKE '%refused%')";
    until(&admin, waits).await;
    is(
        &operator,
        "1",
        "relay_waits",
        &["broker disconnected", "refused"],
    )
    .await;
    relay.stop().await;
}

#[tokio::test]
async fn a_row_that_reaches_no_queue_is_explained_by_the_broker_s_words() {
    let (database, admin) = outbox().await;
    let operator = operator(&database, &admin).await;
    let relay = Relay::start(
        &Settings::new(&database.url, &vhost().await.url)
            .with("OUTBOX_RELAY__RETRY__INITIAL", "10m")
            .with("OUTBOX_RELAY__RETRY__MAX_DELAY", "20m"),
    );
    relay.ready().await;
    write(
        &admin,
        "INSERT INTO outbox.message (payload, routing_key) VALUES ('1', 'nowhere')",
    )
    .await;
    until(&admin, "SELECT retry_at IS NOT NULL FROM outbox.message").await;
    is(&operator, "1", "retry", &["NO_ROUTE", "bind a queue"]).await;
    relay.stop().await;
}

/// One row tries a destination that refuses; the others of it are not about to be sent.
#[tokio::test]
async fn a_row_whose_destination_refuses_another_is_said_to_wait_for_it() {
    let (database, admin) = outbox().await;
    let operator = operator(&database, &admin).await;
    let broker = vhost().await;
    let relay = Relay::start(
        &Settings::new(&database.url, &broker.url)
            .with("OUTBOX_RELAY__RETRY__INITIAL", "10m")
            .with("OUTBOX_RELAY__RETRY__MAX_DELAY", "20m"),
    );
    relay.ready().await;
    until(&admin, "SELECT bool_and(ready) FROM outbox.instance").await;
    for (id, destination) in [(1, "'', 'absent'"), (3, "'missing', 'a'")] {
        let row = format!(
            "INSERT INTO outbox.message (exchange, routing_key, payload) VALUES ({destination}, '1')"
        );
        write(&admin, &row).await;
        let refused = format!("SELECT retry_at IS NOT NULL FROM outbox.message WHERE id = {id}");
        until(&admin, &refused).await;
        write(&admin, &row.replace("'a'", "'b'")).await;
    }
    let words = ["row 1 of the same", "NO_ROUTE", "tried again at"];
    is(&operator, "2", "destination", &words).await;
    let words = ["row 3 of the same", "404", "`missing`"];
    is(&operator, "4", "destination", &words).await;
    relay.stop().await;
}
