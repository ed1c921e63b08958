//! The contract of each function, one caller at a time.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::entries::{
    PAY, ask, claim, claim_for, claimed, complete, due, due_for, due_ids, entry, fail, inbox,
    number, renew, retry, state,
};
use crate::support::postgres::Database;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

#[tokio::test]
async fn a_done_message_is_a_duplicate_with_its_result_for_ever() {
    let (_database, client) = inbox().await;
    let owner = claimed(&client, "m", None).await;
    assert!(complete(&client, "m", owner).await);
    for _ in 0..2 {
        let again = claim(&client, "m", None).await;
        assert_eq!(again.outcome, "duplicate");
        assert_eq!(again.result, Some(json!({"paid": true})));
        assert_eq!((again.owner, again.attempt), (None, 1));
    }
    assert_eq!(entry(&client, "m").await["payload"], Value::Null);
}

#[tokio::test]
async fn an_answer_that_was_lost_may_be_asked_for_again_by_its_owner_alone() {
    let (_database, client) = inbox().await;
    let owner = claimed(&client, "m", None).await;
    assert!(complete(&client, "m", owner).await);
    assert!(
        complete(&client, "m", owner).await,
        "the same owner's result stands"
    );
    assert!(!complete(&client, "m", Uuid::new_v4()).await);
}

#[tokio::test]
async fn a_claim_that_is_held_is_busy_and_after_its_lease_taken_over() {
    let (_database, client) = inbox().await;
    let first = claimed(&client, "m", None).await;
    assert_eq!(claim(&client, "m", None).await.outcome, "busy");
    assert!(renew(&client, "m", first, "0s").await, "gives it up");
    let second = claim(&client, "m", None).await;
    assert_eq!((second.outcome.as_str(), second.attempt), ("taken_over", 2));
    assert_ne!(second.owner, Some(first));
}

#[tokio::test]
async fn a_late_owner_changes_nothing_and_is_told() {
    let (_database, client) = inbox().await;
    let late = claimed(&client, "m", None).await;
    assert!(renew(&client, "m", late, "0s").await);
    let owner = claim(&client, "m", None).await.owner.expect("taken over");
    let before = entry(&client, "m").await;
    assert!(!complete(&client, "m", late).await);
    assert!(!fail(&client, "m", late).await);
    assert!(!renew(&client, "m", late, "60s").await);
    for sql in [
        "SELECT inbox.release($1, 'm', $2)",
        "SELECT inbox.hold($1, 'm', $2)",
    ] {
        let told: bool = ask(&client, sql, &[&PAY, &late]).await[0].get(0);
        assert!(!told, "{sql}");
    }
    let sql = "SELECT inbox.retry($1, 'm', $2, 'late')";
    let error = client.query(sql, &[&PAY, &late]).await.expect_err("told");
    assert_eq!(error.code().map(SqlState::code), Some("OX001"));
    assert_eq!(entry(&client, "m").await, before);

    assert!(complete(&client, "m", owner).await);
    let done = entry(&client, "m").await;
    assert!(!complete(&client, "m", late).await);
    assert!(!fail(&client, "m", late).await);
    assert_eq!(entry(&client, "m").await, done);
}

#[tokio::test]
async fn attempts_end_in_dead_whoever_ends_them() {
    for ending in ["retry", "silence, then due", "silence, then a redelivery"] {
        let (_database, client) = inbox().await;
        let mut owner = claimed(&client, "m", None).await;
        for attempt in 1..=3 {
            assert_eq!(entry(&client, "m").await["attempt"], attempt);
            if ending == "retry" {
                let due_in = retry(&client, "m", owner, Some("0s")).await;
                assert_eq!(due_in.is_none(), attempt == 3);
            } else {
                assert!(renew(&client, "m", owner, "0s").await);
            }
            let next = match ending {
                "silence, then a redelivery" => claim(&client, "m", None).await.owner,
                _ => due(&client).await.first().map(|due| due.owner),
            };
            assert_eq!(next.is_none(), attempt == 3, "{ending}");
            owner = next.unwrap_or(owner);
        }
        let dead = entry(&client, "m").await;
        assert_eq!(
            (dead["state"].as_str(), dead["attempt"].as_i64()),
            (Some("dead"), Some(3))
        );
        let class = if ending == "retry" {
            "attempts_exhausted"
        } else {
            "abandoned"
        };
        assert_eq!(dead["reason_class"], class);
        assert_ne!(dead["first_failed_at"], Value::Null);
        assert_ne!(dead["payload"], Value::Null, "kept for a replay");
        assert_eq!(claim(&client, "m", None).await.outcome, "dead");
        assert!(due(&client).await.is_empty());
    }
}

