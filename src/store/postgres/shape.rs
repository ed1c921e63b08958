//! Which of the outbox's columns a relation offers, and what stands for those that it does not.
//!
//! A relation that offers all is read as it is. One of the user's own may offer fewer: then
//! statements read a subquery with the missing ones filled in, which PostgreSQL flattens.

use std::collections::BTreeSet;

use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use super::ident::{Outbox, quoted};
use super::sqlstate::store_error;
use crate::config::OnSent;
use crate::store::{Fault, StoreError};

/// Columns of the outbox but `payload`, their types, and what stands for them where they are
/// missing. Without `xid` every pending row looks as if it had become visible just now.
const COLUMNS: [(&str, &str, &str); 17] = [
    ("id", "bigint", "NULL::bigint"),
    ("message_id", "text", "own.id::text"),
    ("exchange", "text", "''::text"),
    ("routing_key", "text", "''::text"),
    ("ordering_key", "text", "NULL::text"),
    ("headers", "jsonb", "NULL::jsonb"),
    ("type", "text", "NULL::text"),
    ("correlation_id", "text", "NULL::text"),
    ("content_type", "text", "NULL::text"),
    ("properties", "jsonb", "NULL::jsonb"),
    ("available_at", "timestamptz", "NULL::timestamptz"),
    (
        "created_at",
        "timestamptz",
        "pg_catalog.statement_timestamp()",
    ),
    ("attempts", "integer", "0"),
    ("retry_at", "timestamptz", "NULL::timestamptz"),
    ("last_error", "text", "NULL::text"),
    ("sent_at", "timestamptz", "NULL::timestamptz"),
    (
        "xid",
        "xid8",
        "pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())",
    ),
];

/// Without all of these, retries are counted in memory.
const WAITS: [&str; 3] = ["attempts", "retry_at", "last_error"];

/// What a relation offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    columns: BTreeSet<String>,
}

