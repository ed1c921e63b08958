//! Sent rows go when their time is over, and nothing else does.

use crate::support::relay::Relay;
use crate::support::scene::{Draft, QUEUE, Scene, eventually};

/// Rows that were sent eight days ago, and rows that were sent six days ago.
const HISTORY: &str = "INSERT INTO outbox.message (routing_key, payload, sent_at)
     SELECT 'q', '{}', now() - interval '8 days' FROM generate_series(1, 5000);
     INSERT INTO outbox.message (routing_key, payload, sent_at)
     SELECT 'q', '{}', now() - interval '6 days' FROM generate_series(1, 3000)";

async fn number(relay: &Relay, name: &str) -> Option<f64> {
    let (_, page) = relay.get("/metrics").await?;
    let line = page.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().parse().ok()
}

#[tokio::test]
async fn rows_sent_longer_ago_than_retention_are_removed_and_younger_ones_are_kept() {
    let scene = Scene::new().await;
    scene.run(HISTORY).await;
    scene
        .run(
            "INSERT INTO outbox.message (routing_key, payload, available_at)
             VALUES ('q', '{}', now() + interval '1 day');
             INSERT INTO outbox.quarantine (id, message_id, exchange, routing_key, created_at,
               attempts, reason_class, reason, first_failed_at, last_failed_at, quarantined_at)
             SELECT 1, 'old', '', 'q', at, 1, 'too_large', 'old', at, at, at
             FROM (SELECT now() - interval '1 year' AS at) AS past;
             INSERT INTO outbox.audit (at, act, by_whom, reason, version)
             VALUES (now() - interval '1 year', 'discard', 'ann', 'test', '0')",
        )
        .await;
    let relay = scene.ready_relay().await;
    let over = "SELECT NOT EXISTS (SELECT FROM outbox.message
         WHERE sent_at < now() - interval '7 days')";
    scene.until(over).await;
    scene.write_many(10, 3).await;
    scene
        .until("SELECT count(*) = 1 FROM outbox.message WHERE sent_at IS NULL")
        .await;
    assert_eq!(scene.count("sent_at IS NOT NULL").await, 3010);
    assert_eq!(scene.count("sent_at IS NULL").await, 1, "scheduled");
    assert_eq!(scene.quarantined().await, 1);
    assert_eq!(
        scene.ask::<i64>("SELECT count(*) FROM outbox.audit").await,
        1
    );
    eventually("5,000 removed rows are told", async || {
        number(&relay, "outbox_relay_rows_removed_total").await == Some(5000.0)
    })
    .await;
    relay.stop().await;
}

/// The row at the low end was pending for long, and sent lately.
#[tokio::test]
async fn a_row_that_stays_at_the_low_end_holds_back_no_other() {
    let scene = Scene::new().await;
    scene
        .run(
            "INSERT INTO outbox.message (routing_key, payload, available_at)
             SELECT 'q', '{}', now() + interval '1 year' FROM generate_series(1, 2500)",
        )
        .await;
    scene.run(HISTORY).await;
    let relay = scene.ready_relay().await;
    scene
        .until("SELECT count(*) = 5500 FROM outbox.message")
        .await;
    relay.stop().await;
}

#[tokio::test]
async fn with_on_sent_delete_nothing_is_kept_that_was_sent() {
    let mut scene = Scene::new().await;
    // Somebody marked rows before: their retention still counts.
    scene.run(HISTORY).await;
    scene.set("OUTBOX__ON_SENT", "delete");
    let relay = scene.ready_relay().await;
    scene.write_many(200, 7).await;
    scene
        .until("SELECT count(*) = 3000 FROM outbox.message")
        .await;
    relay.stop().await;
    let report = scene.judge().await;
    assert_eq!(report.duplicates, 0);
    assert_eq!(scene.queues.take_all(QUEUE).await.len(), 0);
}

#[tokio::test]
async fn rows_that_nobody_may_delete_are_told_seldom_and_stop_nobody() {
    let scene = Scene::new().await;
    scene.run(HISTORY).await;
    scene
        .run(
            "CREATE FUNCTION outbox.keep() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'rows are kept here'; END $$;
             CREATE TRIGGER keep BEFORE DELETE ON outbox.message
             FOR EACH ROW EXECUTE FUNCTION outbox.keep()",
        )
        .await;
    let relay = scene.ready_relay().await;
    relay.printed("a sent row cannot be removed").await;
    scene.write_many(50, 7).await;
    scene.drained().await;
    let told = relay.output();
    let told = told
        .iter()
        .filter(|line| line.contains("cannot be removed"));
    assert!(told.count() <= 10);
    // What a trigger says may quote a row.
    let output = relay.output().join("\n");
    assert!(!output.contains("rows are kept here"), "{output}");
    assert!(output.contains("P0001"), "{output}");
    relay.stop().await;
}

