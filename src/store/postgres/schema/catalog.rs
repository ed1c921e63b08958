//! Reads from PostgreSQL's catalog what an outbox looks like now.
//!
//! Looks at the objects themselves and not at `schema_version`, so that it also sees an outbox
//! that another tool made. Judges nothing; `pending` does. Needs no right but CONNECT.

use std::collections::BTreeMap;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use crate::store::error::StoreError;
use crate::store::postgres::ident::Outbox;
use crate::store::postgres::sqlstate::store_error;

/// The tables beside the outbox itself.
pub const BESIDE: [&str; 6] = [
    "schema_version",
    "quarantine",
    "audit",
    "lease",
    "instance",
    "pause",
];

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalog {
    /// The schema exists.
    pub schema: bool,
    /// The outbox itself.
    pub message: Option<Relation>,
    /// The tables beside it, by name.
    pub tables: BTreeMap<String, Relation>,
    /// The functions looked for, as far as the schema has them.
    pub functions: Vec<Function>,
    /// Triggers on the outbox that call `wake`, by which versions up to 8 woke a relay.
    pub wake_triggers: Vec<Trigger>,
    /// How many numbers a session draws from the identity of `id` at once.
    pub identity_cache: Option<i64>,
    /// Rows of `lease`; `None` if we may not look.
    pub leases: Option<i64>,
    /// Only who is known to be alive owns partitions.
    pub owners_live: bool,
    /// Newest entry of `schema_version`; `None` if there is none or we may not look.
    pub version: Option<i32>,
}

/// A table, view or the like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Relation {
    /// It is a view: its columns are the user's business.
    pub is_view: bool,
    /// It is partitioned: its indexes cannot be built CONCURRENTLY.
    pub is_partitioned: bool,
    /// By name.
    pub columns: BTreeMap<String, Column>,
    /// All of them, valid or not.
    pub indexes: Vec<FoundIndex>,
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// As `format_type` says it.
    pub sql_type: String,
    /// NOT NULL.
    pub not_null: bool,
    /// Has a default or is an identity.
    pub has_default: bool,
    /// Its default, as PostgreSQL shows it.
    pub default: Option<String>,
}

/// An index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundIndex {
    /// Its name, unquoted.
    pub name: String,
    /// Columns and expressions, as PostgreSQL shows them.
    pub columns: Vec<String>,
    /// Predicate, as PostgreSQL shows it.
    pub predicate: Option<String>,
    /// It is a btree, valid and ready: queries may use it.
    pub usable: bool,
    /// UNIQUE.
    pub unique: bool,
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name, unquoted.
    pub name: String,
    /// `pg_get_function_identity_arguments`.
    pub arguments: String,
    /// Its body.
    pub source: String,
    /// SECURITY INVOKER with the fixed search path.
    pub is_safe: bool,
}

/// A trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// Its name, unquoted.
    pub name: String,
    /// It fires in ordinary sessions.
    pub enabled: bool,
    /// `pg_get_triggerdef`.
    pub definition: String,
}

impl Catalog {
    /// Looks.
    ///
    /// # Errors
    /// [`StoreError`] as for any statement.
    pub async fn read(client: &Client, outbox: &Outbox) -> Result<Self, StoreError> {
        let look = Look {
            client,
            outbox,
            beside: &BESIDE,
            functions: &["enqueue", "wake"],
        };
        look.at_everything().await
    }

    /// Looks at the main table `outbox`, at the tables `beside` it and at these functions.
    pub(super) async fn read_other(
        client: &Client,
        outbox: &Outbox,
        beside: &[&str],
        functions: &[&str],
    ) -> Result<Self, StoreError> {
        let look = Look {
            client,
            outbox,
            beside,
            functions,
        };
        look.at_everything().await
    }
}

const SCHEMA: &str = "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = $1";

const COLUMNS: &str = "\
    SELECT c.relname::text, c.relkind::text, a.attname::text, \
           pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull, \
           a.atthasdef OR a.attidentity <> '', pg_catalog.pg_get_expr(d.adbin, d.adrelid) \
    FROM pg_catalog.pg_class c \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
    LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
    WHERE n.nspname = $1 AND c.relname = ANY ($2) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')";

