//! The relay on tables that applications already have, by way of a view that offers less than
//! the outbox's own table.

use std::collections::BTreeMap;

use crate::support::checker::Ledger;
use crate::support::postgres;
use crate::support::queues::{Letter, Queues};
use crate::support::rabbit;
use crate::support::relay::{Settings, migrate, run};
use crate::support::scene::{QUEUE, Scene, eventually};

/// A scene on a table of the application's own; `own` makes it, and the view `outbox.message`.
async fn scene(own: &str) -> Scene {
    let database = postgres::database().await;
    let client = database.connect().await;
    client
        .batch_execute("CREATE SCHEMA outbox")
        .await
        .expect("a schema");
    client.batch_execute(own).await.expect("a table and a view");
    let vhost = rabbit::vhost().await;
    migrate(&database.url).await;
    let mut scene = Scene {
        client: database.connect().await,
        queues: Queues::connect(&vhost.url).await,
        ledger: std::sync::Arc::new(Ledger::default()),
        settings: Settings::new(&database.url, &vhost.url),
        database: database.url.clone(),
        vhost,
        _database: None,
    };
    scene.queues.classic(QUEUE).await;
    scene.keep(database);
    scene.set("RETRY__INITIAL", "100ms");
    scene.set("RETRY__MAX_DELAY", "300ms");
    scene.set("RELAY__POLL_INTERVAL", "100ms");
    scene
}

/// The columns of Debezium's outbox event router, and a number that says what came first.
const DEBEZIUM: &str = "
    CREATE TABLE outboxevent (
        id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
        aggregatetype varchar(255) NOT NULL,
        aggregateid varchar(255) NOT NULL,
        type varchar(255) NOT NULL,
        payload jsonb
    );
    INSERT INTO outboxevent (aggregatetype, aggregateid, type, payload)
    VALUES ('q', 'a', 'Created', '{\"old\": true}');
    ALTER TABLE outboxevent ADD COLUMN seq bigint GENERATED ALWAYS AS IDENTITY (CACHE 1);
    CREATE UNIQUE INDEX ON outboxevent (seq);
    CREATE VIEW outbox.message AS
    SELECT seq AS id, id::text AS message_id, aggregatetype AS routing_key,
           aggregateid AS ordering_key, type, payload
    FROM outboxevent";

/// Keyed by UUID, with a time of its own and a mark.
const UUIDS: &str = "
    CREATE TABLE events (
        event_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
        topic text NOT NULL,
        body bytea NOT NULL,
        created timestamptz NOT NULL DEFAULT now(),
        published timestamptz
    );
    ALTER TABLE events ADD COLUMN seq bigint GENERATED ALWAYS AS IDENTITY;
    CREATE INDEX ON events (seq);
    CREATE VIEW outbox.message AS
    SELECT seq AS id, event_id::text AS message_id, topic AS routing_key, body AS payload,
           created AS created_at, published AS sent_at
    FROM events";

fn order(letters: &[Letter]) -> BTreeMap<Option<String>, Vec<i64>> {
    let mut of_key: BTreeMap<Option<String>, Vec<i64>> = BTreeMap::new();
    for letter in letters {
        of_key
            .entry(letter.key.clone())
            .or_default()
            .push(letter.id);
    }
    of_key
}

#[tokio::test]
async fn a_table_in_debeziums_layout_is_relayed_in_order_and_emptied() {
    let mut scene = scene(DEBEZIUM).await;
    scene.set("OUTBOX__ON_SENT", "delete");
    let relay = scene.ready_relay().await;
    for round in 0..20 {
        let sql = format!(
            "INSERT INTO outboxevent (aggregatetype, aggregateid, type, payload)
             SELECT 'q', 'k' || n % 3, 'Changed', jsonb_build_object('round', {round}, 'n', n)
             FROM generate_series(1, 30) AS n"
        );
        scene.run(&sql).await;
    }
    scene
        .until("SELECT NOT EXISTS (SELECT FROM outboxevent)")
        .await;
    relay.stop().await;
    let letters = scene.queues.take_all(QUEUE).await;
    assert_eq!(letters.len(), 601);
    for (key, ids) in order(&letters) {
        assert!(ids.is_sorted(), "{key:?}: {ids:?}");
    }
    let old = letters
        .iter()
        .find(|letter| letter.body == b"{\"old\": true}");
    assert_eq!(old.map(|letter| letter.message_id.len()), Some(36));
}

/// Retries are counted in memory: a key waits for its row, a row without a queue goes once the
/// queue is there, and one that cannot be sent goes to quarantine, whole.
#[tokio::test]
async fn without_columns_for_retries_rows_wait_and_are_given_up_all_the_same() {
    let mut scene = scene(DEBEZIUM).await;
    scene.set("OUTBOX__ON_SENT", "delete");
    let relay = scene.ready_relay().await;
    scene
        .run(
            "INSERT INTO outboxevent (aggregatetype, aggregateid, type, payload) VALUES
               ('later', 'a', 'First', '1'), ('q', 'a', 'Second', '2'), ('q', 'b', 'Other', '3'),
               (repeat('x', 255) , 'c', repeat('t', 255), NULL)",
        )
        .await;
    scene
        .until("SELECT count(*) = 1 FROM outbox.quarantine WHERE reason_class = 'null_payload'")
        .await;
    scene.until("SELECT count(*) = 2 FROM outboxevent").await;
    relay.printed("a row waits").await;
    let metrics = relay.get("/metrics").await.expect("a page").1;
    assert!(
        metrics.contains("outbox_relay_publishes_total"),
        "{metrics}"
    );
    scene.queues.classic("later").await;
    scene
        .until("SELECT NOT EXISTS (SELECT FROM outboxevent)")
        .await;
    relay.stop().await;
    let first = scene.queues.take_all("later").await;
    assert_eq!(first.len(), 1);
    let ids: Vec<i64> = scene
        .queues
        .take_all(QUEUE)
        .await
        .iter()
        .filter(|letter| letter.key.as_deref() == Some("a"))
        .map(|letter| letter.id)
        .collect();
    assert!(ids.last() > Some(&first[0].id), "{ids:?} {first:?}");
}

