//! `outbox-relay status`, and the signs of life it shows.

use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::outbox::{outbox, until};
use crate::support::postgres::{Database, Postgres};
use crate::support::rabbit::vhost;
use crate::support::relay::{Relay, Settings, run};

async fn status_with(settings: &Settings) -> Value {
    let (status, lines) = run(settings, &["status", "--json"]).await;
    let text = lines.join("\n");
    assert_eq!(status.code(), Some(0), "{text}");
    let object: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(object["version"], 1);
    object
}

async fn status(database: &Database) -> Value {
    status_with(&Settings::new(&database.url, "amqp://localhost")).await
}

async fn told(database: &Database) -> String {
    let settings = Settings::new(&database.url, "amqp://localhost");
    let (status, lines) = run(&settings, &["status"]).await;
    assert_eq!(status.code(), Some(0), "{lines:?}");
    lines.join("\n")
}

async fn fill(admin: &Client, sql: &str) {
    admin
        .batch_execute(sql)
        .await
        .unwrap_or_else(|e| panic!("{sql}: {e:?}"));
}

const EVERYTHING: &str = "
    INSERT INTO outbox.message (payload, sent_at) SELECT '1', now() FROM generate_series(1, 30);
    INSERT INTO outbox.message (payload, created_at) VALUES ('1', now() - interval '90 seconds');
    INSERT INTO outbox.message (payload, available_at) VALUES ('1', now() + interval '1 hour');
    INSERT INTO outbox.message (payload, ordering_key, retry_at, last_error)
        SELECT '1', 'k' || g % 2, now(), 'full' FROM generate_series(1, 6) g;
    INSERT INTO outbox.quarantine (id, message_id, exchange, routing_key, created_at, attempts,
        reason_class, reason, first_failed_at, last_failed_at)
        SELECT g, 'm', '', '', now(), 1, CASE WHEN g > 2 THEN 'too_large' ELSE 'refused' END,
        'why', now(), now() FROM generate_series(1, 5) g;
    INSERT INTO outbox.pause (exchange, by_whom, reason, until)
        VALUES ('orders', 'ann', 'deploy', NULL), ('over', 'ann', 'past', now() - interval '1 s');";

