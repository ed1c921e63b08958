//! The inbox schema: its migrations, what it is made of, and how that is compared with the
//! catalog. Looking, applying and the order of things are those of the outbox.

use tokio_postgres::Client;

use super::catalog::Catalog;
use super::column::compare_column;
use super::definition::{Definition, Payload, Wake};
use super::expected::{
    CLOCK, ExpectedIndex, ExpectedTable, IDENTITY, TIME, defaulted, optional, plain, required,
    unique,
};
use super::migration::{Migration, in_one_transaction};
use super::pending::{Pending, Remedy, function_problem, has_index, shown};
use crate::store::error::StoreError;
use crate::store::postgres::ident::Outbox;

const SCHEMA: Migration = Migration {
    version: 1,
    name: "schema",
    template: include_str!("../../../../migrations/inbox/0001_schema.sql"),
};
const CREATE: Migration = Migration {
    version: 2,
    name: "tables",
    template: include_str!("../../../../migrations/inbox/0002_tables.sql"),
};
const TAKE_UP: Migration = Migration {
    version: 3,
    name: "take_up",
    template: include_str!("../../../../migrations/inbox/0003_take_up.sql"),
};
const CLAIM: Migration = Migration {
    version: 4,
    name: "claim",
    template: include_str!("../../../../migrations/inbox/0004_claim.sql"),
};
const END: Migration = Migration {
    version: 5,
    name: "end",
    template: include_str!("../../../../migrations/inbox/0005_end.sql"),
};
const OPERATE: Migration = Migration {
    version: 6,
    name: "operate",
    template: include_str!("../../../../migrations/inbox/0006_operate.sql"),
};

/// All of them, in order.
pub(super) const ALL: [Migration; 6] = [SCHEMA, CREATE, TAKE_UP, CLAIM, END, OPERATE];
/// The newest version that this program brings.
pub(super) const NEWEST: i32 = OPERATE.version;

/// Schema and main table, fixed.
pub(super) fn names() -> Outbox {
    Outbox::new("inbox", "message").unwrap_or_else(|_| unreachable!("both are plain names"))
}

/// What the migrations depend on; `{{payload}}` does not occur in them.
pub(super) fn definition() -> Definition {
    Definition {
        outbox: names(),
        payload: Payload::Bytea,
        wake: Wake::None,
        keeps_polling: false,
    }
}

/// The whole installation as one script that `psql` and migration tools run as it stands.
#[must_use]
pub fn script() -> String {
    let head = format!(
        "-- outbox-relay {}: inbox schema, version {NEWEST}. May be run again. Leave BEGIN and COMMIT\n\
         -- out where your tool opens the transaction itself.\n",
        env!("CARGO_PKG_VERSION")
    );
    let definition = definition();
    let parts = ALL.map(|migration| migration.sql(&definition));
    in_one_transaction(&definition.outbox, &head, &parts)
}

const MESSAGE: ExpectedTable = ExpectedTable {
    name: "message",
    migration: CREATE,
    columns: &[
        required("consumer", "text"),
        required("message_id", "text"),
        optional("ordering_key", "text"),
        required("state", "text"),
        optional("owner", "uuid"),
        optional("lease_until", TIME),
        defaulted("attempt", "integer", "DEFAULT 0"),
        optional("due_at", TIME),
        optional("payload", "bytea"),
        optional("headers", "jsonb"),
        optional("properties", "jsonb"),
        defaulted("exchange", "text", "DEFAULT ''"),
        defaulted("routing_key", "text", "DEFAULT ''"),
        optional("schema_version", "text"),
        optional("result", "jsonb"),
        optional("reason_class", "text"),
        optional("reason", "text"),
        defaulted("received_at", TIME, CLOCK),
        optional("first_failed_at", TIME),
        optional("done_at", TIME),
    ],
    indexes: &[
        unique(&["consumer", "message_id"]),
        ExpectedIndex {
            columns: &["consumer", "due_at"],
            predicate: Some("((done_at IS NULL) AND (due_at IS NOT NULL))"),
            unique: false,
        },
        ExpectedIndex {
            columns: &[
                "consumer",
                "hashtextextended(ordering_key, (0)::bigint)",
                "state",
                "received_at",
                "message_id",
            ],
            predicate: Some("((done_at IS NULL) AND (ordering_key IS NOT NULL))"),
            unique: false,
        },
        ExpectedIndex {
            columns: &["consumer", "done_at"],
            predicate: Some("(state = 'dead'::text)"),
            unique: false,
        },
        ExpectedIndex {
            columns: &["consumer", "done_at"],
            predicate: Some("(state = 'done'::text)"),
            unique: false,
        },
    ],
};

