//! What operators ask of an inbox, and what they do to its entries. Consumers go by `crate::inbox`.

use std::time::{Duration, SystemTime};

use serde_json::Value;
use tokio::time::timeout;
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Client, Row};

use super::operator::Act as Signature;
use super::sqlstate::store_error;
use crate::store::error::{Fault, StoreError};

/// Longest wait for an answer.
const LONGEST: Duration = Duration::from_secs(60);

/// Which entries are meant; all conditions hold together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// Of this consumer.
    pub consumer: Option<String>,
    /// In this state.
    pub state: Option<String>,
    /// Failed with this `reason_class`.
    pub class: Option<String>,
    /// Of this ordering key.
    pub key: Option<String>,
    /// Received at least so long ago.
    pub older_than: Option<Duration>,
    /// These; empty for all.
    pub message_ids: Vec<String>,
}

/// One entry, without its contents.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Whose.
    pub consumer: String,
    /// Which message.
    pub message_id: String,
    /// Of which key.
    pub ordering_key: Option<String>,
    /// Its state.
    pub state: String,
    /// Attempts begun.
    pub attempt: i32,
    /// When it may be worked on.
    pub due_at: Option<SystemTime>,
    /// Class of the last failure.
    pub reason_class: Option<String>,
    /// The last failure.
    pub reason: Option<String>,
    /// When it arrived.
    pub received_at: SystemTime,
    /// When it became done or dead.
    pub done_at: Option<SystemTime>,
}

/// How many entries of a consumer are in a state.
#[derive(Clone, Debug, PartialEq)]
pub struct Total {
    /// Whose.
    pub consumer: String,
    /// Which state.
    pub state: String,
    /// Class of the failure, of dead ones.
    pub class: Option<String>,
    /// How many.
    pub entries: i64,
    /// How long ago the oldest arrived; of dead ones, since when it has been dead.
    pub oldest_age: Duration,
}

/// What an operator does to a dead entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// `inbox.replay`.
    Replay,
    /// `inbox.discard`.
    Discard,
}

/// What came of an act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Done,
    /// The entry is done already, and will not run twice.
    Suppressed,
    /// Somebody works on it, or it waits for that.
    Unfinished,
    /// There is no such entry.
    Missing,
}

/// Counts entries by consumer, state and class.
///
/// # Errors
/// [`StoreError`] as for any statement.
pub async fn totals(client: &Client) -> Result<Vec<Total>, StoreError> {
    let sql = "SELECT consumer, state, CASE state WHEN 'dead' THEN coalesce(reason_class, '') END, \
               count(*), greatest(extract(epoch FROM clock_timestamp() \
               - min(CASE state WHEN 'dead' THEN done_at ELSE received_at END)), 0)::float8 \
               FROM inbox.message GROUP BY 1, 2, 3 ORDER BY 1, 2, 3";
    let read = |row: &Row| {
        Ok(Total {
            consumer: get(row, 0)?,
            state: get(row, 1)?,
            class: get(row, 2)?,
            entries: get(row, 3)?,
            oldest_age: Duration::try_from_secs_f64(get(row, 4)?).unwrap_or_default(),
        })
    };
    ask(client, sql, &[]).await?.iter().map(read).collect()
}

/// Lists entries in the order of their arrival, at most `limit`.
///
/// # Errors
/// [`StoreError`] as for any statement.
pub async fn list(client: &Client, filter: &Filter, limit: i64) -> Result<Vec<Entry>, StoreError> {
    let sql = "SELECT consumer, message_id, ordering_key, state, attempt, due_at, reason_class, \
               reason, received_at, done_at FROM inbox.message \
               WHERE ($1::text IS NULL OR consumer = $1) AND ($2::text IS NULL OR state = $2) \
               AND ($3::text IS NULL OR reason_class = $3) \
               AND ($4::text IS NULL OR ordering_key = $4) \
               AND ($5::float8 IS NULL OR received_at <= clock_timestamp() - make_interval(secs => $5)) \
               AND (cardinality($6::text[]) = 0 OR message_id = ANY ($6)) \
               ORDER BY received_at, message_id LIMIT $7";
    let parameters: [(&(dyn ToSql + Sync), Type); 7] = [
        (&filter.consumer, Type::TEXT),
        (&filter.state, Type::TEXT),
        (&filter.class, Type::TEXT),
        (&filter.key, Type::TEXT),
        (
            &filter.older_than.map(|age| age.as_secs_f64()),
            Type::FLOAT8,
        ),
        (&filter.message_ids, Type::TEXT_ARRAY),
        (&limit, Type::INT8),
    ];
    let rows = ask(client, sql, &parameters).await?;
    rows.iter().map(entry).collect()
}

fn entry(row: &Row) -> Result<Entry, StoreError> {
    Ok(Entry {
        consumer: get(row, 0)?,
        message_id: get(row, 1)?,
        ordering_key: get(row, 2)?,
        state: get(row, 3)?,
        attempt: get(row, 4)?,
        due_at: get(row, 5)?,
        reason_class: get(row, 6)?,
        reason: get(row, 7)?,
        received_at: get(row, 8)?,
        done_at: get(row, 9)?,
    })
}

