//! Compares what an outbox looks like with what it must look like. Pure: knows no connection.

use std::fmt;

use super::catalog::{Catalog, Function, Relation};
use super::column::compare_column;
use super::definition::{Definition, Payload, Wake};
use super::expected::{
    ADDED, ExpectedColumn, ExpectedIndex, MESSAGE_COLUMNS, MESSAGE_KEY, RELAY_INDEXES, TABLES,
    required,
};
use super::gate::{compare_gate, wake_now};
use super::migration::{ENQUEUE, Index, MESSAGE, Migration, NEWEST, SCHEMA};
use crate::store::postgres::ident::Outbox;

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// What and why, for people.
    pub problem: String,
    /// What makes it right.
    pub remedy: Remedy,
}

/// What makes it right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Running this migration (again).
    Migration(Migration),
    /// Building this index, after dropping what is in its way.
    Index {
        /// Which one.
        index: Index,
        /// Indexes to drop first: leftovers of a build that failed, or another one of that name.
        in_the_way: Vec<String>,
    },
    /// Something `migrate` does not do: the sentence says what.
    ByHand(String),
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.remedy {
            Remedy::Migration(_) | Remedy::Index { .. } => f.write_str(&self.problem),
            Remedy::ByHand(what) => write!(f, "{}; by hand: {what}", self.problem),
        }
    }
}

/// What the user asked for; `None` is "as it is", or the default where nothing is yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// `--payload`.
    pub payload: Option<Payload>,
    /// `--wake`.
    pub wake: Option<Wake>,
}

/// A wish that an existing outbox does not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The type of `payload` never changes by itself.
    #[error(
        "{outbox}.payload is {found}, not {wanted}: migrate does not convert what is stored. Leave \
         --payload out, or drain the outbox and change the column yourself"
    )]
    PayloadDiffers {
        /// Which outbox.
        outbox: String,
        /// Its type now.
        found: String,
        /// The one asked for.
        wanted: Payload,
    },
    /// A view has no gate.
    #[error(
        "{outbox} is a view: what wakes the relay is up to the table behind it. Leave --wake out; \
         rows are found every relay.poll_interval"
    )]
    ViewHasNoGate {
        /// Which outbox.
        outbox: String,
    },
}

/// Fills the wishes up with what is there.
///
/// # Errors
/// [`Refusal`] if what is there forbids what is wanted.
pub fn resolve(outbox: &Outbox, wanted: Wanted, found: &Catalog) -> Result<Definition, Refusal> {
    let column = found
        .message
        .as_ref()
        .and_then(|m| m.columns.get("payload"));
    let stored = column.and_then(|column| stored_as(&column.sql_type));
    let payload = match (wanted.payload, column) {
        (Some(payload), Some(column)) if stored != Some(payload) => {
            return Err(Refusal::PayloadDiffers {
                outbox: outbox.to_string(),
                found: column.sql_type.clone(),
                wanted: payload,
            });
        }
        (Some(payload), _) => payload,
        (None, _) => stored.unwrap_or_default(),
    };
    let is_view = found.message.as_ref().is_some_and(|it| it.is_view);
    if is_view && wanted.wake == Some(Wake::Notify) {
        return Err(Refusal::ViewHasNoGate {
            outbox: outbox.to_string(),
        });
    }
    Ok(Definition {
        outbox: outbox.clone(),
        payload,
        wake: wanted.wake.unwrap_or_else(|| wake_now(outbox, found)),
        keeps_polling: false,
    })
}

fn stored_as(sql_type: &str) -> Option<Payload> {
    if sql_type.starts_with("character varying") {
        return Some(Payload::Text);
    }
    sql_type.parse().ok()
}

/// Everything that is not as it must be, in the order to make it right. Empty: all is well.
#[must_use]
pub fn pending(wanted: &Definition, found: &Catalog) -> Vec<Pending> {
    let compare = Compare { wanted, found };
    let mut list = Vec::new();
    if !found.schema {
        list.push(compare.migrate(
            format!("schema {}: missing", wanted.outbox.schema()),
            SCHEMA,
        ));
    }
    compare.message(&mut list);
    compare.tables(&mut list);
    if found
        .message
        .as_ref()
        .is_none_or(|message| !message.is_view)
    {
        compare.enqueue(&mut list);
        compare_gate(wanted, found, &mut list);
    }
    list
}

pub(super) struct Compare<'a> {
    pub(super) wanted: &'a Definition,
    pub(super) found: &'a Catalog,
}

