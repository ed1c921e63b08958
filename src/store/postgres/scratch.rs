//! A scratch outbox for `outbox-relay bench`: made by the migrations, filled, and dropped.

use std::time::Duration;

use tokio_postgres::Statement;
use tokio_postgres::types::{ToSql, Type};

use super::ident::Outbox;
use super::reader::within;
use super::row::get;
use super::schema::{self, MigrateError, Wanted};
use super::session::Session;
use super::sqlstate::store_error;
use super::store::PgStore;
use crate::message::RowId;
use crate::store::StoreError;

/// Rows of one filling statement.
const PORTION: i64 = 10_000;

/// An outbox that may be filled and emptied.
pub struct Scratch {
    /// The store that reads it.
    pub store: PgStore,
    session: Session,
}

/// What rows look like.
#[derive(Clone, Copy, Debug)]
pub struct Shape<'a> {
    /// Where they go, through the default exchange.
    pub queue: &'a str,
    /// Ordering keys.
    pub keys: i64,
    /// Bytes of a payload.
    pub size: usize,
}

impl Scratch {
    /// Opens a session for an outbox of that name, and makes nothing yet.
    ///
    /// # Errors
    /// [`StoreError`] as ever.
    pub async fn open(store: &PgStore, outbox: Outbox) -> Result<Self, StoreError> {
        let store = PgStore {
            outbox,
            ..store.clone()
        };
        let session = store.session("bench").await?;
        Ok(Self { store, session })
    }

    /// Makes the outbox in a schema of its own, which must not exist.
    ///
    /// # Errors
    /// [`MigrateError`], for instance if the login may not create schemas.
    pub async fn make(&self) -> Result<(), MigrateError> {
        let Self { store, session } = self;
        schema::migrate(session, &store.outbox, Wanted::default(), &mut |_| {}).await?;
        Ok(())
    }

    /// Empties the outbox and fills it with so many pending rows.
    ///
    /// # Errors
    /// [`StoreError`] as ever.
    pub async fn fill(&self, rows: i64, shape: Shape<'_>) -> Result<(), StoreError> {
        let relation = self.store.outbox.quoted();
        let client = &self.session.client;
        let truncate = format!("TRUNCATE {relation} RESTART IDENTITY");
        let emptied = client.batch_execute(&truncate);
        within(self.store.deadline(), "empty the scratch outbox", emptied).await?;
        let insert = format!(
            "INSERT INTO {relation} (routing_key, ordering_key, payload) \
             SELECT $3, (g % $4)::text, $5::text::json \
             FROM pg_catalog.generate_series($1::bigint, $2::bigint) AS g"
        );
        let body = body(shape.size);
        let mut from = 1;
        while from <= rows {
            let to = rows.min(from + PORTION - 1);
            let parameters: [(&(dyn ToSql + Sync), Type); 5] = [
                (&from, Type::INT8),
                (&to, Type::INT8),
                (&shape.queue, Type::TEXT),
                (&shape.keys, Type::INT8),
                (&body, Type::TEXT),
            ];
            let inserted = client.execute_typed(&insert, &parameters);
            within(self.store.deadline(), "fill the scratch outbox", inserted).await?;
            from = to + 1;
        }
        Ok(())
    }

    /// A session of its own that inserts row by row, as an application does.
    ///
    /// # Errors
    /// [`StoreError`] as ever.
    pub async fn writer(&self, shape: Shape<'_>) -> Result<Writer, StoreError> {
        let session = self.store.session("bench").await?;
        let insert = format!(
            "INSERT INTO {} (routing_key, ordering_key, payload) \
             VALUES ($1::text, $2::text, ($3::text)::json) RETURNING id",
            self.store.outbox.quoted()
        );
        let prepared = session.client.prepare(&insert);
        let insert = within(self.store.deadline(), "prepare to write", prepared).await?;
        Ok(Writer {
            session,
            insert,
            queue: shape.queue.to_owned(),
            body: body(shape.size),
            deadline: self.store.deadline(),
        })
    }

    /// Drops the schema with all that is in it.
    ///
    /// # Errors
    /// [`StoreError`] if it may still be there.
    pub async fn drop_schema(store: &PgStore, outbox: &Outbox) -> Result<(), StoreError> {
        let session = store.session("bench").await?;
        let sql = format!("DROP SCHEMA IF EXISTS {} CASCADE", outbox.quoted_schema());
        let dropped = session.client.batch_execute(&sql);
        within(store.deadline(), "drop the scratch schema", dropped).await
    }
}

/// Inserts rows one by one.
pub struct Writer {
    session: Session,
    insert: Statement,
    queue: String,
    body: String,
    deadline: Duration,
}

impl Writer {
    /// Inserts and commits a row; returns when PostgreSQL has confirmed the commit.
    ///
    /// # Errors
    /// [`StoreError`] as ever.
    pub async fn write(&self, key: &str) -> Result<RowId, StoreError> {
        let parameters: [&(dyn ToSql + Sync); 3] = [&self.queue, &key, &self.body];
        let row = self.session.client.query_one(&self.insert, &parameters);
        let row = tokio::time::timeout(self.deadline, row).await;
        let late = || {
            let reason = format!("no answer within {} s", self.deadline.as_secs());
            StoreError::Unreachable(crate::store::Fault::new("write a row", reason))
        };
        let row = row.map_err(|_| late())?;
        let row = row.map_err(|error| store_error("write a row", &error))?;
        Ok(RowId(get(&row, 0)?))
    }
}

/// JSON of so many bytes.
#[must_use]
pub fn body(size: usize) -> String {
    let head = "{\"note\": \"";
    format!(
        "{head}{}\"}}",
        "x".repeat(size.saturating_sub(head.len() + 2))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_has_the_size_asked_for_and_is_json() {
        for size in [12, 300, 5000] {
            assert_eq!(body(size).len(), size);
            assert!(serde_json::from_str::<serde_json::Value>(&body(size)).is_ok());
        }
    }
}
