//! `outbox-relay inbox` and `outbox-relay topology` as real processes.

use serde_json::Value;

use crate::entries::{PAY, ask, claim, claimed, complete, due, fail, inbox, number, state};
use crate::support::postgres::Database;
use crate::support::relay::{self, Settings};

/// Exit code and output.
async fn run(database: &Database, arguments: &[&str]) -> (Option<i32>, String) {
    let settings = Settings::default()
        .with("DATABASE_URL", &database.url)
        .with("LOGNAME", "ann");
    let (status, output) = relay::run(&settings, arguments).await;
    (status.code(), output.join("\n"))
}

async fn json(database: &Database, arguments: &[&str]) -> Value {
    let (code, output) = run(database, arguments).await;
    assert_eq!(code, Some(0), "{output}");
    let value: Value = serde_json::from_str(&output).unwrap_or_else(|_| panic!("{output}"));
    assert_eq!(value["version"], 1);
    value
}

/// Two dead entries, one done, one waiting.
async fn some_entries() -> (Database, tokio_postgres::Client) {
    let (database, client) = inbox().await;
    for id in ["dead1", "dead2"] {
        let owner = claimed(&client, id, None).await;
        fail(&client, id, owner).await;
    }
    let owner = claimed(&client, "done", None).await;
    complete(&client, "done", owner).await;
    claimed(&client, "running", Some("k")).await;
    claim(&client, "waiting", Some("k")).await;
    (database, client)
}

#[tokio::test]
async fn status_list_and_show_tell_people_and_scripts() {
    let (database, _client) = some_entries().await;
    let (code, text) = run(&database, &["inbox", "status"]).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.lines()
            .any(|line| line.contains("dead") && line.contains("permanent") && line.contains('2')),
        "{text}"
    );
    let status = json(&database, &["inbox", "status", "--json"]).await;
    assert_eq!(
        status["inbox"].as_array().map(Vec::len),
        Some(4),
        "{status}"
    );

    let (_, text) = run(&database, &["inbox", "list", "--state", "waiting"]).await;
    assert!(
        text.contains("waiting") && !text.contains("running"),
        "{text}"
    );
    let list = json(
        &database,
        &["inbox", "list", "--class", "permanent", "--json"],
    )
    .await;
    let ids: Vec<_> = list["entries"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| &one["message_id"])
        .collect();
    assert_eq!(ids, ["dead1", "dead2"]);
    let (_, text) = run(&database, &["inbox", "list", "--older-than", "1h"]).await;
    assert_eq!(text, "no such entry");
    let slip = "inbox replay --class permanet --reason why";
    let (_, text) = run(&database, &slip.split(' ').collect::<Vec<_>>()).await;
    let told = "no entry has the class permanet; there are: permanent";
    assert_eq!(text, format!("{told}\n0 replayed, 0 refused"));
}

#[tokio::test]
async fn a_message_is_shown_whole_but_for_a_payload_that_nobody_asked_for() {
    let (database, _client) = some_entries().await;
    let shown = json(&database, &["inbox", "show", "dead1", "--json"]).await;
    let entry = &shown["entries"][0];
    assert_eq!(
        (&entry["reason"], &entry["payload_bytes"]),
        (&"no such account".into(), &4.into())
    );
    assert!(entry.get("payload").is_none() && entry.get("payload_base64").is_none());
    let shown = json(
        &database,
        &["inbox", "show", "dead1", "--payload", "--json"],
    )
    .await;
    assert_eq!(shown["entries"][0]["payload_base64"], "Ym9keQ==");
    let (_, text) = run(&database, &["inbox", "show", "dead1"]).await;
    assert!(
        text.contains("no such account") && text.contains("4"),
        "{text}"
    );
    assert!(
        !text.contains("body") && !text.contains("Ym9keQ=="),
        "{text}"
    );
    let (code, _) = run(&database, &["inbox", "show", "unheard-of"]).await;
    assert_eq!(code, Some(1));
}

async fn complete_both(client: &tokio_postgres::Client) {
    let handed = due(client).await;
    assert_eq!(handed.len(), 2);
    for one in &handed {
        assert!(complete(client, &one.message_id, one.owner).await);
    }
}

