//! Order within a key.

use crate::entries::{
    PAY, ask, claim, claimed, complete, due, due_ids, fail, inbox, number, renew, retry, state,
};

const K: Option<&str> = Some("k");

#[tokio::test]
async fn an_entry_waits_while_an_earlier_one_of_its_key_is_unfinished() {
    let (_database, client) = inbox().await;
    let first = claimed(&client, "1", K).await;
    assert_eq!(claim(&client, "2", K).await.outcome, "waiting");
    assert_eq!(claim(&client, "3", K).await.outcome, "waiting");
    assert_eq!(
        claim(&client, "2", K).await.outcome,
        "waiting",
        "a redelivery"
    );
    claimed(&client, "other key", Some("l")).await;
    claimed(&client, "no key", None).await;
    assert!(due(&client).await.is_empty());

    retry(&client, "1", first, Some("1h")).await;
    assert!(due(&client).await.is_empty(), "a retry holds its key");
    ask(
        &client,
        "UPDATE inbox.message SET due_at = clock_timestamp() WHERE message_id = '1'",
        &[],
    )
    .await;
    let first = due(&client).await[0].owner;
    assert!(complete(&client, "1", first).await);
    let second = due(&client).await;
    assert_eq!(second.len(), 1);
    assert_eq!(second[0].message_id, "2");
    assert!(due(&client).await.is_empty());
    assert!(
        fail(&client, "2", second[0].owner).await,
        "dead passes the turn on, too"
    );
    assert_eq!(due_ids(&client).await, ["3"]);
}

#[tokio::test]
async fn an_owner_that_vanished_for_good_passes_the_turn_on() {
    let (_database, client) = inbox().await;
    claimed(&client, "1", K).await;
    claim(&client, "2", K).await;
    ask(&client, "UPDATE inbox.message SET attempt = 3, lease_until = now(), due_at = now() WHERE message_id = '1'", &[]).await;
    let mut handed = due_ids(&client).await;
    handed.extend(due_ids(&client).await);
    assert_eq!(handed, ["2"]);
    assert_eq!(state(&client, "1").await, "dead");
}

#[tokio::test]
async fn a_replayed_entry_takes_its_old_place_and_never_runs_beside_another() {
    let (_database, client) = inbox().await;
    let first = claimed(&client, "1", K).await;
    fail(&client, "1", first).await;
    let second = claimed(&client, "2", K).await;
    claim(&client, "3", K).await;
    ask(
        &client,
        "SELECT inbox.replay($1, '1', 'ann', 'mended')",
        &[&PAY],
    )
    .await;
    assert!(due(&client).await.is_empty(), "2 is running");
    assert_eq!(claim(&client, "4", K).await.outcome, "waiting");
    assert!(renew(&client, "2", second, "0s").await);
    let second = due(&client).await;
    assert_eq!(
        (second[0].message_id.as_str(), second[0].outcome.as_str()),
        ("2", "taken_over")
    );
    assert!(complete(&client, "2", second[0].owner).await);
    for expected in ["1", "3", "4"] {
        let turn = due(&client).await;
        assert_eq!(turn.len(), 1, "one at a time");
        assert_eq!(turn[0].message_id, expected);
        assert!(complete(&client, expected, turn[0].owner).await);
    }
}

#[tokio::test]
async fn a_retry_behind_a_replayed_entry_waits_for_it() {
    let (_database, client) = inbox().await;
    let first = claimed(&client, "1", K).await;
    fail(&client, "1", first).await;
    let second = claimed(&client, "2", K).await;
    retry(&client, "2", second, Some("0s")).await;
    ask(
        &client,
        "SELECT inbox.replay($1, '1', 'ann', 'mended')",
        &[&PAY],
    )
    .await;
    let turn = due(&client).await;
    assert_eq!(turn.len(), 1);
    assert_eq!(turn[0].message_id, "1");
    assert!(complete(&client, "1", turn[0].owner).await);
    assert_eq!(due_ids(&client).await, ["2"]);
}

#[tokio::test]
async fn a_turn_that_nobody_passed_on_is_found_by_tidying() {
    let (_database, client) = inbox().await;
    claimed(&client, "1", K).await;
    claim(&client, "2", K).await;
    ask(
        &client,
        "DELETE FROM inbox.message WHERE message_id = '1'",
        &[],
    )
    .await;
    assert!(due(&client).await.is_empty());
    ask(&client, "SELECT inbox.tidy($1)", &[&PAY]).await;
    assert_eq!(due_ids(&client).await, ["2"]);
}

#[tokio::test]
async fn arrival_order_holds_when_the_clock_is_set_back() {
    let (_database, client) = inbox().await;
    claimed(&client, "1", K).await;
    ask(
        &client,
        "UPDATE inbox.message SET received_at = now() + interval '1 h'",
        &[],
    )
    .await;
    claim(&client, "2", K).await;
    claim(&client, "3", K).await;
    let order = "SELECT string_agg(message_id, '' ORDER BY received_at) FROM inbox.message";
    assert_eq!(ask(&client, order, &[]).await[0].get::<_, String>(0), "123");
}

/// A hot key with many waiting entries, and never analyzed: handing out must not walk them all.
#[tokio::test]
async fn a_turn_costs_the_same_however_many_wait_behind_it() {
    let (_database, client) = inbox().await;
    claimed(&client, "0", K).await;
    let fill = "INSERT INTO inbox.message (consumer, message_id, ordering_key, state, payload) \
                SELECT $1, 'w' || n, 'k', 'waiting', 'x' FROM generate_series(1, 20000) n";
    ask(&client, fill, &[&PAY]).await;
    ask(&client, "SET jit = off", &[]).await;
    let pages = async || {
        let sql = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM inbox.due('payments', 10, '60s')";
        let plan: serde_json::Value = ask(&client, sql, &[]).await[0].get(0);
        let plan = &plan[0]["Plan"];
        plan["Shared Hit Blocks"].as_i64().unwrap_or(0)
            + plan["Shared Read Blocks"].as_i64().unwrap_or(0)
    };
    for analyzed in [false, true] {
        if analyzed {
            client
                .batch_execute("ANALYZE inbox.message")
                .await
                .expect("analyzed");
        }
        // Catalog pages and plans of a new session are not what is measured.
        pages().await;
        let idle = pages().await;
        assert!(
            idle < 60,
            "nothing is due, and {idle} pages were read (analyzed: {analyzed})"
        );
        ask(&client, "SELECT inbox.complete(consumer, message_id, owner) FROM inbox.message WHERE state = 'processing'", &[]).await;
        let turn = pages().await;
        assert!(
            turn < 200,
            "one turn read {turn} pages (analyzed: {analyzed})"
        );
        assert_eq!(
            number(
                &client,
                "SELECT count(*) FROM inbox.message WHERE state = 'processing'"
            )
            .await,
            1
        );
    }
}