/// Its words usually mean that the relay may not remove anything.
#[tokio::test]
async fn a_trigger_that_denies_a_row_holds_back_no_other() {
    let scene = Scene::new().await;
    scene.run(HISTORY).await;
    scene
        .run(
            "CREATE FUNCTION outbox.keep() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '42501'; END $$;
             CREATE TRIGGER keep BEFORE DELETE ON outbox.message FOR EACH ROW
             WHEN (OLD.id = 1200) EXECUTE FUNCTION outbox.keep()",
        )
        .await;
    let relay = scene.ready_relay().await;
    scene
        .until("SELECT count(*) = 1 FROM outbox.message WHERE sent_at < now() - interval '7 days'")
        .await;
    relay.printed("row=1200 ").await;
    relay.stop().await;
}

/// It raises nothing, so that nothing but the row that stays shows it.
#[tokio::test]
async fn rows_that_a_trigger_keeps_silently_are_told_and_counted() {
    let scene = Scene::new().await;
    scene.run(HISTORY).await;
    scene
        .run(
            "CREATE FUNCTION outbox.keep() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN IF OLD.id % 100 = 0 THEN RETURN NULL; END IF; RETURN OLD; END $$;
             CREATE TRIGGER keep BEFORE DELETE ON outbox.message
             FOR EACH ROW EXECUTE FUNCTION outbox.keep()",
        )
        .await;
    let relay = scene.ready_relay().await;
    relay.printed("row=100 ").await;
    scene
        .until(
            "SELECT bool_and(id % 100 = 0) FROM outbox.message WHERE sent_at < now() - interval '7 days'",
        )
        .await;
    let counted = async || {
        let refused = number(&relay, "outbox_relay_removals_refused_total").await;
        refused == Some(50.0)
    };
    eventually("each of them is counted", counted).await;
    relay.stop().await;
}

#[tokio::test]
async fn a_row_that_others_refer_to_is_named_and_holds_back_no_other() {
    let scene = Scene::new().await;
    scene.run(HISTORY).await;
    scene
        .run(
            "CREATE TABLE invoice (id bigint REFERENCES outbox.message (id));
             INSERT INTO invoice SELECT id FROM outbox.message WHERE id IN (700, 701, 3000)",
        )
        .await;
    let relay = scene.ready_relay().await;
    scene
        .until("SELECT count(*) = 3 FROM outbox.message WHERE sent_at < now() - interval '7 days'")
        .await;
    for row in ["row=700 ", "row=701 ", "row=3000 "] {
        relay.printed(row).await;
    }
    relay.stop().await;
}

/// Some are referred to: the server names each, so that each takes one refusal. Those that a
/// restarted relay meets first are only such rows.
#[tokio::test]
async fn many_rows_that_others_refer_to_take_one_refusal_each_and_hold_back_no_other() {
    let scene = Scene::new().await;
    scene.run(HISTORY).await;
    scene
        .run(
            "CREATE TABLE invoice (id bigint REFERENCES outbox.message (id));
             INSERT INTO invoice SELECT id FROM outbox.message
             WHERE sent_at < now() - interval '7 days' AND (id % 500 = 0 OR id <= 20)",
        )
        .await;
    let kept = scene
        .count("id IN (SELECT id FROM invoice) AND sent_at < now() - interval '7 days'")
        .await;
    let left = "SELECT count(*) FROM outbox.message WHERE sent_at < now() - interval '7 days'";
    for restarted in [false, true] {
        let relay = scene.ready_relay().await;
        scene.until(&format!("SELECT ({left}) = {kept}")).await;
        if restarted {
            let refused = async || {
                let refused = number(&relay, "outbox_relay_removals_refused_total").await;
                refused.is_some_and(|refused| refused >= 20.0)
            };
            eventually("the lowest are passed over", refused).await;
        }
        relay.stop().await;
        // A walk ends at rows that are young.
        scene
            .run("DELETE FROM outbox.message WHERE sent_at > now() - interval '7 days'")
            .await;
        scene.run(HISTORY).await;
    }
}

/// A foreign key without an index makes each removal read the whole of another table.
#[tokio::test]
async fn removal_that_takes_its_time_leaves_time_for_settlements() {
    let mut scene = Scene::new().await;
    scene.set("DATABASE__STATEMENT_TIMEOUT", "10s");
    scene.run(HISTORY).await;
    // A thousand of these take more than a sweep, or a statement, may.
    scene
        .run(
            "CREATE FUNCTION outbox.slow() RETURNS trigger LANGUAGE plpgsql AS
             -- The fault itself: so long the removal of a row takes.
             $$ BEGIN PERFORM pg_sleep(0.08); RETURN OLD; END $$;
             CREATE TRIGGER slow BEFORE DELETE ON outbox.message
             FOR EACH ROW EXECUTE FUNCTION outbox.slow()",
        )
        .await;
    let relay = scene.ready_relay().await;
    let removed = scene.until(
        "SELECT count(*) < 5000 FROM outbox.message WHERE sent_at < now() - interval '7 days'",
    );
    let sent = async {
        loop {
            scene.flows(Draft::to(QUEUE)).await;
        }
    };
    // Rows flow until something is removed.
    tokio::select! {
        () = removed => {}
        () = sent => {}
    }
    let cancelled = "cannot be removed";
    let told = relay.output();
    assert!(
        told.iter().all(|line| !line.contains(cancelled)),
        "{told:?}"
    );
    relay.stop().await;
}