#[tokio::test]
async fn a_dry_run_says_what_would_be_done_and_does_nothing() {
    let (database, client) = some_entries().await;
    let dry = [
        "inbox",
        "replay",
        "--consumer",
        PAY,
        "--reason",
        "why",
        "--dry-run",
    ];
    let (code, text) = run(&database, &dry).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("payments dead1: would be replayed"), "{text}");
    assert_eq!(state(&client, "dead1").await, "dead");
    assert_eq!(number(&client, "SELECT count(*) FROM inbox.audit").await, 0);
}

/// F67, by command.
#[tokio::test]
async fn replay_opens_dead_messages_once_and_is_recorded() {
    let (database, client) = some_entries().await;
    let replay = [
        "inbox",
        "replay",
        "--consumer",
        PAY,
        "--reason",
        "bank is back",
    ];
    let mut one = replay.to_vec();
    one.extend(["--limit", "1"]);
    let (code, text) = run(&database, &one).await;
    assert_eq!(
        (code, text.lines().last()),
        (Some(0), Some("1 replayed, 0 refused")),
        "{text}"
    );
    let (_, text) = run(&database, &replay).await;
    assert!(
        text.contains("payments dead2: replayed") && !text.contains("dead1"),
        "{text}"
    );
    complete_both(&client).await;
    let again = [
        "inbox",
        "replay",
        "dead1",
        "unheard-of",
        "--reason",
        "again",
    ];
    let (code, text) = run(&database, &again).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("dead1: suppressed: it is done, and will not run twice"),
        "{text}"
    );
    assert!(text.contains("unheard-of: no such entry"), "{text}");
    assert!(due(&client).await.is_empty());
    let audit = "SELECT string_agg(by_whom || ' ' || message_id || ' ' || (detail ->> 'outcome'), ', ' ORDER BY audit_id) \
                 FROM inbox.audit";
    let audit: String = ask(&client, audit, &[]).await[0].get(0);
    assert_eq!(
        audit,
        "ann dead1 replayed, ann dead2 replayed, ann dead1 suppressed"
    );
    let shown = json(&database, &["inbox", "show", "dead1", "--json"]).await;
    let audit = shown["entries"][0]["audit"].as_array().map(Vec::len);
    assert_eq!(audit, Some(2));
}

#[tokio::test]
async fn a_script_is_told_what_came_of_each_message() {
    let (database, _client) = some_entries().await;
    let replay = "inbox replay unheard-of done running dead1 --reason why --dry-run --json";
    let (code, text) = run(&database, &replay.split(' ').collect::<Vec<_>>()).await;
    assert_eq!(code, Some(1), "{text}");
    let told: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&told["done"], &told["refused"]), (&1.into(), &3.into()));
    let outcome = |one: &Value| format!("{} {}", one["message_id"], one["outcome"]);
    let entries = told["entries"].as_array().expect("a list");
    let mut outcomes: Vec<_> = entries.iter().map(outcome).collect();
    outcomes.sort();
    let expected = [
        r#""dead1" "done""#,
        r#""done" "suppressed""#,
        r#""running" "unfinished""#,
        r#""unheard-of" "missing""#,
    ];
    assert_eq!(outcomes, expected);
}

#[tokio::test]
async fn discard_closes_dead_messages_and_refuses_others() {
    let (database, client) = some_entries().await;
    let (code, text) = run(&database, &["inbox", "discard", "--reason", "test data"]).await;
    assert_eq!(code, Some(2));
    assert!(text.contains("say which messages"), "{text}");
    let line = [
        "inbox",
        "discard",
        "--all",
        "--reason",
        "test data",
        "--by",
        "bob",
        "--rate",
        "100/s",
    ];
    let (code, text) = run(&database, &line).await;
    assert_eq!(
        (code, text.lines().last()),
        (Some(0), Some("2 discarded, 0 refused")),
        "{text}"
    );
    assert_eq!(claim(&client, "dead1", None).await.outcome, "duplicate");
    let (code, text) = run(
        &database,
        &["inbox", "discard", "running", "--reason", "no"],
    )
    .await;
    assert_eq!(code, Some(1));
    assert!(text.contains("running: refused: it is not dead"), "{text}");
    assert_eq!(
        number(
            &client,
            "SELECT count(*) FROM inbox.audit WHERE by_whom = 'bob'"
        )
        .await,
        2
    );
}

#[tokio::test]
async fn without_an_inbox_the_remedy_is_told() {
    let database = crate::support::postgres::database().await;
    let (code, text) = run(&database, &["inbox", "status"]).await;
    assert_eq!(code, Some(78), "{text}");
    assert!(text.contains("outbox-relay migrate --inbox"), "{text}");
}