impl Compare<'_> {
    pub(super) fn migrate(&self, problem: String, migration: Migration) -> Pending {
        Pending {
            problem,
            remedy: Remedy::Migration(migration),
        }
    }

    fn payload(&self, not_null: bool) -> ExpectedColumn {
        ExpectedColumn {
            name: "payload",
            sql_type: self.wanted.payload.sql(),
            not_null,
            default: None,
        }
    }

    /// A newer relay's functions may differ; an older one must not undo that.
    fn is_newer(&self) -> bool {
        self.found.version.is_some_and(|version| version > NEWEST)
    }

    fn message(&self, list: &mut Vec<Pending>) {
        let outbox = &self.wanted.outbox;
        let Some(message) = &self.found.message else {
            list.push(self.migrate(format!("table {outbox}: missing"), MESSAGE));
            self.relay_indexes(&Relation::default(), list);
            return;
        };
        if message.is_view {
            return;
        }
        for column in MESSAGE_COLUMNS.iter().chain([&self.payload(true)]) {
            // Its default is the gate's business.
            let column = match column.name {
                "xid" if message.columns.contains_key("xid") => &required("xid", "xid8"),
                _ => column,
            };
            compare_column(outbox.relation(), &outbox.quoted(), column, message, list);
        }
        if !has_index(message, &MESSAGE_KEY) {
            list.push(Pending {
                problem: format!("table {outbox}: no usable unique index on id"),
                remedy: Remedy::ByHand(format!(
                    "ALTER TABLE {} ADD PRIMARY KEY (id)",
                    outbox.quoted()
                )),
            });
        }
        if let Some(cache) = self.found.identity_cache.filter(|cache| *cache != 1) {
            list.push(Pending {
                problem: format!("{outbox}.id: the identity caches {cache} numbers for each session, so that ids are out of order"),
                remedy: Remedy::ByHand(format!("ALTER TABLE {} ALTER COLUMN id SET CACHE 1", outbox.quoted())),
            });
        }
        self.relay_indexes(message, list);
    }

    fn relay_indexes(&self, message: &Relation, list: &mut Vec<Pending>) {
        let outbox = &self.wanted.outbox;
        for (index, expected) in Index::ALL.into_iter().zip(&RELAY_INDEXES) {
            if has_index(message, expected) {
                continue;
            }
            let name = index.name(outbox);
            let in_the_way: Vec<_> = message
                .indexes
                .iter()
                .filter(|one| one.name == name || (!one.usable && is_same(one, expected)))
                .map(|one| one.name.clone())
                .collect();
            let state = if in_the_way.is_empty() {
                "missing"
            } else {
                "invalid or different"
            };
            let problem = format!("index {name} on {outbox}: {state}");
            let remedy = if message.is_partitioned {
                Remedy::ByHand(index.statement(self.wanted, false))
            } else {
                Remedy::Index { index, in_the_way }
            };
            list.push(Pending { problem, remedy });
        }
    }

    fn tables(&self, list: &mut Vec<Pending>) {
        let outbox = &self.wanted.outbox;
        for expected in TABLES {
            let Some(table) = self.found.tables.get(expected.name) else {
                let problem = format!("table {}.{}: missing", outbox.schema(), expected.name);
                list.push(self.migrate(problem, expected.migration));
                self.added(expected.name, &Relation::default(), list);
                continue;
            };
            self.added(expected.name, table, list);
            let quoted = outbox.sibling(expected.name);
            let payload = (expected.name == "quarantine").then(|| self.payload(false));
            let added = |name| ADDED.iter().any(|(to, added, _)| (*to, *added) == name);
            let first = expected.columns.iter();
            let first = first.filter(|column| !added((expected.name, column.name)));
            for column in first.chain(&payload) {
                compare_column(expected.name, &quoted, column, table, list);
            }
            for index in expected
                .indexes
                .iter()
                .filter(|index| !has_index(table, index))
            {
                let columns = shown(index.columns);
                let problem = format!(
                    "table {}.{}: no usable index on {columns}",
                    outbox.schema(),
                    expected.name
                );
                list.push(self.migrate(problem, expected.migration));
            }
        }
        self.leases(list);
    }

    /// Columns that were added to a table after it had been made.
    fn added(&self, name: &str, table: &Relation, list: &mut Vec<Pending>) {
        for (_, column, migration) in ADDED.iter().filter(|(to, ..)| *to == name) {
            if !table.columns.contains_key(*column) {
                let problem = format!("column {name}.{column}: missing");
                list.push(self.migrate(problem, *migration));
            }
        }
    }

    fn enqueue(&self, list: &mut Vec<Pending>) {
        let arguments = format!(
            "payload {}, exchange text, routing_key text, ordering_key text, headers jsonb, \
             type text, correlation_id text, content_type text, properties jsonb, \
             available_at timestamp with time zone, message_id text",
            self.wanted.payload
        );
        let mut functions = self.found.functions.iter();
        let found = functions.find(|one| one.name == "enqueue" && one.arguments == arguments);
        let sql = (!self.is_newer()).then(|| ENQUEUE.sql(self.wanted));
        if let Some(problem) = function_problem(found, sql.as_deref()) {
            let schema = self.wanted.outbox.schema();
            let problem = format!("function {schema}.enqueue: {problem}");
            list.push(self.migrate(problem, ENQUEUE));
        }
    }
}

/// What is wrong with a function; `sql` is the text that makes it, where its body matters.
pub(super) fn function_problem(
    found: Option<&Function>,
    sql: Option<&str>,
) -> Option<&'static str> {
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    match found {
        None => Some("missing"),
        Some(function) if !function.is_safe => {
            Some("not SECURITY INVOKER with search_path pg_catalog, pg_temp")
        }
        Some(function) => sql
            .filter(|sql| !plain(sql).contains(&plain(&function.source)))
            .map(|_| "its body is not this version's"),
    }
}

pub(super) fn has_index(table: &Relation, expected: &ExpectedIndex) -> bool {
    table
        .indexes
        .iter()
        .any(|one| one.usable && is_same(one, expected))
}

/// `(a, b)`; an expression has its parentheses already.
pub(super) fn shown(columns: &[&str]) -> String {
    match columns {
        [expression] if expression.starts_with('(') => (*expression).to_owned(),
        _ => format!("({})", columns.join(", ")),
    }
}

fn is_same(found: &super::catalog::FoundIndex, expected: &ExpectedIndex) -> bool {
    found.columns == expected.columns
        && found.predicate.as_deref() == expected.predicate
        && (found.unique || !expected.unique)
}
