//! What an outbox is made of, for comparison with the catalog. The migrations make it; a test
//! sees to it that the two agree.

use super::migration::{BOOKKEEPING, HELD_BACK, Migration, SCHEMA};

/// A column as it must be.
pub(super) struct ExpectedColumn {
    pub name: &'static str,
    /// As `format_type` says it.
    pub sql_type: &'static str,
    pub not_null: bool,
    /// What a plain INSERT relies on; how to say it in ADD COLUMN.
    pub default: Option<&'static str>,
}

/// A table as it must be.
pub(super) struct ExpectedTable {
    pub name: &'static str,
    pub migration: Migration,
    pub columns: &'static [ExpectedColumn],
    pub indexes: &'static [ExpectedIndex],
}

/// An index as it must be, whatever its name.
pub(super) struct ExpectedIndex {
    pub columns: &'static [&'static str],
    pub predicate: Option<&'static str>,
    pub unique: bool,
}

pub(super) const fn required(name: &'static str, sql_type: &'static str) -> ExpectedColumn {
    ExpectedColumn {
        name,
        sql_type,
        not_null: true,
        default: None,
    }
}

pub(super) const fn defaulted(
    name: &'static str,
    sql_type: &'static str,
    default: &'static str,
) -> ExpectedColumn {
    ExpectedColumn {
        name,
        sql_type,
        not_null: true,
        default: Some(default),
    }
}

pub(super) const fn optional(name: &'static str, sql_type: &'static str) -> ExpectedColumn {
    ExpectedColumn {
        name,
        sql_type,
        not_null: false,
        default: None,
    }
}

pub(super) const fn unique(columns: &'static [&'static str]) -> ExpectedIndex {
    ExpectedIndex {
        columns,
        predicate: None,
        unique: true,
    }
}

pub(super) const fn plain(columns: &'static [&'static str]) -> ExpectedIndex {
    ExpectedIndex {
        columns,
        predicate: None,
        unique: false,
    }
}

pub(super) const TIME: &str = "timestamp with time zone";
pub(super) const IDENTITY: &str = "GENERATED ALWAYS AS IDENTITY";
pub(super) const CLOCK: &str = "DEFAULT pg_catalog.clock_timestamp()";

/// The outbox without `payload`, whose type is chosen.
pub(super) const MESSAGE_COLUMNS: &[ExpectedColumn] = &[
    defaulted("id", "bigint", IDENTITY),
    defaulted(
        "message_id",
        "text",
        "DEFAULT pg_catalog.gen_random_uuid()::text",
    ),
    defaulted("exchange", "text", "DEFAULT ''"),
    defaulted("routing_key", "text", "DEFAULT ''"),
    optional("ordering_key", "text"),
    optional("headers", "jsonb"),
    optional("type", "text"),
    optional("correlation_id", "text"),
    optional("content_type", "text"),
    optional("properties", "jsonb"),
    optional("available_at", TIME),
    defaulted("created_at", TIME, CLOCK),
    defaulted("attempts", "integer", "DEFAULT 0"),
    optional("retry_at", TIME),
    optional("last_error", "text"),
    optional("sent_at", TIME),
    defaulted("xid", "xid8", "DEFAULT pg_catalog.pg_current_xact_id()"),
];

/// The outbox's key. The relay's own indexes are in [`RELAY_INDEXES`].
pub(super) const MESSAGE_KEY: ExpectedIndex = unique(&["id"]);

/// What the relay reads by, with predicates as PostgreSQL shows them.
pub(super) const RELAY_INDEXES: [ExpectedIndex; 4] = [
    ExpectedIndex {
        columns: &["id"],
        predicate: Some("((sent_at IS NULL) AND (id > 0))"),
        unique: false,
    },
    ExpectedIndex {
        columns: &["xid"],
        predicate: Some("((sent_at IS NULL) AND (xid >= '3'::xid8))"),
        unique: false,
    },
    ExpectedIndex {
        columns: &["retry_at"],
        predicate: Some("((sent_at IS NULL) AND (retry_at IS NOT NULL))"),
        unique: false,
    },
    ExpectedIndex {
        columns: &["available_at"],
        predicate: Some("((sent_at IS NULL) AND (available_at IS NOT NULL))"),
        unique: false,
    },
];