#[tokio::test]
async fn a_table_keyed_by_uuid_is_marked() {
    let mut scene = scene(UUIDS).await;
    scene.set("RELAY__ORDERING", "none");
    let relay = scene.ready_relay().await;
    scene
        .run("INSERT INTO events (topic, body) SELECT 'q', '\\x00ff' FROM generate_series(1, 1500)")
        .await;
    scene
        .until("SELECT count(*) = 0 FROM events WHERE published IS NULL")
        .await;
    let (status, lines) = run(&scene.settings, &["status"]).await;
    assert!(status.success(), "{lines:?}");
    relay.stop().await;
    let letters = scene.queues.take_all(QUEUE).await;
    assert_eq!(letters.len(), 1500);
    assert!(letters.iter().all(|letter| letter.body == [0, 255]));
}

/// What is old goes here, too, and what was killed in the middle goes on.
#[tokio::test]
async fn a_table_of_ones_own_is_swept_and_survives_a_kill() {
    let scene = scene(UUIDS).await;
    scene
        .run(
            "INSERT INTO events (topic, body, published)
             SELECT 'q', '', now() - interval '8 days' FROM generate_series(1, 1200);
             INSERT INTO events (topic, body) SELECT 'q', '\\x01' FROM generate_series(1, 3000)",
        )
        .await;
    let mut relay = scene.ready_relay().await;
    scene.queues.reaches(QUEUE, 500).await;
    relay.kill();
    let relay = scene.ready_relay().await;
    scene
        .until("SELECT count(*) = 3000 AND bool_and(published IS NOT NULL) FROM events")
        .await;
    relay.stop().await;
    let letters = scene.queues.take_all(QUEUE).await;
    let different: std::collections::BTreeSet<_> = letters.iter().map(|l| l.id).collect();
    assert_eq!(different.len(), 3000);
}

#[tokio::test]
async fn what_a_view_lacks_is_told_with_its_price_and_its_remedy() {
    let mut scene = scene(DEBEZIUM).await;
    let (_, lines) = run(&scene.settings, &["check"]).await;
    let text = lines.join("\n");
    for told in [
        "no column sent_at",
        "outbox.on_sent = \"delete\"",
        "no column xid",
        "no columns attempts, retry_at, last_error",
        "no column created_at",
        "ALTER TABLE",
    ] {
        assert!(text.contains(told), "{told} is not in\n{text}");
    }
    scene.set("OUTBOX__ON_SENT", "delete");
    let (status, lines) = run(&scene.settings, &["check"]).await;
    assert!(status.success(), "{}", lines.join("\n"));
}

/// More rows wait than one read brings: what comes behind them goes all the same, and the relay
/// does not read without end.
#[tokio::test]
async fn rows_that_wait_at_the_head_hold_back_no_other_and_cost_little() {
    let mut scene = scene(DEBEZIUM).await;
    scene.set("OUTBOX__ON_SENT", "delete");
    scene.set("RETRY__INITIAL", "1h");
    scene.set("RETRY__MAX_DELAY", "1h");
    scene.set("RELAY__BATCH_SIZE", "100");
    scene
        .run(
            "INSERT INTO outboxevent (aggregatetype, aggregateid, type, payload)
             SELECT 'nowhere', 'w' || n, 't', '1' FROM generate_series(1, 1000) AS n",
        )
        .await;
    let relay = scene.ready_relay().await;
    relay.printed("a row waits").await;
    for _ in 0..3 {
        scene
            .run(
                "INSERT INTO outboxevent (aggregatetype, aggregateid, type, payload)
                 SELECT 'q', 'k' || n % 7, 't', '1' FROM generate_series(1, 50) AS n",
            )
            .await;
        scene
            .until("SELECT NOT EXISTS (SELECT FROM outboxevent WHERE aggregatetype = 'q')")
            .await;
    }
    let reads = async || {
        let (_, page) = relay.get("/metrics").await.expect("a page");
        let name = "outbox_relay_poll_duration_seconds_count ";
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|count| count.parse::<u64>().ok())
            .expect("a number")
    };
    let (before, begun) = (reads().await, tokio::time::Instant::now());
    eventually("polls", async || reads().await >= before + 30).await;
    let (made, span) = (reads().await - before, begun.elapsed());
    // Ten polls a second, and a walk of some reads now and then.
    let polls = span.as_secs_f64() * 10.0;
    assert!(
        (made as f64) < 7.0 * polls + 10.0,
        "{made} reads in {span:?}"
    );
    relay.stop().await;
}