const BESIDE: [ExpectedTable; 3] = [
    ExpectedTable {
        name: "schema_version",
        migration: SCHEMA,
        columns: &[
            required("version", "integer"),
            required("name", "text"),
            defaulted("applied_at", TIME, CLOCK),
            defaulted("applied_by", "text", "DEFAULT session_user"),
        ],
        indexes: &[unique(&["version"])],
    },
    ExpectedTable {
        name: "consumer",
        migration: CREATE,
        columns: &[
            required("consumer", "text"),
            defaulted("max_attempts", "integer", "DEFAULT 5"),
            defaulted("retry_initial", "interval", "DEFAULT '1s'"),
            defaulted("retry_multiplier", "double precision", "DEFAULT 2"),
            defaulted("retry_max_delay", "interval", "DEFAULT '5m'"),
            defaulted("retry_jitter", "double precision", "DEFAULT 0.2"),
            defaulted("done_retention", "interval", "DEFAULT '35d'"),
            defaulted("replay_window", "interval", "DEFAULT '30d'"),
        ],
        indexes: &[unique(&["consumer"])],
    },
    ExpectedTable {
        name: "audit",
        migration: CREATE,
        columns: &[
            defaulted("audit_id", "bigint", IDENTITY),
            defaulted("at", TIME, CLOCK),
            required("act", "text"),
            required("by_whom", "text"),
            required("reason", "text"),
            required("consumer", "text"),
            optional("message_id", "text"),
            optional("detail", "jsonb"),
            required("version", "text"),
            defaulted("login", "text", "DEFAULT session_user"),
            optional("client_address", "inet"),
        ],
        indexes: &[unique(&["audit_id"]), plain(&["consumer", "message_id"])],
    },
];

/// The functions with their arguments as the catalog shows them.
pub const FUNCTIONS: [(&str, &str); 18] = [
    (
        "configure",
        "consumer text, max_attempts integer, retry_initial interval, retry_multiplier double precision, retry_max_delay interval, retry_jitter double precision, done_retention interval, replay_window interval",
    ),
    ("attempts_allowed", "consumer text, max_attempts integer"),
    ("key_lock", "consumer text, ordering_key text"),
    ("lock_key", "consumer text, ordering_key text"),
    ("pass_on", "consumer text, ordering_key text"),
    (
        "take_up",
        "consumer text, message_id text, lease interval, max_attempts integer",
    ),
    (
        "claim",
        "consumer text, message_id text, lease interval, payload bytea, headers jsonb, properties jsonb, exchange text, routing_key text, ordering_key text, max_attempts integer",
    ),
    (
        "refuse",
        "consumer text, message_id text, payload bytea, reason text, headers jsonb, properties jsonb, exchange text, routing_key text",
    ),
    ("due", "consumer text, \"limit\" integer, lease interval"),
    ("hold", "consumer text, message_id text, owner uuid"),
    (
        "renew",
        "consumer text, message_id text, owner uuid, lease interval",
    ),
    (
        "complete",
        "consumer text, message_id text, owner uuid, result jsonb",
    ),
    (
        "fail",
        "consumer text, message_id text, owner uuid, reason_class text, reason text",
    ),
    ("release", "consumer text, message_id text, owner uuid"),
    (
        "retry",
        "consumer text, message_id text, owner uuid, reason text, retry_after interval",
    ),
    ("tidy", "consumer text, \"limit\" integer"),
    (
        "replay",
        "consumer text, message_id text, by_whom text, reason text, version text",
    ),
    (
        "discard",
        "consumer text, message_id text, by_whom text, reason text, version text",
    ),
];