/// Columns that a migration added to a table that was there: table, column, migration.
pub(super) const ADDED: [(&str, &str, Migration); 1] = [("instance", "held_back", HELD_BACK)];

/// The tables beside the outbox.
pub(super) const TABLES: &[ExpectedTable] = &[
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
        name: "quarantine",
        migration: BOOKKEEPING,
        columns: &[
            defaulted("quarantine_id", "bigint", IDENTITY),
            required("id", "bigint"),
            required("message_id", "text"),
            required("exchange", "text"),
            required("routing_key", "text"),
            optional("ordering_key", "text"),
            optional("headers", "jsonb"),
            optional("type", "text"),
            optional("correlation_id", "text"),
            optional("content_type", "text"),
            optional("properties", "jsonb"),
            optional("available_at", TIME),
            required("created_at", TIME),
            required("attempts", "integer"),
            optional("retry_at", TIME),
            optional("last_error", "text"),
            optional("sent_at", TIME),
            optional("xid", "xid8"),
            required("reason_class", "text"),
            required("reason", "text"),
            required("first_failed_at", TIME),
            required("last_failed_at", TIME),
            defaulted("quarantined_at", TIME, CLOCK),
        ],
        indexes: &[
            unique(&["quarantine_id"]),
            plain(&["reason_class", "quarantined_at"]),
            plain(&["id"]),
            plain(&["hashtextextended(ordering_key, (0)::bigint)", "id"]),
        ],
    },
    ExpectedTable {
        name: "audit",
        migration: BOOKKEEPING,
        columns: &[
            defaulted("audit_id", "bigint", IDENTITY),
            defaulted("at", TIME, CLOCK),
            required("act", "text"),
            required("by_whom", "text"),
            required("reason", "text"),
            optional("row_id", "bigint"),
            optional("message_id", "text"),
            optional("detail", "jsonb"),
            optional("old_sha256", "bytea"),
            optional("new_sha256", "bytea"),
            required("version", "text"),
            defaulted("login", "text", "DEFAULT session_user"),
            optional("client_address", "inet"),
        ],
        indexes: &[unique(&["audit_id"]), plain(&["row_id"])],
    },
    ExpectedTable {
        name: "lease",
        migration: BOOKKEEPING,
        columns: &[
            required("relation", "text"),
            required("partition", "smallint"),
            optional("owner", "uuid"),
            defaulted("epoch", "bigint", "DEFAULT 0"),
        ],
        indexes: &[unique(&["relation", "partition"])],
    },
    ExpectedTable {
        name: "instance",
        migration: BOOKKEEPING,
        columns: &[
            required("instance", "uuid"),
            required("relation", "text"),
            required("name", "text"),
            required("version", "text"),
            defaulted("started_at", TIME, CLOCK),
            defaulted("heartbeat_at", TIME, CLOCK),
            defaulted("lease_for", "interval", "DEFAULT '15 s'"),
            defaulted("ready", "boolean", "DEFAULT false"),
            optional("waits_for", "text"),
            optional("database_state", "text"),
            optional("database_reason", "text"),
            optional("broker_state", "text"),
            optional("broker_reason", "text"),
            optional("last_confirm_at", TIME),
            defaulted("partitions", "smallint", "DEFAULT 0"),
            optional("held_back", "jsonb"),
        ],
        indexes: &[unique(&["instance"])],
    },
    ExpectedTable {
        name: "pause",
        migration: BOOKKEEPING,
        columns: &[
            defaulted("pause_id", "bigint", IDENTITY),
            optional("exchange", "text"),
            required("by_whom", "text"),
            required("reason", "text"),
            defaulted("paused_at", TIME, CLOCK),
            optional("until", TIME),
        ],
        indexes: &[
            unique(&["pause_id"]),
            ExpectedIndex {
                columns: &["exchange"],
                predicate: Some("(exchange IS NOT NULL)"),
                unique: true,
            },
            ExpectedIndex {
                columns: &["((exchange IS NULL))"],
                predicate: Some("(exchange IS NULL)"),
                unique: true,
            },
        ],
    },
];
