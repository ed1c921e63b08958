//! What is left in the outbox, by why it is left.

use std::fmt;

use super::ident::quote_literal;
use super::operator::Operator;
use super::row::get;
use super::shape::Shape;
use crate::store::{Fault, StoreError};

/// Counting stops here: a person wants to know whether it is many.
const ENOUGH: i64 = 10_000;

/// A number of rows, exact up to 10,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(i64);

impl Count {
    /// None at all.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 > ENOUGH {
            write!(f, "more than {ENOUGH}")
        } else {
            self.0.fmt(f)
        }
    }
}

/// Rows that are not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// Could be sent now; held back by what refuses them or by a row of their key.
    pub due: Count,
    /// `available_at` lies ahead.
    pub scheduled: Count,
    /// Refused, and tried again when `retry_at` comes.
    pub waiting: Count,
    /// In quarantine.
    pub quarantined: Count,
    /// Partitions whose rows other relays send.
    pub elsewhere: i64,
}

impl Operator {
    /// Counts what is left.
    ///
    /// # Errors
    /// [`StoreError`] as ever.
    pub async fn remaining(&self) -> Result<Remaining, StoreError> {
        let outbox = &self.outbox;
        let shape = Shape::of(&self.session.client, outbox).await?;
        let relation = format!("{} AS m", shape.readable(outbox));
        let quarantine = outbox.sibling("quarantine");
        let lease = outbox.sibling("lease");
        let name = quote_literal(outbox.relation());
        let count = |condition: &str| {
            format!(
                "(SELECT count(*) FROM (SELECT FROM {relation} WHERE sent_at IS NULL AND {condition} \
                 LIMIT {ENOUGH} + 1) AS counted)"
            )
        };
        let scheduled = "available_at IS NOT NULL AND available_at > statement_timestamp()";
        // Also one whose time came while this was asked.
        let waiting = "retry_at IS NOT NULL";
        let due = "id > 0 AND (available_at IS NULL OR available_at <= statement_timestamp()) \
             AND retry_at IS NULL";
        let (due, scheduled, waiting) = (count(due), count(scheduled), count(waiting));
        let sql = format!(
            "SELECT {due}, {scheduled}, {waiting}, \
             (SELECT count(*) FROM (SELECT FROM {quarantine} LIMIT {ENOUGH} + 1) AS counted), \
             (SELECT count(owner) FROM {lease} WHERE relation = {name})"
        );
        let rows = self.rows("count what is left", &sql, &[]).await?;
        let row = rows
            .first()
            .ok_or_else(|| StoreError::Other(Fault::new("count what is left", "empty answer")))?;
        Ok(Remaining {
            due: Count(get(row, 0)?),
            scheduled: Count(get(row, 1)?),
            waiting: Count(get(row, 2)?),
            quarantined: Count(get(row, 3)?),
            elsewhere: get(row, 4)?,
        })
    }
}