#[tokio::test]
async fn a_permanent_failure_is_dead_at_once() {
    let (_database, client) = inbox().await;
    let owner = claimed(&client, "m", None).await;
    assert!(fail(&client, "m", owner).await);
    let dead = entry(&client, "m").await;
    assert_eq!(dead["state"], "dead");
    assert_eq!(
        (&dead["reason_class"], &dead["reason"]),
        (&json!("permanent"), &json!("no such account"))
    );
}

#[tokio::test]
async fn a_valid_retry_after_wins_and_an_invalid_one_does_not() {
    let (_database, client) = inbox().await;
    let configure = "SELECT inbox.configure($1, 99, '8s', 2, '1h', 0.25)";
    ask(&client, configure, &[&PAY]).await;
    for (number, (after, low, high)) in [
        (Some("7s"), 6.0, 7.0),
        (Some("0s"), -1.0, 0.0),
        (Some("2h"), 7199.0, 7200.0),
        (None, 5.9, 10.0),
        (Some("-1s"), 5.9, 10.0),
        (Some("400 days"), 5.9, 10.0),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("m{number}");
        let sql = "SELECT owner FROM inbox.claim($1, $2, '1m', 'x')";
        let owner: Uuid = ask(&client, sql, &[&PAY, &id]).await[0].get(0);
        let seconds = retry(&client, &id, owner, after)
            .await
            .expect("attempts are left");
        assert!((low..=high).contains(&seconds), "{after:?}: {seconds}");
    }
}

#[tokio::test]
async fn pauses_grow_to_their_limit_and_are_spread() {
    let (_database, client) = inbox().await;
    ask(
        &client,
        "SELECT inbox.configure($1, 2000, '1s', 2, '60s', 0.2)",
        &[&PAY],
    )
    .await;
    ask(&client, "SELECT inbox.claim($1, 'm', '1m', 'x')", &[&PAY]).await;
    let mut seen = Vec::new();
    for attempt in [1, 2, 3, 6, 7, 30, 1999] {
        let sql = "UPDATE inbox.message SET state = 'processing', owner = gen_random_uuid(), \
                   lease_until = now(), due_at = now(), attempt = $1 RETURNING owner";
        let owner: Uuid = ask(&client, sql, &[&attempt]).await[0].get(0);
        let seconds = retry(&client, "m", owner, None)
            .await
            .expect("attempts are left");
        let centre = 2f64.powi(attempt - 1).min(50.0);
        let range = centre * 0.79..=centre * 1.2;
        assert!(
            range.contains(&seconds),
            "attempt {attempt}: {seconds} not in {range:?}"
        );
        seen.push(seconds / centre);
    }
    seen.dedup_by(|a, b| (*a - *b).abs() < 1e-6);
    assert!(seen.len() > 1, "spread");
}

#[tokio::test]
async fn a_retry_is_not_handed_out_before_its_time() {
    let (_database, client) = inbox().await;
    let owner = claimed(&client, "m", None).await;
    retry(&client, "m", owner, Some("1h")).await;
    assert!(due(&client).await.is_empty());
    assert_eq!(claim(&client, "m", None).await.outcome, "waiting");
    ask(
        &client,
        "UPDATE inbox.message SET due_at = clock_timestamp()",
        &[],
    )
    .await;
    let handed = due(&client).await;
    assert_eq!(handed.len(), 1);
    assert_eq!(
        (handed[0].outcome.as_str(), handed[0].attempt),
        ("claimed", 2)
    );
    assert_eq!(handed[0].payload, b"body");
}