impl Shape {
    /// Asks the catalog.
    pub(super) async fn of(client: &Client, outbox: &Outbox) -> Result<Self, StoreError> {
        let sql = "SELECT attname::text FROM pg_catalog.pg_attribute \
             WHERE attrelid = pg_catalog.to_regclass($1) AND attnum > 0 AND NOT attisdropped";
        let name = outbox.quoted();
        let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&name, Type::TEXT)];
        let rows = client.query_typed(sql, &parameters).await;
        let rows = rows.map_err(|error| store_error(format!("look at {outbox}"), &error))?;
        let name = |row: &tokio_postgres::Row| row.try_get(0);
        let columns: Result<BTreeSet<String>, _> = rows.iter().map(name).collect();
        let columns = columns.map_err(|error| store_error(format!("look at {outbox}"), &error))?;
        let shape = Self { columns };
        // A relation that is missing, or may not be seen, is told by whoever reads it.
        if shape.columns.is_empty() {
            return Ok(Self::whole());
        }
        match ["id", "payload"].into_iter().find(|one| !shape.has(one)) {
            Some(missing) => Err(StoreError::Schema(Fault::new(
                format!("look at {outbox}"),
                format!("it has no column {missing}, which the relay cannot do without"),
            ))),
            None => Ok(shape),
        }
    }

    /// All columns.
    #[must_use]
    pub fn whole() -> Self {
        let names = COLUMNS.iter().map(|(name, _, _)| (*name).to_owned());
        Self {
            columns: names.chain(["payload".to_owned()]).collect(),
        }
    }

    /// The column is there.
    #[must_use]
    pub fn has(&self, column: &str) -> bool {
        self.columns.contains(column)
    }

    /// A sent row is marked where the relation has a place for it. Who only reads asks as well: what
    /// cannot be told from what was sent would be sent again and again.
    ///
    /// # Errors
    /// [`StoreError::Schema`] if it has none and rows are to be marked.
    pub fn can_mark(&self, outbox: &Outbox, on_sent: OnSent) -> Result<(), StoreError> {
        if on_sent == OnSent::Delete || self.has("sent_at") {
            return Ok(());
        }
        let reason = "it has no column sent_at; add it, or set outbox.on_sent = \"delete\"";
        let doing = format!("prepare to read and settle {outbox}");
        Err(StoreError::Schema(Fault::new(doing, reason)))
    }

    fn is_whole(&self) -> bool {
        COLUMNS.iter().all(|(name, _, _)| self.has(name))
    }

    /// Attempts, and the times of the next ones, are kept in memory.
    #[must_use]
    pub fn keeps_waits_in_memory(&self) -> bool {
        !WAITS.iter().all(|one| self.has(one))
    }

    /// The outbox's columns without `payload`, of a relation called `own`, each under its name.
    pub(super) fn columns(&self) -> String {
        let columns = COLUMNS.iter().map(|(name, ty, otherwise)| {
            if self.has(name) {
                format!("own.{}::{ty} AS {name}", quoted(name))
            } else {
                format!("{otherwise} AS {name}")
            }
        });
        columns.collect::<Vec<_>>().join(", ")
    }

    /// What tells a row of the relation, called by this alias, from another that has its id: the same
    /// as [`read`](super::read_sql::read) tells of it.
    pub(super) fn fingerprint(&self, alias: &str) -> String {
        let column = if self.has("message_id") {
            "message_id"
        } else {
            "id"
        };
        format!(
            "pg_catalog.hashtextextended({alias}.{}::text, 0)",
            quoted(column)
        )
    }

    /// What stands in FROM, with an alias behind it, where rows are read.
    pub(super) fn readable(&self, outbox: &Outbox) -> String {
        if self.is_whole() {
            return outbox.quoted();
        }
        let columns = self.columns();
        format!(
            "(SELECT {columns}, own.payload FROM {} AS own)",
            outbox.quoted()
        )
    }

    /// The same, with the waits in memory as parameters `first` (ids), `first` + 1 (attempts) and
    /// `first` + 2 (times).
    pub(super) fn with_waits(&self, outbox: &Outbox, first: usize) -> String {
        if !self.keeps_waits_in_memory() {
            return self.readable(outbox);
        }
        let columns = Self {
            columns: self
                .columns
                .iter()
                .filter(|name| !WAITS.contains(&name.as_str()))
                .cloned()
                .collect(),
        }
        .columns()
        .replace("0 AS attempts", "coalesce(waits.attempts, 0) AS attempts")
        .replace(
            "NULL::timestamptz AS retry_at",
            "waits.retry_at AS retry_at",
        );
        let (second, third) = (first + 1, first + 2);
        format!(
            "(SELECT {columns}, own.payload FROM {} AS own \
             LEFT JOIN unnest(${first}::bigint[], ${second}::int[], ${third}::timestamptz[]) \
             AS waits (id, attempts, retry_at) ON waits.id = own.id)",
            outbox.quoted()
        )
    }

    /// ` AND sent_at IS NULL`, where rows are marked.
    pub(super) fn unsent(&self) -> &'static str {
        if self.has("sent_at") {
            " AND sent_at IS NULL"
        } else {
            ""
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outbox() -> Outbox {
        Outbox::new("outbox", "message").expect("good names")
    }

    fn of(columns: &[&str]) -> Shape {
        Shape {
            columns: columns.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    #[test]
    fn a_whole_relation_is_read_as_it_is() {
        let whole = Shape::whole();
        assert_eq!(whole.readable(&outbox()), outbox().quoted());
        assert_eq!(whole.with_waits(&outbox(), 12), outbox().quoted());
        assert!(!whole.keeps_waits_in_memory());
    }

    #[test]
    fn what_is_missing_is_filled_in() {
        let lean = of(&["id", "payload", "ordering_key"]);
        let sql = lean.with_waits(&outbox(), 12);
        for part in [
            "own.\"ordering_key\"::text AS ordering_key",
            "own.id::text AS message_id",
            "coalesce(waits.attempts, 0) AS attempts",
            "waits.retry_at AS retry_at",
            "NULL::timestamptz AS sent_at",
            "$14::timestamptz[]",
        ] {
            assert!(sql.contains(part), "{part} is not in {sql}");
        }
        assert_eq!(lean.unsent(), "");
    }

    #[test]
    fn a_relation_with_attempts_alone_keeps_waits_in_memory_all_the_same() {
        let lean = of(&["id", "payload", "attempts"]);
        assert!(lean.keeps_waits_in_memory());
        let sql = lean.with_waits(&outbox(), 12);
        assert!(sql.contains("coalesce(waits.attempts, 0)"), "{sql}");
    }
}
