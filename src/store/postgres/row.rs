//! From a result row to a found row.

use std::time::{Duration, SystemTime};

use tokio_postgres::Row;

use super::sqlstate::store_error;
use super::values::PayloadBytes;
use crate::message::{Body, OutboxRow, RowId};
use crate::relay::rules::{Fingerprint, Found, Partition, Pause};
use crate::store::{Fault, StoreError};

/// One line of the answer to a read.
pub(super) struct Line {
    /// Which part of the read it belongs to.
    pub(super) part: i32,
    /// The row's id; for the head 0, or where a full page ends.
    pub(super) id: i64,
    /// When it fell due, if that is why it was found.
    pub(super) due_at: Option<SystemTime>,
    /// It may be sent now, and by us.
    pub(super) usable: bool,
    row: Row,
}

/// Positions of the columns of [`super::read_sql::read`].
mod column {
    pub(super) const PART: usize = 0;
    pub(super) const ID: usize = 1;
    pub(super) const MESSAGE_ID: usize = 2;
    pub(super) const EXCHANGE: usize = 3;
    pub(super) const ROUTING_KEY: usize = 4;
    pub(super) const ORDERING_KEY: usize = 5;
    pub(super) const HEADERS: usize = 6;
    pub(super) const TYPE: usize = 7;
    pub(super) const CORRELATION_ID: usize = 8;
    pub(super) const CONTENT_TYPE: usize = 9;
    pub(super) const PROPERTIES: usize = 10;
    pub(super) const CREATED_AT: usize = 11;
    pub(super) const ATTEMPTS: usize = 12;
    pub(super) const HASH: usize = 13;
    pub(super) const DUE_AT: usize = 14;
    pub(super) const USABLE: usize = 15;
    pub(super) const WAIT: usize = 16;
    pub(super) const AGE: usize = 17;
    pub(super) const STORED: usize = 18;
    pub(super) const PAYLOAD: usize = 19;
    pub(super) const HELD: usize = 20;
    pub(super) const FINGERPRINT: usize = 21;
}

/// Where the payload stands in the answer to a read.
pub(super) const PAYLOAD: usize = column::PAYLOAD;

impl Line {
    pub(super) fn new(row: Row) -> Result<Self, StoreError> {
        Ok(Self {
            part: get(&row, column::PART)?,
            id: get::<Option<i64>>(&row, column::ID)?.unwrap_or(0),
            due_at: get(&row, column::DUE_AT)?,
            usable: get(&row, column::USABLE)?,
            row,
        })
    }

    /// The head's snapshot, recovery flag, server start and clock.
    pub(super) fn head(&self) -> Result<(String, bool, String, SystemTime), StoreError> {
        let recovery: String = get(&self.row, column::EXCHANGE)?;
        Ok((
            get(&self.row, column::MESSAGE_ID)?,
            recovery == "true",
            get(&self.row, column::ROUTING_KEY)?,
            get(&self.row, column::CREATED_AT)?,
        ))
    }

    /// The head's pauses.
    pub(super) fn pauses(&self) -> Result<Vec<Pause>, StoreError> {
        let Some(text) = get::<Option<&str>>(&self.row, column::HEADERS)? else {
            return Ok(Vec::new());
        };
        let pauses: Vec<(Option<String>, String, String)> = serde_json::from_str(text)
            .map_err(|error| StoreError::Other(Fault::new("read pauses", error.to_string())))?;
        let pause = |(exchange, by, reason)| Pause {
            exchange,
            by,
            reason,
        };
        Ok(pauses.into_iter().map(pause).collect())
    }

    /// Are there partitions that nobody owns?
    pub(super) fn orphans(&self) -> Result<bool, StoreError> {
        let orphans: Option<&str> = get(&self.row, column::TYPE)?;
        Ok(orphans == Some("true"))
    }

    pub(super) fn found(&self) -> Result<Found, StoreError> {
        let row = &self.row;
        let ordering_key: Option<String> = get(row, column::ORDERING_KEY)?;
        let hash = get::<i64>(row, column::HASH)?.cast_unsigned();
        let key = ordering_key.is_some().then_some(hash);
        let wait: Option<f64> = get(row, column::WAIT)?;
        let stored: Option<i32> = get(row, column::STORED)?;
        let payload: Option<PayloadBytes> = get(row, column::PAYLOAD)?;
        let attempts: i32 = get(row, column::ATTEMPTS)?;
        let (payload, deferred) = match (payload, stored) {
            (Some(PayloadBytes(bytes)), _) => (Body::Bytes(bytes), None),
            (None, Some(stored)) => (Body::Null, Some(u64::from(stored.unsigned_abs()))),
            (None, None) => (Body::Null, None),
        };
        let outbox_row = OutboxRow {
            id: RowId(self.id),
            message_id: get(row, column::MESSAGE_ID)?,
            exchange: get(row, column::EXCHANGE)?,
            routing_key: get(row, column::ROUTING_KEY)?,
            ordering_key,
            payload,
            headers: get(row, column::HEADERS)?,
            message_type: get(row, column::TYPE)?,
            correlation_id: get(row, column::CORRELATION_ID)?,
            content_type: get(row, column::CONTENT_TYPE)?,
            properties: get(row, column::PROPERTIES)?,
            created_at: get(row, column::CREATED_AT)?,
            attempts: u32::try_from(attempts).unwrap_or(0),
        };
        let partition = Partition(hash.to_le_bytes()[0]);
        let wait = wait.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let age = age(get(row, column::AGE)?);
        let held: Option<f64> = get(row, column::HELD)?;
        let held = held.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default());
        let found = Found::whole(outbox_row, key, partition, wait, age).held(held);
        let found = match get::<Option<i64>>(row, column::FINGERPRINT)? {
            Some(hash) => found.known_by(Fingerprint(hash)),
            None => found,
        };
        Ok(match deferred {
            Some(stored) => found.deferred(stored),
            None => found,
        })
    }
}

/// So far ahead of the database's clock lies no time that a clock was set back by.
const FAR_AHEAD: f64 = 24.0 * 3600.0;

/// How long a row could have been sent. One "from the future", by a clock that was set back, is
/// new. One from a future that nobody's clock has seen says nothing about its age: new for ever,
/// it would never be given up.
fn age(seconds: f64) -> Duration {
    if seconds < -FAR_AHEAD {
        return Duration::MAX;
    }
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// A column's value; a mismatch is told with the column's place and type, never its value.
pub(super) fn get<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a Row,
    column: usize,
) -> Result<T, StoreError> {
    row.try_get(column)
        .map_err(|error| store_error("read rows", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_from_a_far_future_is_not_new_for_ever() {
        assert_eq!(age(2.5), Duration::from_millis(2500));
        assert_eq!(age(-60.0), Duration::ZERO);
        assert_eq!(age(-1e9), Duration::MAX);
    }
}