/// Reads the catalog.
pub(super) async fn look(client: &Client, names: &Outbox) -> Result<Catalog, StoreError> {
    let beside = BESIDE.map(|table| table.name);
    let functions = FUNCTIONS.map(|(name, _)| name);
    Catalog::read_other(client, names, &beside, &functions).await
}

/// Everything that is not as it must be, in the order to make it right.
pub(super) fn pending(wanted: &Definition, found: &Catalog) -> Vec<Pending> {
    let mut list = Vec::new();
    if !found.schema {
        list.push(to_migrate("schema inbox: missing".to_owned(), SCHEMA));
    }
    let message = found.message.as_ref().map(|message| (&MESSAGE, message));
    if message.is_none() {
        list.push(to_migrate(
            "table inbox.message: missing".to_owned(),
            CREATE,
        ));
    }
    let mut tables: Vec<_> = message.into_iter().collect();
    for expected in &BESIDE {
        match found.tables.get(expected.name) {
            Some(table) => tables.push((expected, table)),
            None => {
                let problem = format!("table inbox.{}: missing", expected.name);
                list.push(to_migrate(problem, expected.migration));
            }
        }
    }
    for (expected, table) in tables {
        let quoted = wanted.outbox.sibling(expected.name);
        for column in expected.columns {
            compare_column(expected.name, &quoted, column, table, &mut list);
        }
        for index in expected.indexes {
            if !has_index(table, index) {
                let columns = shown(index.columns);
                let problem = format!(
                    "table inbox.{}: no usable index on {columns}",
                    expected.name
                );
                list.push(to_migrate(problem, expected.migration));
            }
        }
    }
    functions(wanted, found, &mut list);
    list
}

fn functions(wanted: &Definition, found: &Catalog, list: &mut Vec<Pending>) {
    // A newer program's functions may differ; an older one must not undo that.
    let is_newer = found.version.is_some_and(|version| version > NEWEST);
    let texts = [TAKE_UP, CLAIM, END, OPERATE].map(|migration| (migration, migration.sql(wanted)));
    for (name, arguments) in FUNCTIONS {
        let here = |function: &&super::catalog::Function| {
            function.name == name && function.arguments == arguments
        };
        let makes = format!("FUNCTION {}.{name}(", wanted.outbox.quoted_schema());
        let Some((migration, sql)) = texts.iter().find(|(_, sql)| sql.contains(&makes)) else {
            continue;
        };
        let body = (!is_newer).then_some(sql.as_str());
        if let Some(problem) = function_problem(found.functions.iter().find(here), body) {
            list.push(to_migrate(
                format!("function inbox.{name}: {problem}"),
                *migration,
            ));
        }
    }
}

fn to_migrate(problem: String, migration: Migration) -> Pending {
    Pending {
        problem,
        remedy: Remedy::Migration(migration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_placeholder_survives() {
        let sql = script();
        assert!(!sql.contains("{{") && !sql.contains("}}"), "{sql}");
    }

    #[test]
    fn every_function_is_made_by_one_migration_and_kept_from_everybody() {
        let sql = script();
        for (name, _) in FUNCTIONS {
            let makes = format!("CREATE OR REPLACE FUNCTION \"inbox\".{name}(");
            assert_eq!(sql.matches(&makes).count(), 1, "{name}");
            let keeps = format!("REVOKE ALL ON FUNCTION \"inbox\".{name}(");
            assert_eq!(sql.matches(&keeps).count(), 1, "{name}");
        }
        let made = sql.matches("CREATE OR REPLACE FUNCTION").count();
        assert_eq!(made, FUNCTIONS.len());
    }

    #[test]
    fn versions_are_numbered_without_a_gap() {
        let versions = ALL.map(|one| one.version);
        assert_eq!(versions.to_vec(), (1..=NEWEST).collect::<Vec<_>>());
    }
}