const ENTRY: &str = "SELECT to_jsonb(m) - 'payload' || jsonb_build_object(\
        'payload_bytes', octet_length(m.payload), \
        'payload_sha256', encode(sha256(m.payload), 'hex')) \
    || CASE WHEN $3 AND m.payload IS NOT NULL \
       THEN jsonb_build_object('payload_base64', encode(m.payload, 'base64')) ELSE '{}' END";
const AUDIT: &str = "|| jsonb_build_object('audit', coalesce((\
        SELECT jsonb_agg(to_jsonb(a) - 'consumer' - 'message_id' ORDER BY a.audit_id) \
        FROM inbox.audit a \
        WHERE a.consumer = m.consumer AND a.message_id = m.message_id), '[]'))";
const OF_MESSAGE: &str = "FROM inbox.message m \
    WHERE ($1::text IS NULL OR m.consumer = $1) AND m.message_id = $2 ORDER BY m.consumer";

/// Everything about the entries of a message, one for each consumer, with its audit. The payload
/// is told by size and digest only, unless it is asked for.
///
/// # Errors
/// [`StoreError`] as for any statement.
pub async fn show(
    client: &Client,
    consumer: Option<&str>,
    message_id: &str,
    with_payload: bool,
) -> Result<Vec<Value>, StoreError> {
    // Operators may write to the audit without being allowed to read it.
    let may = "SELECT pg_catalog.has_table_privilege('inbox.audit', 'SELECT')";
    let may: bool = first(&ask(client, may, &[]).await?)?;
    let parameters: [(&(dyn ToSql + Sync), Type); 3] = [
        (&consumer, Type::TEXT),
        (&message_id, Type::TEXT),
        (&with_payload, Type::BOOL),
    ];
    let audit = if may { AUDIT } else { "" };
    let sql = format!("{ENTRY} {audit} {OF_MESSAGE}");
    let rows = ask(client, &sql, &parameters).await?;
    rows.iter().map(|row| get(row, 0)).collect()
}

/// Replays or discards one entry and records it, in one transaction.
///
/// # Errors
/// [`StoreError`]; then nothing was done or recorded.
pub async fn act(
    client: &Client,
    act: Act,
    consumer: &str,
    message_id: &str,
    signed: &Signature,
) -> Result<Outcome, StoreError> {
    let sql = match act {
        Act::Replay => "SELECT inbox.replay($1, $2, $3, $4, $5)",
        Act::Discard => "SELECT inbox.discard($1, $2, $3, $4, $5)",
    };
    let parameters: [(&(dyn ToSql + Sync), Type); 5] = [
        (&consumer, Type::TEXT),
        (&message_id, Type::TEXT),
        (&signed.by, Type::TEXT),
        (&signed.reason, Type::TEXT),
        (&signed.version, Type::TEXT),
    ];
    let outcome: String = first(&ask(client, sql, &parameters).await?)?;
    match outcome.as_str() {
        "replayed" | "discarded" => Ok(Outcome::Done),
        "suppressed" => Ok(Outcome::Suppressed),
        "unfinished" => Ok(Outcome::Unfinished),
        "missing" => Ok(Outcome::Missing),
        other => {
            let reason = format!("the outcome {other:?} is unknown: the schema is newer");
            Err(StoreError::Schema(Fault::new("inbox", reason)))
        }
    }
}

async fn ask(
    client: &Client,
    sql: &str,
    parameters: &[(&(dyn ToSql + Sync), Type)],
) -> Result<Vec<Row>, StoreError> {
    match timeout(LONGEST, client.query_typed(sql, parameters)).await {
        Ok(answer) => answer.map_err(failed),
        Err(_) => {
            let reason = format!("no answer within {} s", LONGEST.as_secs());
            Err(StoreError::TimedOut(Fault::new("ask the inbox", reason)))
        }
    }
}

fn first<'a, T: FromSql<'a>>(rows: &'a [Row]) -> Result<T, StoreError> {
    let row = rows.first();
    let row = row.ok_or_else(|| StoreError::Other(Fault::new("ask the inbox", "empty answer")))?;
    get(row, 0)
}

fn get<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, StoreError> {
    row.try_get(column).map_err(failed)
}

#[allow(clippy::needless_pass_by_value, reason = "made for map_err")]
fn failed(error: tokio_postgres::Error) -> StoreError {
    match store_error("ask the inbox", &error) {
        StoreError::Schema(fault) => {
            StoreError::Schema(fault.with_remedy("run outbox-relay migrate --inbox first"))
        }
        other @ (StoreError::Unreachable(_)
        | StoreError::Retryable(_)
        | StoreError::ReadOnly(_)
        | StoreError::Denied(_)
        | StoreError::TimedOut(_)
        | StoreError::Settings(_)
        | StoreError::Other(_)) => other,
    }
}
