//! Which rights of a relay the login has. The list is that of `grants`; a test sees to it that a
//! role with exactly those passes.

use tokio_postgres::types::{ToSql, Type};

use super::DEADLINE;
use crate::store::StoreError;
use crate::store::postgres::ident::{Outbox, quoted};
use crate::store::postgres::reader::within;
use crate::store::postgres::row::get;
use crate::store::postgres::session::Session;

/// One right that a relay needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    /// As it stands in GRANT: `SELECT ON "outbox"."message"`.
    pub grant: String,
    /// The login has it.
    pub held: bool,
}

/// What the relay does with each table beside the outbox.
const BESIDE: [(&str, &[&str]); 5] = [
    ("quarantine", &["SELECT", "INSERT"]),
    ("lease", &["SELECT", "INSERT", "UPDATE"]),
    ("instance", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("pause", &["SELECT"]),
    ("schema_version", &["SELECT"]),
];

/// Columns of the outbox that the relay writes.
const MARKS: [&str; 5] = ["attempts", "retry_at", "last_error", "sent_at", "xid"];

/// By OID, so that a missing USAGE on the schema is an answer and not an error.
const SQL: &str = "\
    SELECT n.nspname::text, NULL::text, 'USAGE', NULL::text, \
           pg_catalog.has_schema_privilege(n.oid, 'USAGE'), 0::int8 AS place \
    FROM pg_catalog.pg_namespace n WHERE n.nspname = $1 \
    UNION ALL \
    SELECT NULL, c.relname::text, wanted.privilege, a.attname::text, \
           CASE WHEN a.attnum IS NULL THEN pg_catalog.has_table_privilege(c.oid, wanted.privilege) \
                ELSE pg_catalog.has_column_privilege(c.oid, a.attnum, wanted.privilege) END, \
           wanted.place \
    FROM ROWS FROM (pg_catalog.unnest($2::text[]), pg_catalog.unnest($3::text[]), \
                    pg_catalog.unnest($4::text[])) WITH ORDINALITY \
         AS wanted (relation, privilege, attribute, place) \
    JOIN pg_catalog.pg_namespace n ON n.nspname = $1 \
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.relation \
    LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = wanted.attribute \
    WHERE wanted.attribute IS NULL OR a.attnum IS NOT NULL \
    ORDER BY place";

/// Asks which rights the login has on what exists of the outbox.
///
/// # Errors
/// [`StoreError`] as for any statement.
pub async fn rights(session: &Session, outbox: &Outbox) -> Result<Vec<Right>, StoreError> {
    let mut wanted = Wanted::default();
    for privilege in ["SELECT", "DELETE"] {
        wanted.add(outbox.relation(), privilege, None);
    }
    for column in MARKS {
        wanted.add(outbox.relation(), "UPDATE", Some(column));
    }
    for (table, privileges) in BESIDE {
        for privilege in privileges {
            wanted.add(table, privilege, None);
        }
    }
    let schema = outbox.schema();
    let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
        (&schema, Type::NAME),
        (&wanted.relations, Type::TEXT_ARRAY),
        (&wanted.privileges, Type::TEXT_ARRAY),
        (&wanted.columns, Type::TEXT_ARRAY),
    ];
    let asked = session.client.query_typed(SQL, &parameters);
    let rows = within(DEADLINE, "ask for the login's rights", asked).await?;
    let mut rights = Vec::with_capacity(rows.len());
    for row in &rows {
        let relation: Option<String> = get(row, 1)?;
        let privilege: String = get(row, 2)?;
        let column: Option<String> = get(row, 3)?;
        let grant = match (relation, column) {
            (None, _) => format!("USAGE ON SCHEMA {}", outbox.quoted_schema()),
            (Some(table), None) => format!("{privilege} ON {}", outbox.sibling(&table)),
            (Some(table), Some(column)) => {
                let column = quoted(&column);
                format!("{privilege} ({column}) ON {}", outbox.sibling(&table))
            }
        };
        let held = get(row, 4)?;
        rights.push(Right { grant, held });
    }
    Ok(rights)
}

/// Three columns of one list.
#[derive(Default)]
struct Wanted<'a> {
    relations: Vec<&'a str>,
    privileges: Vec<&'a str>,
    columns: Vec<Option<&'a str>>,
}

impl<'a> Wanted<'a> {
    fn add(&mut self, relation: &'a str, privilege: &'a str, column: Option<&'a str>) {
        self.relations.push(relation);
        self.privileges.push(privilege);
        self.columns.push(column);
    }
}
