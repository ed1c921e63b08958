//! Is there a pooler in transaction mode between us and the database?
//!
//! LISTEN, session advisory locks and prepared statements belong to a server process. Such a
//! pooler lends one for the length of a transaction, so they do not hold. Two sessions find out:
//! one asks for its process twice, and in between the other holds a transaction open.

use std::time::Duration;

use tokio_postgres::{Client, SimpleQueryMessage};

use super::DEADLINE;
use crate::store::StoreError;
use crate::store::error::Fault;
use crate::store::postgres::session::Session;
use crate::store::postgres::sqlstate::store_error;

/// Poolers hand out the process given back last first, or the one unused for longest: a few
/// rounds find either.
const ROUNDS: u32 = 3;
/// How long a session may wait for a process while the other one has one.
const TURN: Duration = Duration::from_secs(3);

/// Who serves our sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Each session has a server process of its own, as far as can be seen.
    None,
    /// They share; how that was seen.
    Shared(String),
}

/// What to do about it.
pub const REMEDY: &str = "connect to PostgreSQL itself, or to a pool with pool_mode = session; the \
     relay needs two connections";

/// What it means, given how it was seen.
#[must_use]
pub fn in_the_way(seen: &str) -> String {
    format!(
        "a pooler in transaction mode is in the way ({seen}): LISTEN, advisory locks and prepared \
         statements do not hold"
    )
}

/// Looks, with two sessions of the same login. Leaves no transaction open.
///
/// # Errors
/// [`StoreError`] as for any statement.
pub async fn pooling(one: &Session, other: &Session) -> Result<Pooling, StoreError> {
    for _ in 0..ROUNDS {
        let first = process(&one.client, "SELECT pg_catalog.pg_backend_pid()").await?;
        let held = process(&other.client, "BEGIN; SELECT pg_catalog.pg_backend_pid()").await?;
        let asking = process(&one.client, "SELECT pg_catalog.pg_backend_pid()");
        let second = tokio::time::timeout(TURN, asking).await;
        let rollback = other.client.batch_execute("ROLLBACK");
        within_deadline(rollback).await?;
        let seen = match second {
            Err(_) => "a session waits while another has a transaction open".to_owned(),
            Ok(second) => {
                let second = second?;
                if first == second && first != held {
                    continue;
                }
                format!(
                    "one session was served by processes {first} and {second}, another by {held}"
                )
            }
        };
        return Ok(Pooling::Shared(seen));
    }
    Ok(Pooling::None)
}

/// By the simple protocol, which every pooler passes on.
async fn process(client: &Client, sql: &str) -> Result<String, StoreError> {
    let answer = within_deadline(client.simple_query(sql)).await?;
    let pid = answer.iter().find_map(|message| {
        let SimpleQueryMessage::Row(row) = message else {
            return None;
        };
        row.get(0).map(ToOwned::to_owned)
    });
    pid.ok_or_else(|| StoreError::Other(Fault::new(DOING, "empty answer")))
}

const DOING: &str = "ask which process serves the session";

async fn within_deadline<T>(
    question: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(DEADLINE, question).await {
        Ok(answer) => answer.map_err(|error| store_error(DOING, &error)),
        Err(_) => {
            let reason = format!("no answer within {} s", DEADLINE.as_secs());
            Err(StoreError::Unreachable(Fault::new(DOING, reason)))
        }
    }
}