#[tokio::test]
async fn work_that_is_given_back_does_not_count() {
    let (_database, client) = inbox().await;
    for _ in 0..10 {
        let claim = claim(&client, "m", Some("k")).await;
        assert_eq!((claim.outcome.as_str(), claim.attempt), ("claimed", 1));
        ask(
            &client,
            "SELECT inbox.release($1, 'm', $2)",
            &[&PAY, &claim.owner],
        )
        .await;
    }
    assert_eq!(due_ids(&client).await, ["m"]);
}

#[tokio::test]
async fn the_envelope_is_kept_for_the_next_attempt() {
    let (_database, client) = inbox().await;
    let sql = "SELECT * FROM inbox.claim($1, 'm', '1ms', '\\x00ff', \
               '{\"x-outbox-key\": \"k\", \"schema-version\": \"7\"}', '{\"type\": \"paid\"}', 'shop', 'a.b')";
    ask(&client, sql, &[&PAY]).await;
    // By the database's clock the lease of a millisecond is over.
    ask(&client, "SELECT pg_sleep(0.01)", &[]).await;
    let sql = "SELECT to_jsonb(d) FROM inbox.due($1, 1, '60s') d";
    let due: Value = ask(&client, sql, &[&PAY]).await[0].get(0);
    for (name, value) in [
        ("outcome", json!("taken_over")),
        ("payload", json!("\\x00ff")),
        (
            "headers",
            json!({"x-outbox-key": "k", "schema-version": "7"}),
        ),
        ("properties", json!({"type": "paid"})),
        ("exchange", json!("shop")),
        ("routing_key", json!("a.b")),
        ("ordering_key", json!("k")),
        ("schema_version", json!("7")),
    ] {
        assert_eq!(due[name], value, "{name}");
    }
}

/// Statements, and a part of what is said to them.
const REFUSED: [(&str, &str); 13] = [
    (
        "SELECT inbox.claim('', 'm', '1s', 'x')",
        "must not be null or empty",
    ),
    (
        "SELECT inbox.claim('c', NULL, '1s', 'x')",
        "must not be null or empty",
    ),
    (
        "SELECT inbox.claim('c', 'm', '1s', NULL)",
        "payload must not be null",
    ),
    (
        "SELECT inbox.claim('c', 'm', '0s', 'x')",
        "longer than zero",
    ),
    (
        "SELECT inbox.claim('c', 'm', NULL, 'x')",
        "longer than zero",
    ),
    (
        "SELECT inbox.claim('c', 'm', '1s', 'x', max_attempts => 0)",
        "at least 1",
    ),
    (
        "SELECT inbox.claim('c', repeat('m', 1025), '1s', 'x')",
        "at most 255 and 1024",
    ),
    (
        "SELECT inbox.claim(repeat('c', 256), 'm', '1s', 'x')",
        "at most 255 and 1024",
    ),
    (
        "SELECT inbox.claim('c', 'm', '1s', 'x', '{\"x-outbox-key\": [1]}')",
        "x-outbox-key is not a text",
    ),
    (
        "SELECT inbox.configure('c', done_retention => '-1d', replay_window => '-2d')",
        "replay_window_not_negative",
    ),
    ("SELECT inbox.due('c', 1, '-1s')", "longer than zero"),
    (
        "SELECT inbox.configure('c', done_retention => '29d')",
        "shorter than replay_window",
    ),
    (
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT inbox.claim('c', 'm', '1s', 'x')",
        "READ COMMITTED",
    ),
];

#[tokio::test]
async fn what_cannot_be_meant_is_refused_with_a_reason() {
    let (_database, client) = inbox().await;
    for (sql, part) in REFUSED {
        let error = client.batch_execute(sql).await.expect_err(sql);
        let said = error.as_db_error().expect("an answer").message().to_owned();
        assert!(said.contains(part), "{sql}: {said}");
        client.batch_execute("ROLLBACK").await.expect("over");
    }
    assert_eq!(
        number(&client, "SELECT count(*) FROM inbox.message").await,
        0
    );
}

