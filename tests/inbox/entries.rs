//! An inbox in a database of its own, and its functions as a consumer in any language calls them.

use std::time::Duration;

use outbox_relay::config::{DatabaseSection, DatabaseTarget, Secret};
use outbox_relay::store::postgres::connect::open;
use outbox_relay::store::postgres::schema::{Migrated, Subject, migrate_subject};
use serde_json::Value;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::support::PATIENCE;
use crate::support::postgres::{Database, database};

/// The consumer that most tests play.
pub const PAY: &str = "payments";

/// What a claim answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    pub outcome: String,
    pub owner: Option<Uuid>,
    pub attempt: i32,
    pub result: Option<Value>,
}

/// What `due` handed out.
#[derive(Clone, Debug, PartialEq)]
pub struct Due {
    pub message_id: String,
    pub outcome: String,
    pub owner: Uuid,
    pub attempt: i32,
    pub payload: Vec<u8>,
}

/// Where a database is, as the configuration says it.
pub fn target(url: &str) -> DatabaseTarget {
    DatabaseTarget::new(DatabaseSection {
        url: Some(Secret::Value(url.to_owned().into())),
        connect_timeout: Duration::from_secs(30),
        ..DatabaseSection::default()
    })
}

/// Makes the inbox, as `migrate --inbox` does.
pub async fn migrate(database: &Database) -> Migrated {
    let session = open(&target(&database.url), "outbox-relay/test/1")
        .await
        .expect("a session");
    migrate_subject(&session, &Subject::inbox(), &mut |_| ())
        .await
        .expect("an inbox")
}

/// A database with an inbox, and a superuser's connection to it.
pub async fn inbox() -> (Database, Client) {
    let database = database().await;
    migrate(&database).await;
    let client = database.connect().await;
    (database, client)
}

/// Runs one query; a test fails rather than waits for ever.
pub async fn ask(
    client: &Client,
    sql: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Vec<tokio_postgres::Row> {
    tokio::time::timeout(PATIENCE, client.query(sql, parameters))
        .await
        .unwrap_or_else(|_| panic!("{sql}: no answer in time"))
        .unwrap_or_else(|error| panic!("{sql}: {error:?}"))
}

/// One number.
pub async fn number(client: &Client, sql: &str) -> i64 {
    ask(client, sql, &[]).await[0].get(0)
}

/// Claims with a lease of 60 s and at most 3 attempts.
pub async fn claim(client: &Client, id: &str, key: Option<&str>) -> Claim {
    claim_for(client, id, key, "60s").await
}

/// Claims with another lease.
pub async fn claim_for(client: &Client, id: &str, key: Option<&str>, lease: &str) -> Claim {
    let sql = "SELECT * FROM inbox.claim($1, $2, $3::text::interval, 'body', \
               ordering_key => $4, max_attempts => 3)";
    let row = &ask(client, sql, &[&PAY, &id, &lease, &key]).await[0];
    Claim {
        outcome: row.get("outcome"),
        owner: row.get("owner"),
        attempt: row.get("attempt"),
        result: row.get("result"),
    }
}

/// Claims what must be free.
pub async fn claimed(client: &Client, id: &str, key: Option<&str>) -> Uuid {
    let claim = claim(client, id, key).await;
    assert_eq!(claim.outcome, "claimed", "{claim:?}");
    claim.owner.expect("a claim has an owner")
}

/// Asks for up to ten due entries.
pub async fn due(client: &Client) -> Vec<Due> {
    due_for(client, "60s").await
}

/// Asks with another lease.
pub async fn due_for(client: &Client, lease: &str) -> Vec<Due> {
    let sql = "SELECT * FROM inbox.due($1, 10, $2::text::interval)";
    let rows = ask(client, sql, &[&PAY, &lease]).await;
    let read = |row: &tokio_postgres::Row| Due {
        message_id: row.get("message_id"),
        outcome: row.get("outcome"),
        owner: row.get("owner"),
        attempt: row.get("attempt"),
        payload: row.get("payload"),
    };
    rows.iter().map(read).collect()
}

/// The message_ids of what is due.
pub async fn due_ids(client: &Client) -> Vec<String> {
    let due = due(client).await;
    due.into_iter().map(|due| due.message_id).collect()
}

/// Completes; whether it counted.
pub async fn complete(client: &Client, id: &str, owner: Uuid) -> bool {
    let sql = "SELECT inbox.complete($1, $2, $3, '{\"paid\": true}')";
    ask(client, sql, &[&PAY, &id, &owner]).await[0].get(0)
}

/// Gives up; whether it counted.
pub async fn fail(client: &Client, id: &str, owner: Uuid) -> bool {
    let sql = "SELECT inbox.fail($1, $2, $3, 'permanent', 'no such account')";
    ask(client, sql, &[&PAY, &id, &owner]).await[0].get(0)
}

/// Renews; whether it counted.
pub async fn renew(client: &Client, id: &str, owner: Uuid, lease: &str) -> bool {
    let sql = "SELECT inbox.renew($1, $2, $3, $4::text::interval)";
    ask(client, sql, &[&PAY, &id, &owner, &lease]).await[0].get(0)
}

/// Puts off; seconds until it is due, none if it is dead now.
pub async fn retry(client: &Client, id: &str, owner: Uuid, after: Option<&str>) -> Option<f64> {
    let sql = "SELECT extract(epoch FROM inbox.retry($1, $2, $3, 'try later', \
               $4::text::interval) - clock_timestamp())::float8";
    ask(client, sql, &[&PAY, &id, &owner, &after]).await[0].get(0)
}

/// The whole entry, for comparison.
pub async fn entry(client: &Client, id: &str) -> Value {
    let sql = "SELECT to_jsonb(m) FROM inbox.message m WHERE consumer = $1 AND message_id = $2";
    ask(client, sql, &[&PAY, &id]).await[0].get(0)
}

/// Its state.
pub async fn state(client: &Client, id: &str) -> String {
    entry(client, id).await["state"]
        .as_str()
        .expect("a state")
        .to_owned()
}
