//! Many at once: what two callers could do to each other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use crate::entries::{
    PAY, ask, claim, claim_for, claimed, complete, due, due_for, due_ids, entry, inbox, number,
    renew, retry, state,
};
use crate::support::PATIENCE;
use crate::support::postgres::Database;

async fn clients(database: &Database, count: usize) -> Vec<Arc<Client>> {
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(Arc::new(database.connect().await));
    }
    clients
}

/// F63, at the level of the functions.
#[tokio::test(flavor = "multi_thread")]
async fn of_claims_at_the_same_instant_one_wins() {
    const CLAIMERS: usize = 8;
    let (database, client) = inbox().await;
    let clients = clients(&database, CLAIMERS).await;
    for round in 0..60 {
        let key = [None, Some("k")][round % 2];
        let start = Arc::new(Barrier::new(CLAIMERS));
        let mut claims = JoinSet::new();
        for client in &clients {
            let (client, start) = (Arc::clone(client), Arc::clone(&start));
            claims.spawn(async move {
                start.wait().await;
                claim(&client, &format!("m{round}"), key).await
            });
        }
        let outcomes = claims.join_all().await;
        let won: Vec<_> = outcomes.iter().filter(|one| one.owner.is_some()).collect();
        assert_eq!(won.len(), 1, "{outcomes:?}");
        assert!(
            outcomes
                .iter()
                .all(|one| ["claimed", "busy"].contains(&one.outcome.as_str()))
        );
        let owner = won[0].owner.expect("won");
        assert!(complete(&client, &format!("m{round}"), owner).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_whose_lease_ended_is_taken_over_once_by_claim_or_due() {
    const TAKERS: usize = 8;
    let (database, client) = inbox().await;
    let clients = clients(&database, TAKERS).await;
    for round in 0..60 {
        let id = format!("m{round}");
        let key = [None, Some("k")][round % 2];
        let owner = claimed(&client, &id, key).await;
        assert!(renew(&client, &id, owner, "0s").await);
        let start = Arc::new(Barrier::new(TAKERS + 1));
        let mut takers = JoinSet::new();
        for (number, client) in clients.iter().enumerate() {
            let (client, start, id) = (Arc::clone(client), Arc::clone(&start), id.clone());
            takers.spawn(async move {
                start.wait().await;
                match number % 2 {
                    0 => claim(&client, &id, key).await.owner,
                    _ => due(&client).await.first().map(|due| due.owner),
                }
            });
        }
        start.wait().await;
        let late = complete(&client, &id, owner).await;
        let owners: Vec<_> = takers.join_all().await.into_iter().flatten().collect();
        assert_eq!(
            owners.len() + usize::from(late),
            1,
            "one of the owners, old or new"
        );
        for owner in owners {
            assert!(complete(&client, &id, owner).await);
        }
        assert_eq!(state(&client, &id).await, "done");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_never_lost_between_an_end_and_the_next_arrival() {
    let (database, client) = inbox().await;
    let other = Arc::new(database.connect().await);
    for round in 0..200 {
        let (first, second) = (format!("a{round}"), format!("b{round}"));
        let owner = claimed(&client, &first, Some("k")).await;
        let claiming = {
            let (other, second) = (Arc::clone(&other), second.clone());
            tokio::spawn(async move { claim(&other, &second, Some("k")).await })
        };
        assert!(complete(&client, &first, owner).await);
        let claim = claiming.await.expect("no panic");
        let owner = match claim.outcome.as_str() {
            "claimed" => claim.owner.expect("claimed"),
            "waiting" => {
                due(&client)
                    .await
                    .first()
                    .expect("its turn came at once")
                    .owner
            }
            outcome => panic!("{outcome}"),
        };
        assert!(complete(&client, &second, owner).await);
    }
}

/// A handler's transaction may outlive its lease; the lock is its claim then.
#[tokio::test]
async fn a_transaction_that_holds_its_entry_is_neither_waited_for_nor_taken_over() {
    let (database, client) = inbox().await;
    let handler = database.connect().await;
    let owner = claim_for(&client, "m", Some("k"), "1ms").await.owner;
    claim(&client, "next", Some("k")).await;
    handler.batch_execute("BEGIN").await.expect("a transaction");
    let held: bool =
        ask(&handler, "SELECT inbox.hold($1, 'm', $2)", &[&PAY, &owner]).await[0].get(0);
    assert!(held);
    let quick = Duration::from_secs(20);
    for _ in 0..3 {
        let busy = timeout(quick, claim(&client, "m", Some("k"))).await;
        assert_eq!(busy.expect("no wait").outcome, "busy");
        assert!(
            timeout(quick, due(&client))
                .await
                .expect("no wait")
                .is_empty()
        );
        let replay = "SELECT inbox.replay($1, 'm', 'ann', 'why')";
        let replay = timeout(quick, ask(&client, replay, &[&PAY]))
            .await
            .expect("no wait");
        assert_eq!(replay[0].get::<_, String>(0), "unfinished");
    }
    assert!(complete(&handler, "m", owner.expect("claimed")).await);
    handler.batch_execute("COMMIT").await.expect("committed");
    assert_eq!(claim(&client, "m", Some("k")).await.outcome, "duplicate");
    assert_eq!(due_ids(&client).await, ["next"]);
}

#[tokio::test]
async fn a_rolled_back_handler_leaves_the_claim_and_no_result() {
    let (database, client) = inbox().await;
    let handler = database.connect().await;
    let owner = claimed(&client, "m", None).await;
    handler.batch_execute("BEGIN").await.expect("a transaction");
    assert!(complete(&handler, "m", owner).await);
    handler
        .batch_execute("ROLLBACK")
        .await
        .expect("rolled back");
    let entry = entry(&client, "m").await;
    assert_eq!(
        (entry["state"].as_str(), entry["attempt"].as_i64()),
        (Some("processing"), Some(1))
    );
    assert!(retry(&client, "m", owner, None).await.is_some());
}

/// Eight consumers with leases so short that they lose them, over a few keys. What each saw is
/// written down in the database, by the database's clock.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_crowd_every_message_is_done_once_in_order_of_its_key() {
    const MESSAGES: usize = 240;
    const KEYS: usize = 5;
    let (database, client) = inbox().await;
    ask(&client, "SELECT inbox.configure($1, 1000)", &[&PAY]).await;
    let crowd = clients(&database, 8).await;
    let mut consumers = JoinSet::new();
    for (number, client) in crowd.into_iter().enumerate() {
        consumers.spawn(timeout(PATIENCE, consume(client, number, MESSAGES, KEYS)));
    }
    let mut runs: HashMap<String, usize> = HashMap::new();
    for finished in consumers.join_all().await {
        for id in finished.expect("in time") {
            *runs.entry(id).or_default() += 1;
        }
    }
    assert_eq!(runs.len(), MESSAGES);
    assert!(runs.values().all(|results| *results == 1), "{runs:?}");
    let overtaken = "SELECT count(*) FROM inbox.message a JOIN inbox.message b \
                     USING (consumer, ordering_key) \
                     WHERE a.received_at < b.received_at AND a.done_at > b.done_at";
    assert_eq!(number(&client, overtaken).await, 0);
    assert_eq!(
        number(
            &client,
            "SELECT count(*) FROM inbox.message WHERE state <> 'done'"
        )
        .await,
        0
    );
}

/// Claims its share, some of it twice, and works on whatever is due until all is done. Every
/// fifth piece of work is abandoned, every seventh put off.
async fn consume(client: Arc<Client>, number: usize, messages: usize, keys: usize) -> Vec<String> {
    let mut done = Vec::new();
    let mut turn = number;
    for message in (0..messages).filter(|message| message % 8 == number || message % 11 == number) {
        let (id, key) = (format!("m{message}"), format!("k{}", message % keys));
        let claim = "SELECT owner FROM inbox.claim($1, $2, '30ms', 'x', ordering_key => $3)";
        let owner: Option<Uuid> = ask(&client, claim, &[&PAY, &id, &key]).await[0].get(0);
        if let Some(owner) = owner {
            turn += 1;
            work(&client, &id, owner, turn, &mut done).await;
        }
    }
    loop {
        for due in due_for(&client, "30ms").await {
            turn += 1;
            work(&client, &due.message_id, due.owner, turn, &mut done).await;
        }
        let left = "SELECT count(*) FROM inbox.message WHERE done_at IS NOT NULL";
        if usize::try_from(number_of(&client, left).await) == Ok(messages) {
            return done;
        }
    }
}

async fn number_of(client: &Client, sql: &str) -> i64 {
    number(client, sql).await
}

async fn work(client: &Client, id: &str, owner: Uuid, turn: usize, done: &mut Vec<String>) {
    if turn.is_multiple_of(5) {
        return;
    }
    if turn.is_multiple_of(7) {
        // Too late, it is told so, which is as good.
        let sql = "SELECT inbox.retry($1, $2, $3, 'later', '5ms')";
        if let Err(error) = client.query(sql, &[&PAY, &id, &owner]).await {
            assert_eq!(error.code().map(SqlState::code), Some("OX001"), "{error:?}");
        }
        return;
    }
    if complete(client, id, owner).await {
        done.push(id.to_owned());
    }
}

/// Between `complete` and its commit a handler's transaction keeps the lock of its key; one that
/// hangs there must not stop consumers, who claim one delivery after the other.
#[tokio::test]
async fn a_transaction_that_hangs_before_its_commit_holds_up_its_own_key_only() {
    let (database, client) = inbox().await;
    let owner = claimed(&client, "first", Some("k")).await;
    let hanging = database.connect().await;
    hanging.batch_execute("BEGIN").await.expect("begun");
    assert!(complete(&hanging, "first", owner).await);
    let impatient = "SET lock_timeout = '20s'; SET statement_timeout = '10s'";
    client.batch_execute(impatient).await.expect("set");
    let second = claim(&client, "second", Some("k")).await;
    assert_eq!(second.outcome, "waiting");
    let third = claim(&client, "third", Some("k")).await;
    assert_eq!(third.outcome, "waiting");
    let again = claim(&client, "second", Some("k")).await;
    assert_eq!(again.outcome, "busy");
    assert_eq!(due_ids(&client).await, Vec::<String>::new());
    let kept: String = ask(&client, "SHOW lock_timeout", &[]).await[0].get(0);
    assert_eq!(kept, "20s");
    hanging.batch_execute("COMMIT").await.expect("committed");
    assert_eq!(due_ids(&client).await, ["second"]);
    assert_eq!(state(&client, "third").await, "waiting");
    let owner = entry(&client, "second").await["owner"].clone();
    let owner = owner.as_str().and_then(|owner| owner.parse().ok());
    assert!(complete(&client, "second", owner.expect("an owner")).await);
    assert_eq!(due_ids(&client).await, ["third"]);
}
