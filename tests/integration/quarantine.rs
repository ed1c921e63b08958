//! `outbox-relay quarantine`, as a process, with the operator's least rights.

use outbox_relay::commands::migrate::MigrateArgs;
use outbox_relay::store::postgres::schema::Payload;
use tokio_postgres::Client;

use crate::operator::{json, lines, operator, said};
use crate::outbox::{number, outbox, outbox_with};
use crate::queue::Queue;
use crate::support::rabbit::vhost;
use crate::support::relay::{Relay, Settings};
use crate::support::scratch::Scratch;

/// Quarantines rows 1 to `n`, of three keys, the even ones to exchange `even`.
async fn given_up(admin: &Client, n: i64) {
    let sql = format!(
        "INSERT INTO outbox.message (message_id, exchange, ordering_key, payload, headers) \
           SELECT 'm' || g, CASE WHEN g % 2 = 0 THEN 'even' ELSE '' END, 'k' || g % 3, \
             pg_catalog.json_build_object('secret', g), '{{\"h\": 1}}' \
           FROM generate_series(1, {n}) AS g; \
         INSERT INTO outbox.quarantine (id, message_id, exchange, routing_key, ordering_key, payload, \
             headers, created_at, attempts, xid, reason_class, reason, first_failed_at, last_failed_at) \
           SELECT id, message_id, exchange, routing_key, ordering_key, payload, headers, created_at, \
             3, xid, CASE WHEN id % 5 = 0 THEN 'refused' ELSE 'unroutable' END, 'because ' || id, \
             now(), now() FROM outbox.message; \
         DELETE FROM outbox.message"
    );
    admin.batch_execute(&sql).await.expect("rows");
}

async fn count(admin: &Client, table: &str) -> i64 {
    number(admin, &format!("SELECT count(*) FROM outbox.{table}")).await
}

#[tokio::test]
async fn rows_are_listed_by_what_they_have_in_common() {
    let (database, admin) = outbox().await;
    given_up(&admin, 10).await;
    admin
        .batch_execute(
            "UPDATE outbox.quarantine SET quarantined_at = now() - interval '3 h' WHERE id < 3",
        )
        .await
        .expect("older rows");
    let operator = operator(&database, &admin).await;
    for (filter, ids) in [
        ("", vec![10, 9, 8, 7, 6, 5, 4, 3, 2, 1]),
        ("--class refused", vec![10, 5]),
        ("--class refused --class unroutable --limit 2", vec![10, 9]),
        ("--exchange even --key k1", vec![10, 4]),
        ("--id 3 --message-id m7", vec![7, 3]),
        ("--older-than 2h", vec![2, 1]),
        ("--newer-than 2h --class refused", vec![10, 5]),
        ("--id 11", vec![]),
    ] {
        let filters = filter.split_whitespace();
        let arguments: Vec<_> = ["quarantine", "list"].into_iter().chain(filters).collect();
        let (code, object) = json(&operator, &arguments).await;
        let rows = object["rows"].as_array().expect("a list");
        let found: Vec<_> = rows.iter().filter_map(|row| row["id"].as_i64()).collect();
        assert_eq!((code, found), (0, ids), "{filter}");
        assert_eq!(object["more"], filter.contains("--limit"), "{filter}");
    }
    let (code, text) = said(&operator, &["quarantine", "list", "--limit", "3"]).await;
    assert_eq!(code, 0);
    assert!(text.contains("because 10"), "{text}");
    assert!(text.contains("more than 3"), "{text}");
    assert!(!text.contains("secret"), "{text}");
}