#[tokio::test]
async fn everything_that_waits_is_counted_by_why() {
    let (database, admin) = outbox().await;
    fill(&admin, EVERYTHING).await;
    let status = status(&database).await;
    let exactly = |rows: u32| json!({ "rows": rows, "exact": true });
    assert_eq!(status["pending"], exactly(8));
    assert_eq!(status["scheduled"], exactly(1));
    assert_eq!(status["waiting"], exactly(6));
    assert_eq!(status["blocked_keys"], exactly(2));
    assert_eq!(
        status["waiting_by_reason"],
        json!([{ "reason": "full", "rows": 6 }])
    );
    assert_eq!(status["sent_lately"]["rows"], 30);
    let oldest = status["oldest_due_age_seconds"].as_f64().expect("a number");
    assert!((90.0..180.0).contains(&oldest), "{oldest}");
    let quarantine = status["quarantine"].as_array().expect("a list");
    let reasons: Vec<_> = quarantine
        .iter()
        .map(|q| (&q["reason"], &q["rows"]))
        .collect();
    assert_eq!(
        reasons,
        [
            (&json!("refused"), &exactly(2)),
            (&json!("too_large"), &exactly(3))
        ]
    );
    let pauses = status["pauses"].as_array().expect("a list");
    assert_eq!(pauses.len(), 1, "{pauses:?}");
    assert_eq!(
        (&pauses[0]["exchange"], &pauses[0]["until"]),
        (&json!("orders"), &Value::Null)
    );
    let text = told(&database).await;
    for line in [
        "  pending                    8",
        "    scheduled for later      1",
        "  6     full",
        "  3     too_large  ",
        "  exchange orders  ",
        "Relays: none has told that it is alive",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
}

#[tokio::test]
async fn an_empty_outbox_has_nothing_due() {
    let (database, _admin) = outbox().await;
    let status = status(&database).await;
    assert_eq!(status["oldest_due_age_seconds"], Value::Null);
    assert!(told(&database).await.contains("nothing is due"));
}

#[tokio::test]
async fn what_holds_vacuum_back_is_named() {
    let (database, admin) = outbox().await;
    let pinning = database.connect().await;
    fill(&pinning, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await;
    let prepare = "BEGIN; INSERT INTO outbox.pause (by_whom, reason) VALUES ('a', 'b'); \
         PREPARE TRANSACTION 'left behind'";
    // This table has no wake-up gate, so that two-phase commit is allowed.
    fill(&admin, prepare).await;
    let pid: i32 = pinning
        .query_one("SELECT pg_backend_pid()", &[])
        .await
        .expect("pid")
        .get(0);
    // Only what lasts is told.
    let old = format!(
        "SELECT bool_and(xact_start < clock_timestamp() - interval '11 s') FROM pg_stat_activity \
         WHERE pid = {pid}"
    );
    until(&admin, &old).await;
    let status = status(&database).await;
    let pins = status["vacuum"]["held_back_by"].as_array().expect("a list");
    let kinds: Vec<_> = pins.iter().map(|pin| &pin["kind"]).collect();
    assert_eq!(kinds, ["session", "prepared"], "{pins:?}");
    assert_eq!(pins[0]["state"], "idle in transaction");
    let who = pins[0]["who"].as_str().expect("a name");
    assert!(who.starts_with(&format!("pid {pid} (postgres")), "{who}");
    assert_eq!(pins[1]["who"], "prepared transaction 'left behind'");
    let text = told(&database).await;
    let sentence = format!("held back by {who}, idle in transaction since ");
    assert!(text.contains(&sentence), "{text}");
    // What the runbook says ends them.
    fill(&admin, "ROLLBACK PREPARED 'left behind'").await;
    fill(&admin, &format!("SELECT pg_terminate_backend({pid})")).await;
    let gone = format!("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid})");
    until(&admin, &gone).await;
    let text = told(&database).await;
    assert!(text.contains("nothing holds it back"), "{text}");
}

/// Blocks of the outbox touched by one `status`, by the server's own count.
#[tokio::test]
async fn the_cost_does_not_grow_with_the_table() {
    let server = Postgres::start().await;
    let database = server.create_database().await;
    crate::support::relay::migrate(&database.url).await;
    let admin = database.connect().await;
    fill(
        &admin,
        "INSERT INTO outbox.message (payload, sent_at, ordering_key)
             SELECT '1', now(), g::text FROM generate_series(1, 300000) g;
         INSERT INTO outbox.message (payload, ordering_key)
             SELECT '1', g::text FROM generate_series(1, 40000) g;
         INSERT INTO outbox.message (payload, available_at)
             SELECT '1', now() + interval '1 h' FROM generate_series(1, 40000) g;
         INSERT INTO outbox.message (payload, retry_at, ordering_key, last_error)
             SELECT '1', now(), g::text, 'full' FROM generate_series(1, 40000) g",
    )
    .await;
    fill(&admin, "VACUUM ANALYZE outbox.message").await;
    // Statistics arrive when a session ends; the filling one has to.
    drop(admin);
    let admin = database.connect().await;
    let touched = "SELECT heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit \
         FROM pg_statio_user_tables WHERE schemaname = 'outbox' AND relname = 'message'";
    until(
        &admin,
        "SELECT NOT EXISTS (SELECT FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid() \
         AND backend_type = 'client backend')",
    )
    .await;
    let before = crate::outbox::number(&admin, touched).await;
    let said = status(&database).await;
    let pending = &said["pending"];
    assert_eq!(pending["exact"], false);
    let rows = pending["rows"].as_i64().expect("a number");
    assert!((110_000..130_000).contains(&rows), "{rows}");
    until(&admin, &format!("SELECT ({touched}) > {before}")).await;
    until(
        &admin,
        "SELECT NOT EXISTS (SELECT FROM pg_stat_activity \
         WHERE application_name LIKE 'outbox-relay/status%')",
    )
    .await;
    let cost = crate::outbox::number(&admin, touched).await - before;
    // The table has some 6,000 blocks; none of the looks takes more than 10,000 rows of it.
    assert!(cost < 3_000, "{cost} blocks");
}

#[tokio::test]
async fn a_relay_shows_that_it_is_alive_and_why_it_waits_until_it_stops() {
    let (database, admin) = outbox().await;
    let relay = Relay::start(&Settings::new(&database.url, &vhost().await.url));
    until(
        &admin,
        "SELECT EXISTS (SELECT FROM outbox.instance WHERE ready)",
    )
    .await;
    let one = &status(&database).await["instances"][0];
    assert_eq!(one["alive"], true);
    assert_eq!(one["broker"], "connected");
    let pid = relay.pid().as_raw_nonzero().get();
    let name = one["name"].as_str().expect("a name");
    assert!(name.ends_with(&format!(":{pid}")), "{name}");
    relay.stop().await;
    let gone = "SELECT NOT EXISTS (SELECT FROM outbox.instance)";
    let row = admin.query_one(gone, &[]).await.expect(gone);
    assert!(row.get::<_, bool>(0), "the sign is taken back");

    let nobody = crate::support::ports::Port::take();
    let dead = format!("amqp://guest:guest@127.0.0.1:{}", nobody.number());
    let mut relay = Relay::start(&Settings::new(&database.url, &dead));
    let waits = "SELECT EXISTS (SELECT FROM outbox.instance WHERE waits_for LIKE '%refused%')";
    until(&admin, waits).await;
    relay.kill();
    let one = &status(&database).await["instances"][0];
    assert_eq!(
        (&one["ready"], &one["broker"]),
        (&json!(false), &json!("disconnected"))
    );
}
