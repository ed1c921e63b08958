//! What of the application's own stands in the way of marking and removing rows: what refers to the
//! outbox by a foreign key, and triggers on it; and rows that are never read. Bounded, by the catalog.

use tokio_postgres::types::{ToSql, Type};

use super::DEADLINE;
use crate::store::StoreError;
use crate::store::postgres::ident::Outbox;
use crate::store::postgres::reader::within;
use crate::store::postgres::row::get;
use crate::store::postgres::session::Session;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hindrances {
    /// Foreign keys that refer to the outbox.
    pub references: Vec<Reference>,
    /// Enabled triggers of the application's on UPDATE or DELETE.
    pub triggers: Vec<String>,
    /// Row-level security applies to the login: it sees what policies show, and nothing else.
    pub row_security: bool,
}

/// A foreign key that refers to the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Its name, quoted where that is needed.
    pub name: String,
    /// The table that refers, with its schema where that is needed.
    pub table: String,
    /// Its columns, quoted and with commas.
    pub columns: String,
    /// A row that is referred to cannot be removed.
    pub keeps: bool,
    /// An index of the table begins with these columns.
    pub indexed: bool,
    /// The table is partitioned: no index of it can be made CONCURRENTLY.
    pub partitioned: bool,
}

const REFERENCES: &str = "\
    SELECT pg_catalog.quote_ident(c.conname), c.conrelid::pg_catalog.regclass::text, \
      (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(a.attname), ', ' ORDER BY k.place) \
       FROM pg_catalog.unnest(c.conkey) WITH ORDINALITY AS k (attnum, place) \
       JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.conrelid AND a.attnum = k.attnum), \
      c.confdeltype IN ('a', 'r'), \
      EXISTS (SELECT FROM pg_catalog.pg_index AS i WHERE i.indrelid = c.conrelid AND i.indisvalid \
        AND i.indpred IS NULL AND i.indkey[0] = c.conkey[1]), \
      (SELECT t.relkind = 'p' FROM pg_catalog.pg_class AS t WHERE t.oid = c.conrelid) \
    FROM pg_catalog.pg_constraint AS c \
    JOIN pg_catalog.pg_class AS r ON r.oid = c.confrelid \
    JOIN pg_catalog.pg_namespace AS n ON n.oid = r.relnamespace \
    WHERE c.contype = 'f' AND c.conparentid = 0 AND n.nspname = $1 AND r.relname = $2 ORDER BY 2, 1 LIMIT 20";

/// Bits 3 and 4 of `tgtype` are DELETE and UPDATE (PostgreSQL source, `catalog/pg_trigger.h`).
const TRIGGERS: &str = "\
    SELECT t.tgname::text FROM pg_catalog.pg_trigger AS t \
    JOIN pg_catalog.pg_class AS r ON r.oid = t.tgrelid \
    JOIN pg_catalog.pg_namespace AS n ON n.oid = r.relnamespace \
    WHERE NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 24 <> 0 \
      AND n.nspname = $1 AND r.relname = $2 AND r.relkind IN ('r', 'p') ORDER BY 1 LIMIT 20";

const ROW_SECURITY: &str = "\
    SELECT pg_catalog.row_security_active(r.oid) FROM pg_catalog.pg_class AS r \
    JOIN pg_catalog.pg_namespace AS n ON n.oid = r.relnamespace \
    WHERE n.nspname = $1 AND r.relname = $2 AND r.relkind IN ('r', 'p')";

/// Looks.
///
/// # Errors
/// [`StoreError`] as for any statement.
pub async fn hindrances(session: &Session, outbox: &Outbox) -> Result<Hindrances, StoreError> {
    let (schema, relation) = (outbox.schema(), outbox.relation());
    let names: [(&(dyn ToSql + Sync), Type); 2] = [(&schema, Type::NAME), (&relation, Type::NAME)];
    let client = &session.client;
    let doing = "look what refers to the outbox";
    let references = within(DEADLINE, doing, client.query_typed(REFERENCES, &names)).await?;
    let doing = "look for triggers";
    let triggers = within(DEADLINE, doing, client.query_typed(TRIGGERS, &names)).await?;
    let doing = "ask for row-level security";
    let active = within(DEADLINE, doing, client.query_typed(ROW_SECURITY, &names)).await?;
    let active = active.first().map(|row| get(row, 0)).transpose()?;
    let reference = |row: &tokio_postgres::Row| {
        Ok::<_, StoreError>(Reference {
            name: get(row, 0)?,
            table: get(row, 1)?,
            columns: get(row, 2)?,
            keeps: get(row, 3)?,
            indexed: get(row, 4)?,
            partitioned: get(row, 5)?,
        })
    };
    Ok(Hindrances {
        references: references.iter().map(reference).collect::<Result<_, _>>()?,
        triggers: triggers
            .iter()
            .map(|row| get(row, 0))
            .collect::<Result<_, _>>()?,
        row_security: active.unwrap_or(false),
    })
}

/// The lowest id of a pending row, if it is below 1. `marked`: sent rows stay, with their `sent_at`.
///
/// # Errors
/// [`StoreError`] as for any statement.
pub async fn unread(
    session: &Session,
    outbox: &Outbox,
    marked: bool,
) -> Result<Option<i64>, StoreError> {
    let pending = if marked { " AND sent_at IS NULL" } else { "" };
    let sql = format!(
        "SELECT id FROM {} WHERE id < 1{pending} ORDER BY id LIMIT 1",
        outbox.quoted()
    );
    let asked = session.client.query_typed(&sql, &[]);
    let rows = within(DEADLINE, "look for rows that are never read", asked).await?;
    rows.first().map(|row| get(row, 0)).transpose()
}