const INDEXES: &str = "\
    SELECT c.relname::text, i.relname::text, \
           ARRAY(SELECT pg_catalog.pg_get_indexdef(x.indexrelid, k, false) \
                 FROM pg_catalog.generate_series(1, x.indnkeyatts) k ORDER BY k), \
           pg_catalog.pg_get_expr(x.indpred, x.indrelid), \
           x.indisvalid AND x.indisready AND x.indislive AND m.amname = 'btree', x.indisunique \
    FROM pg_catalog.pg_index x \
    JOIN pg_catalog.pg_class c ON c.oid = x.indrelid \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid \
    JOIN pg_catalog.pg_am m ON m.oid = i.relam \
    WHERE n.nspname = $1 AND c.relname = ANY ($2) \
    ORDER BY i.relname";

const FUNCTIONS: &str = "\
    SELECT p.proname::text, pg_catalog.pg_get_function_identity_arguments(p.oid), p.prosrc, \
           NOT p.prosecdef AND 'search_path=pg_catalog, pg_temp' = ANY (p.proconfig) \
    FROM pg_catalog.pg_proc p \
    JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace \
    WHERE n.nspname = $1 AND p.proname = ANY ($2)";

const OWNERS_LIVE: &str = "\
    SELECT 1 FROM pg_catalog.pg_constraint k \
    JOIN pg_catalog.pg_class c ON c.oid = k.conrelid AND c.relname = 'lease' \
    JOIN pg_catalog.pg_class i ON i.oid = k.confrelid AND i.relname = 'instance' \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace AND n.oid = i.relnamespace \
    WHERE n.nspname = $1 AND k.confdeltype = 'n' AND k.convalidated";

const WAKE_TRIGGERS: &str = "\
    SELECT t.tgname::text, t.tgenabled IN ('O', 'A'), pg_catalog.pg_get_triggerdef(t.oid) \
    FROM pg_catalog.pg_trigger t \
    JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid \
    WHERE n.nspname = $1 AND c.relname = $2 AND NOT t.tgisinternal \
      AND p.pronamespace = n.oid AND p.proname = 'wake' \
      AND pg_catalog.strpos(pg_catalog.pg_get_triggerdef(t.oid), 'pg_try_advisory_xact_lock_shared') > 0";

const IDENTITY_CACHE: &str = "\
    SELECT s.seqcache FROM pg_catalog.pg_sequence s \
    JOIN pg_catalog.pg_depend d ON d.objid = s.seqrelid \
         AND d.classid = 'pg_catalog.pg_class'::regclass \
         AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.deptype IN ('i', 'a') \
    JOIN pg_catalog.pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid \
    JOIN pg_catalog.pg_class c ON c.oid = a.attrelid \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    WHERE n.nspname = $1 AND c.relname = $2 AND a.attname = 'id'";

struct Look<'a> {
    client: &'a Client,
    outbox: &'a Outbox,
    beside: &'a [&'a str],
    functions: &'a [&'a str],
}