#[tokio::test]
async fn finished_entries_are_forgotten_after_their_time_and_others_never() {
    let (_database, client) = inbox().await;
    for id in ["old", "young"] {
        let owner = claimed(&client, id, None).await;
        complete(&client, id, owner).await;
    }
    let dead = claimed(&client, "dead", None).await;
    fail(&client, "dead", dead).await;
    claimed(&client, "running", None).await;
    let age = "UPDATE inbox.message SET received_at = now() - interval '36 d', \
               done_at = CASE WHEN done_at IS NULL THEN NULL ELSE now() - interval '36 d' END \
               WHERE message_id <> 'young'";
    ask(&client, age, &[]).await;
    let removed: i32 = ask(&client, "SELECT inbox.tidy($1)", &[&PAY]).await[0].get(0);
    assert_eq!(removed, 1);
    let left = "SELECT string_agg(message_id, ' ' ORDER BY message_id) FROM inbox.message";
    let left: String = ask(&client, left, &[]).await[0].get(0);
    assert_eq!(left, "dead running young");
}

async fn dead(client: &Client, id: &str, key: Option<&str>) {
    let owner = claimed(client, id, key).await;
    assert!(fail(client, id, owner).await);
}

async fn act(client: &Client, act: &str, id: &str) -> String {
    let sql = format!("SELECT inbox.{act}($1, $2, 'ann', 'mended')");
    ask(client, &sql, &[&PAY, &id]).await[0].get(0)
}

/// F67.
#[tokio::test]
async fn a_dead_message_is_replayed_once_and_a_second_replay_is_suppressed_and_recorded() {
    let (_database, client): (Database, Client) = inbox().await;
    dead(&client, "m", None).await;
    assert_eq!(act(&client, "replay", "m").await, "replayed");
    assert_eq!(act(&client, "replay", "m").await, "unfinished");
    let again = due(&client).await;
    assert_eq!(again.len(), 1);
    assert_eq!((again[0].message_id.as_str(), again[0].attempt), ("m", 1));
    assert!(complete(&client, "m", again[0].owner).await);
    assert_eq!(act(&client, "replay", "m").await, "suppressed");
    assert!(due(&client).await.is_empty());
    assert_eq!(act(&client, "replay", "unheard of").await, "missing");
    let audit = "SELECT string_agg(detail ->> 'outcome', ' ' ORDER BY audit_id) FROM inbox.audit \
                 WHERE act = 'replay' AND by_whom = 'ann' AND reason = 'mended' AND message_id = 'm'";
    let audit: String = ask(&client, audit, &[]).await[0].get(0);
    assert_eq!(audit, "replayed unfinished suppressed");
}

#[tokio::test]
async fn a_discarded_message_never_runs_and_its_copies_are_duplicates() {
    let (_database, client) = inbox().await;
    dead(&client, "m", None).await;
    assert_eq!(act(&client, "discard", "m").await, "discarded");
    assert_eq!(claim(&client, "m", None).await.outcome, "duplicate");
    assert_eq!(act(&client, "replay", "m").await, "suppressed");
    let entry = entry(&client, "m").await;
    assert_eq!(
        (&entry["reason_class"], &entry["payload"]),
        (&json!("discarded"), &Value::Null)
    );
    let digest = "SELECT detail ->> 'payload_sha256' = encode(sha256('body'), 'hex') FROM inbox.audit \
                  WHERE act = 'discard'";
    assert!(ask(&client, digest, &[]).await[0].get::<_, bool>(0));
    assert_eq!(state(&client, "m").await, "done");
}

#[tokio::test]
async fn a_message_whose_limit_was_lowered_meanwhile_does_not_run_past_it() {
    let (_database, client) = inbox().await;
    let owner = claimed(&client, "m", None).await;
    retry(&client, "m", owner, Some("0s")).await;
    ask(&client, "SELECT inbox.configure($1, 1)", &[&PAY]).await;
    assert!(due_for(&client, "60s").await.is_empty());
    let dead = entry(&client, "m").await;
    assert_eq!(
        (&dead["state"], &dead["attempt"]),
        (&json!("dead"), &json!(1))
    );
    assert_eq!(
        claim_for(&client, "other", None, "1s").await.outcome,
        "claimed"
    );
}