#[tokio::test]
async fn a_payload_is_shown_to_whoever_asks_for_it_and_for_nothing_else() {
    let (database, admin) = outbox().await;
    given_up(&admin, 2).await;
    let operator = operator(&database, &admin).await;
    let digest = "SELECT encode(sha256(convert_to(payload::text, 'UTF8')), 'hex') \
         FROM outbox.quarantine WHERE id = 2";
    let digest = lines(&admin, digest).await.remove(0);
    for id in ["2", "m2"] {
        let (code, text) = said(&operator, &["quarantine", "show", id]).await;
        assert_eq!(code, 0);
        for part in ["because 2", "even", &digest, r#"{"h":1}"#] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        assert!(!text.contains("secret"), "{text}");
    }
    let payload = said(&operator, &["quarantine", "show", "2", "--payload"]).await;
    assert_eq!(payload, (0, r#"{"secret" : 2}"#.to_owned()));
    let (_, object) = json(&operator, &["quarantine", "show", "m1"]).await;
    assert_eq!(object["rows"][0]["payload_bytes"], 14);
    let (code, text) = said(&operator, &["quarantine", "show", "3"]).await;
    assert_eq!(code, 1);
    assert!(text.contains("explain 3"), "{text}");
}

#[tokio::test]
async fn a_replayed_row_is_the_same_row_and_its_replay_is_on_record() {
    let (database, admin) = outbox().await;
    given_up(&admin, 12).await;
    let operator = operator(&database, &admin).await;
    let replay = ["quarantine", "replay", "--reason", "bound a queue"];
    let some = [&replay[..], &["--class", "unroutable", "--limit", "4"]].concat();
    let (code, object) = json(&operator, &[&some[..], &["--dry-run"]].concat()).await;
    assert_eq!(
        (code, &object["meant"], &object["rows"]),
        (0, &10.into(), &4.into())
    );
    assert_eq!(
        count(&admin, "quarantine").await,
        12,
        "a dry run changes nothing"
    );
    assert_eq!(count(&admin, "audit").await, 0);

    let (code, text) = said(&operator, &some).await;
    assert_eq!((code, text.as_str()), (0, "4 rows replayed"));
    let back = "SELECT concat_ws(' ', id, message_id, exchange, ordering_key, payload, headers, \
         attempts, retry_at, sent_at) FROM outbox.message ORDER BY id";
    let expected = |g: i64, exchange: &str, key: i64| {
        format!(r#"{g} m{g} {exchange} k{key} {{"secret" : {g}}} {{"h": 1}} 0"#)
    };
    let expected = [
        expected(1, "", 1),
        expected(2, "even", 2),
        expected(3, "", 0),
        expected(4, "even", 1),
    ];
    assert_eq!(lines(&admin, back).await, expected);
    let newer = "SELECT count(*) FROM outbox.message WHERE xid > (SELECT max(xid::text::bigint) \
         FROM outbox.quarantine)::text::xid8";
    assert_eq!(number(&admin, newer).await, 4, "the relay's tail sees them");
    let record = "SELECT concat_ws(' ', act, by_whom, reason, row_id, a.message_id, \
           detail->>'reason_class', version, login = $$operator_$$ || current_database(), \
           old_sha256 = sha256(convert_to(m.payload::text, 'UTF8')), new_sha256) \
         FROM outbox.audit AS a JOIN outbox.message AS m ON m.id = a.row_id ORDER BY row_id LIMIT 1";
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        lines(&admin, record).await,
        [format!(
            "replay ann bound a queue 1 m1 unroutable {version} t t"
        )]
    );

    let rest = [&replay[..], &["--by", "bob"]].concat();
    let (code, text) = said(&operator, &rest).await;
    assert_eq!((code, text.as_str()), (0, "8 rows replayed"));
    assert_eq!(count(&admin, "quarantine").await, 0);
    let by_bob = "SELECT count(*) FROM outbox.audit WHERE by_whom = 'bob'";
    assert_eq!(number(&admin, by_bob).await, 8);
}

#[tokio::test]
async fn what_cannot_be_replayed_stays_and_is_told() {
    let (database, admin) = outbox().await;
    given_up(&admin, 5).await;
    admin
        .batch_execute(
            "UPDATE outbox.quarantine SET created_at = now() - interval '31 d' WHERE id = 1; \
             UPDATE outbox.quarantine SET payload = NULL WHERE id = 2; \
             INSERT INTO outbox.message (id, payload) OVERRIDING SYSTEM VALUE VALUES (3, '1')",
        )
        .await
        .expect("obstacles");
    let operator = operator(&database, &admin).await;
    let replay = ["quarantine", "replay", "--reason", "again"];
    let (code, text) = said(&operator, &replay).await;
    assert_eq!(code, 1, "{text}");
    for part in [
        "2 rows replayed",
        "1 row stays: written more than 30d",
        "--beyond-window",
        "1 row stays: a row of the same id",
        "1 row stays: the payload is NULL",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let left = "SELECT id::text FROM outbox.quarantine ORDER BY id";
    assert_eq!(lines(&admin, left).await, ["1", "2", "3"]);
    let beyond = [&replay[..], &["--beyond-window", "--id", "1"]].concat();
    assert_eq!(said(&operator, &beyond).await.0, 0);
    assert_eq!(lines(&admin, left).await, ["2", "3"]);
}

async fn edited(payload: Payload, stored: &str, column: &str) {
    let (database, admin) = outbox_with(MigrateArgs {
        payload: Some(payload),
        ..MigrateArgs::default()
    })
    .await;
    let rows = format!(
        "INSERT INTO outbox.quarantine (id, message_id, exchange, routing_key, payload, created_at, \
           attempts, reason_class, reason, first_failed_at, last_failed_at) \
         SELECT g, 'm', '', '', {stored}, now(), 1, 'refused', 'r', now(), now() FROM generate_series(1, 2) g"
    );
    admin.batch_execute(&rows).await.expect("rows");
    let operator = operator(&database, &admin).await;
    let folder = Scratch::new("edited");
    let file = folder.path().join("body");
    std::fs::write(&file, r#"{"price": 7}"#).expect("a file");
    let file = file.to_str().expect("UTF-8");
    let replay = [
        "quarantine",
        "replay",
        "--reason",
        "typo",
        "--payload-file",
        file,
    ];
    let (code, text) = said(&operator, &replay).await;
    assert_eq!(code, 2, "two rows fit: {text}");
    let one = [&replay[..], &["--id", "2"]].concat();
    let (code, text) = said(&operator, &one).await;
    assert_eq!(code, 0, "{text}");
    let back = format!(
        "SELECT concat_ws(' ', {column}, old_sha256 = (SELECT sha256({bytes}) FROM outbox.quarantine), \
           new_sha256 = (SELECT sha256({bytes}) FROM outbox.message)) \
         FROM outbox.audit, outbox.message",
        bytes = column
            .replace("convert_from(payload, 'UTF8')", "payload")
            .replace("payload::text", "convert_to(payload::text, 'UTF8')"),
    );
    assert_eq!(lines(&admin, &back).await, [r#"{"price": 7} t t"#]);
}

#[tokio::test]
async fn an_edited_payload_is_recorded_by_the_digests_of_old_and_new() {
    edited(Payload::Json, "'{}'", "payload::text").await;
    edited(Payload::Jsonb, "'{}'", "payload::text").await;
    edited(Payload::Bytea, r"'\x00ff'", "convert_from(payload, 'UTF8')").await;
}

#[tokio::test]
async fn a_row_that_is_named_and_not_there_is_told_and_the_others_go() {
    let (database, admin) = outbox().await;
    given_up(&admin, 4).await;
    let operator = operator(&database, &admin).await;
    let told = |id: &str| format!("{id}: no row in quarantine with this id or message_id fits");
    for (act, ids) in [("replay", ["1", "m2"]), ("discard", ["3", "m4"])] {
        let [id, message_id] = ids;
        let named = ["--id", id, "--id", "99", "--message-id", message_id];
        let command = [&["quarantine", act, "--reason", "why"][..], &named[..]].concat();
        let (code, object) = json(&operator, &[&command[..], &["--dry-run"]].concat()).await;
        assert_eq!((code, &object["rows"]), (1, &2.into()));
        assert_eq!(object["absent"][0], "99");
        let (code, text) = said(&operator, &command).await;
        assert_eq!(code, 1, "{text}");
        assert!(text.contains(&told("99")), "{text}");
        assert!(text.contains("2 rows"), "the others go: {text}");
        // Named again it is gone, and a filter that does not fit is no way to it either.
        let (code, text) = said(&operator, &command).await;
        assert_eq!(code, 1, "{text}");
        for id in ids {
            assert!(text.contains(&told(id)), "{text}");
        }
    }
    assert_eq!(count(&admin, "quarantine").await, 0);
    assert_eq!(count(&admin, "message").await, 2);
}

#[tokio::test]
async fn a_class_that_there_is_not_is_refused_with_the_one_that_was_meant() {
    let (database, admin) = outbox().await;
    given_up(&admin, 1).await;
    let operator = operator(&database, &admin).await;
    for act in ["list", "replay", "discard"] {
        let reason: &[&str] = if act == "list" {
            &[]
        } else {
            &["--reason", "why"]
        };
        let command = [&["quarantine", act, "--class", "unroutabel"], reason].concat();
        let (code, text) = said(&operator, &command).await;
        assert_eq!(code, 2, "{text}");
        assert!(text.contains("'unroutable'"), "{text}");
    }
    assert_eq!(count(&admin, "quarantine").await, 1);
}

#[tokio::test]
async fn discarding_everything_has_to_be_asked_for() {
    let (database, admin) = outbox().await;
    given_up(&admin, 4).await;
    let operator = operator(&database, &admin).await;
    let discard = ["quarantine", "discard", "--reason", "test rows"];
    let (code, text) = said(&operator, &discard).await;
    assert_eq!(code, 2);
    assert!(text.contains("--all"), "{text}");
    let two = [&discard[..], &["--exchange", "even"]].concat();
    assert_eq!(
        said(&operator, &two).await,
        (0, "2 rows discarded".to_owned())
    );
    assert_eq!(count(&admin, "quarantine").await, 2);
    let all = [&discard[..], &["--all"]].concat();
    assert_eq!(
        said(&operator, &all).await,
        (0, "2 rows discarded".to_owned())
    );
    let record = "SELECT concat_ws(' ', act, row_id, detail->>'exchange', detail->>'reason', \
         length(old_sha256)) FROM outbox.audit ORDER BY row_id";
    assert_eq!(
        lines(&admin, record).await[1..3],
        ["discard 2 even because 2 32", "discard 3  because 3 32"]
    );
}

#[tokio::test]
async fn nobody_acts_without_a_name_and_a_reason() {
    let (database, admin) = outbox().await;
    given_up(&admin, 1).await;
    let operator = operator(&database, &admin).await;
    let arguments: [&[&str]; 3] = [
        &["--by", "ann"],
        &["--reason", " "],
        &["--by", " ", "--reason", "why"],
    ];
    for arguments in arguments {
        let arguments = [&["quarantine", "replay"], arguments].concat();
        let (code, text) = said(&operator, &arguments).await;
        assert_eq!(code, 2, "{text}");
    }
    assert_eq!(count(&admin, "quarantine").await, 1);
    // Where the environment does not tell, the system's list of users does, if he is in it.
    let nameless = operator.clone().with("LOGNAME", " ");
    let arguments = ["quarantine", "replay", "--reason", "why"];
    let (code, text) = said(&nameless, &arguments).await;
    let known = std::process::Command::new("id").arg("-un").output();
    let known = known.expect("id(1)");
    if !known.status.success() {
        assert_eq!(code, 2, "{text}");
        assert!(text.contains("--by is needed"), "{text}");
        return;
    }
    assert_eq!(code, 0, "{text}");
    let who: String = admin
        .query_one("SELECT by_whom FROM outbox.audit", &[])
        .await
        .expect("on record")
        .get(0);
    assert_eq!(who, String::from_utf8_lossy(&known.stdout).trim());
}

#[tokio::test]
async fn ten_thousand_rows_can_be_interrupted_and_go_on_without_one_lost_or_doubled() {
    let (database, admin) = outbox().await;
    given_up(&admin, 10_000).await;
    let operator = operator(&database, &admin).await;
    let replay = ["quarantine", "replay", "--reason", "again"];
    let slowly = [&replay[..], &["--rate", "500/s"]].concat();
    let process = Relay::start_with(&operator, &slowly);
    process.printed("of 10000 replayed").await;
    process.terminate();
    process.printed("Run the same command again").await;
    assert_eq!(process.ended().await.code(), Some(1));
    let first = count(&admin, "message").await;
    assert!((1..10_000).contains(&first), "{first}");
    assert_eq!(
        count(&admin, "audit").await,
        first,
        "each batch with its records"
    );
    let reached = "SELECT max(id) FROM outbox.message";
    assert_eq!(number(&admin, reached).await, first, "lowest ids first");
    assert_eq!(said(&operator, &replay).await.0, 0);
    assert_eq!(count(&admin, "quarantine").await, 0);
    let distinct = "SELECT count(DISTINCT row_id) FROM outbox.audit";
    assert_eq!(number(&admin, distinct).await, 10_000);
    assert_eq!(count(&admin, "audit").await, 10_000);
}

#[tokio::test]
async fn a_running_relay_sends_what_is_replayed_in_the_order_of_each_key() {
    let (database, admin) = outbox().await;
    given_up(&admin, 60).await;
    admin
        .batch_execute("UPDATE outbox.quarantine SET exchange = '', routing_key = 'q'")
        .await
        .expect("a destination");
    let operator = operator(&database, &admin).await;
    let vhost = vhost().await;
    let mut queue = Queue::behind(&vhost.url, "", "q").await;
    let relay = Relay::start(&Settings::new(&database.url, &vhost.url));
    relay.ready().await;
    let replay = ["quarantine", "replay", "--reason", "again"];
    assert_eq!(said(&operator, &replay).await.0, 0);
    let mut last = [0; 3];
    for _ in 0..60 {
        let (id, message_id) = queue.next().await;
        assert_eq!(message_id, format!("m{id}"));
        let last = &mut last[usize::try_from(id % 3).expect("an index")];
        assert!(*last < id, "{id} came after {last}");
        *last = id;
    }
    relay.stop().await;
}