impl Look<'_> {
    async fn at_everything(&self) -> Result<Catalog, StoreError> {
        let mut catalog = Catalog {
            schema: !self.rows(SCHEMA, &[]).await?.is_empty(),
            ..Catalog::default()
        };
        if !catalog.schema {
            return Ok(catalog);
        }
        let mut relations = self.relations().await?;
        catalog.message = relations.remove(self.outbox.relation());
        catalog.tables = relations;
        catalog.functions = self.functions().await?;
        if catalog.message.is_some() {
            catalog.wake_triggers = self.wake_triggers().await?;
            catalog.identity_cache = self.identity_cache().await?;
        }
        if catalog.tables.contains_key("lease") {
            catalog.leases = self.count("lease", "count(*)").await?;
            catalog.owners_live = !self.rows(OWNERS_LIVE, &[]).await?.is_empty();
        }
        if catalog.tables.contains_key("schema_version") {
            let version = self.count("schema_version", "max(version)::int8").await?;
            catalog.version = version.and_then(|version| i32::try_from(version).ok());
        }
        Ok(catalog)
    }

    async fn rows(
        &self,
        sql: &str,
        more: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, StoreError> {
        let schema = self.outbox.schema();
        let mut parameters: Vec<(&(dyn ToSql + Sync), Type)> = vec![(&schema, Type::NAME)];
        parameters.extend_from_slice(more);
        self.client
            .query_typed(sql, &parameters)
            .await
            .map_err(failed)
    }

    async fn relations(&self) -> Result<BTreeMap<String, Relation>, StoreError> {
        let mut names = vec![self.outbox.relation()];
        names.extend(self.beside);
        let names: [(&(dyn ToSql + Sync), Type); 1] = [(&names, Type::NAME_ARRAY)];
        let mut relations: BTreeMap<String, Relation> = BTreeMap::new();
        for row in self.rows(COLUMNS, &names).await? {
            let relation = relations.entry(get(&row, 0)?).or_default();
            let kind: String = get(&row, 1)?;
            relation.is_view = kind != "r" && kind != "p";
            relation.is_partitioned = kind == "p";
            let column = Column {
                sql_type: get(&row, 3)?,
                not_null: get(&row, 4)?,
                has_default: get(&row, 5)?,
                default: get(&row, 6)?,
            };
            relation.columns.insert(get(&row, 2)?, column);
        }
        for row in self.rows(INDEXES, &names).await? {
            let table: String = get(&row, 0)?;
            let index = FoundIndex {
                name: get(&row, 1)?,
                columns: get(&row, 2)?,
                predicate: get(&row, 3)?,
                usable: get(&row, 4)?,
                unique: get(&row, 5)?,
            };
            relations.entry(table).or_default().indexes.push(index);
        }
        Ok(relations)
    }

    async fn functions(&self) -> Result<Vec<Function>, StoreError> {
        let read = |row: &Row| {
            Ok(Function {
                name: get(row, 0)?,
                arguments: get(row, 1)?,
                source: get(row, 2)?,
                is_safe: get::<Option<bool>>(row, 3)?.unwrap_or(false),
            })
        };
        let names: [(&(dyn ToSql + Sync), Type); 1] = [(&self.functions, Type::NAME_ARRAY)];
        self.rows(FUNCTIONS, &names)
            .await?
            .iter()
            .map(read)
            .collect()
    }

    async fn wake_triggers(&self) -> Result<Vec<Trigger>, StoreError> {
        let relation = self.outbox.relation();
        let rows = self.rows(WAKE_TRIGGERS, &[(&relation, Type::NAME)]).await?;
        let read = |row: &Row| {
            Ok(Trigger {
                name: get(row, 0)?,
                enabled: get(row, 1)?,
                definition: get(row, 2)?,
            })
        };
        rows.iter().map(read).collect()
    }

    async fn identity_cache(&self) -> Result<Option<i64>, StoreError> {
        let relation = self.outbox.relation();
        let rows = self
            .rows(IDENTITY_CACHE, &[(&relation, Type::NAME)])
            .await?;
        rows.first().map(|row| get(row, 0)).transpose()
    }

    /// One number out of a table, if we may read it.
    async fn count(&self, table: &str, what: &str) -> Result<Option<i64>, StoreError> {
        let name = self.outbox.sibling(table);
        // By OID: a name could not even be looked up without USAGE on the schema.
        let may = "SELECT pg_catalog.has_schema_privilege(n.oid, 'USAGE') \
             AND pg_catalog.has_table_privilege(c.oid, 'SELECT') \
             FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = $1 AND c.relname = $2";
        let rows = self.rows(may, &[(&table, Type::NAME)]).await?;
        let may: bool = rows.first().map_or(Ok(false), |row| get(row, 0))?;
        if !may {
            return Ok(None);
        }
        let sql = format!("SELECT {what} FROM {name}");
        let rows = self.client.query_typed(&sql, &[]).await.map_err(failed)?;
        rows.first().map_or(Ok(None), |row| get(row, 0))
    }
}

fn get<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a Row,
    column: usize,
) -> Result<T, StoreError> {
    row.try_get(column).map_err(failed)
}

#[allow(clippy::needless_pass_by_value, reason = "made for map_err")]
fn failed(error: tokio_postgres::Error) -> StoreError {
    store_error("read the catalog", &error)
}
