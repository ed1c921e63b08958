//! The numbered migrations, and how their text becomes SQL for one outbox.
//!
//! Every migration may be run again without harm and only ever adds. Does not run anything.

use super::definition::{Definition, Wake};
use super::wake::{wake_channel, wake_key};
use crate::store::postgres::ident::{self, Outbox};

/// One migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// Its place in the order, from 1.
    pub version: i32,
    /// What it brings, in a word.
    pub name: &'static str,
    pub(super) template: &'static str,
}

/// Makes the schema and `schema_version`.
pub const SCHEMA: Migration = Migration {
    version: 1,
    name: "schema",
    template: include_str!("../../../../migrations/0001_schema.sql"),
};
/// Makes the table.
pub const MESSAGE: Migration = Migration {
    version: 2,
    name: "message",
    template: include_str!("../../../../migrations/0002_message.sql"),
};
/// Makes what the relay reads by; see [`index_statements`].
pub const INDEXES: Migration = Migration {
    version: 3,
    name: "message_indexes",
    template: include_str!("../../../../migrations/0003_message_indexes.sql"),
};
/// Makes quarantine, audit, lease, instance and pause.
pub const BOOKKEEPING: Migration = Migration {
    version: 4,
    name: "bookkeeping",
    template: include_str!("../../../../migrations/0004_bookkeeping.sql"),
};
/// Makes `enqueue`.
pub const ENQUEUE: Migration = Migration {
    version: 5,
    name: "enqueue",
    template: include_str!("../../../../migrations/0005_enqueue.sql"),
};
/// Adds what relays tell of rows that they hold back. Versions 6 and 7 were the wake-up trigger.
pub const HELD_BACK: Migration = Migration {
    version: 8,
    name: "held_back",
    template: include_str!("../../../../migrations/0008_held_back.sql"),
};
const WAKE_GATE: Migration = Migration {
    version: 9,
    name: "wake_gate",
    template: include_str!("../../../../migrations/0009_wake_gate.sql"),
};
const WAKE_NONE: Migration = Migration {
    version: 9,
    name: "wake_none",
    template: include_str!("../../../../migrations/0009_wake_none.sql"),
};
/// Removes the wake-up trigger of versions 7 and 8.
pub const WAKE_TRIGGER: Migration = Migration {
    version: 10,
    name: "wake_trigger",
    template: include_str!("../../../../migrations/0010_wake_trigger.sql"),
};

/// The newest version that this program brings.
pub const NEWEST: i32 = WAKE_TRIGGER.version;

/// Makes or removes the wake-up gate.
#[must_use]
pub fn wake(wake: Wake) -> Migration {
    match wake {
        Wake::Notify => WAKE_GATE,
        Wake::None => WAKE_NONE,
    }
}

/// All of them, in order.
#[must_use]
pub fn all(wake: Wake) -> [Migration; 8] {
    [
        SCHEMA,
        MESSAGE,
        INDEXES,
        BOOKKEEPING,
        ENQUEUE,
        HELD_BACK,
        self::wake(wake),
        WAKE_TRIGGER,
    ]
}

impl Migration {
    /// The SQL for one outbox, to be run inside a transaction. Ends with the record of itself.
    #[must_use]
    pub fn sql(&self, definition: &Definition) -> String {
        format!(
            "{}\n{}",
            render(self.template, definition, false),
            self.record(&definition.outbox)
        )
    }

    /// The statement that records this migration as applied.
    #[must_use]
    pub fn record(&self, outbox: &Outbox) -> String {
        format!(
            "INSERT INTO {} (version, name) VALUES ({}, {}) ON CONFLICT DO NOTHING;\n",
            outbox.sibling("schema_version"),
            self.version,
            ident::quote_literal(self.name)
        )
    }
}

/// The relay's four indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// Pending rows by id.
    Pending,
    /// Pending rows by the transaction that made them pending.
    Xid,
    /// Waiting rows by their next attempt.
    Retry,
    /// Scheduled rows by their time.
    Available,
}

impl Index {
    /// In the order of their statements.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Xid, Self::Retry, Self::Available];

    fn suffix(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Xid => "xid",
            Self::Retry => "retry",
            Self::Available => "available",
        }
    }

    /// Name that the migration gives it. A long relation name is cut to make room.
    #[must_use]
    pub fn name(self, outbox: &Outbox) -> String {
        ident::derived(outbox.relation(), self.suffix())
    }

    /// The statement that makes it; with `concurrently` not inside a transaction.
    #[must_use]
    pub fn statement(self, definition: &Definition, concurrently: bool) -> String {
        let marker = format!("{{{{index_{}}}}}", self.suffix());
        let template = INDEXES
            .template
            .split(";\n")
            .find(|statement| statement.contains(&marker))
            .unwrap_or_default();
        let sql = template.find("CREATE").map(|at| &template[at..]);
        render(sql.unwrap_or_default(), definition, concurrently)
    }
}

/// Replaces the placeholders in one pass, so that a name that looks like one stays a name.
fn render(template: &str, definition: &Definition, concurrently: bool) -> String {
    let mut sql = String::with_capacity(template.len() * 2);
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        sql.push_str(before);
        let Some((name, tail)) = after.split_once("}}") else {
            break;
        };
        sql.push_str(&value(name, definition, concurrently));
        rest = tail;
    }
    sql.push_str(rest);
    sql
}

fn value(placeholder: &str, definition: &Definition, concurrently: bool) -> String {
    let outbox = &definition.outbox;
    let (schema, relation) = (outbox.schema(), outbox.relation());
    let index = |index: Index| ident::quoted(&index.name(outbox));
    match placeholder {
        "schema" => outbox.quoted_schema(),
        "schema_literal" => ident::quote_literal(schema),
        "message" => outbox.quoted(),
        "lease_literal" => ident::quote_literal(&outbox.sibling("lease")),
        "instance_literal" => ident::quote_literal(&outbox.sibling("instance")),
        "relation_literal" => ident::quote_literal(outbox.relation()),
        "message_literal" => ident::quote_literal(&outbox.quoted()),
        "payload" => definition.payload.sql().to_owned(),
        "tag" => dollar_tag(outbox),
        "concurrently" if concurrently => "CONCURRENTLY".to_owned(),
        "concurrently" => String::new(),
        "index_pending" => index(Index::Pending),
        "index_xid" => index(Index::Xid),
        "index_retry" => index(Index::Retry),
        "index_available" => index(Index::Available),
        "keeps_polling" => definition.keeps_polling.to_string(),
        "wake_literal" => ident::quote_literal(&format!("{}()", outbox.sibling("wake"))),
        "wake_key" => wake_key(schema, relation).to_string(),
        "wake_channel" => wake_channel(schema, relation),
        // Left visible: SQL with braces in it does not run, and a test looks for them.
        unknown => format!("{{{{{unknown}}}}}"),
    }
}

/// A dollar quote that neither name can end.
pub(super) fn dollar_tag(outbox: &Outbox) -> String {
    let taken = |tag: &str| outbox.schema().contains(tag) || outbox.relation().contains(tag);
    let mut tag = "$outbox$".to_owned();
    let mut number = 0;
    while taken(&tag) {
        number += 1;
        tag = format!("$outbox{number}$");
    }
    tag
}

/// The whole installation as one script that `psql` and migration tools run as it stands.
#[must_use]
pub fn script(definition: &Definition) -> String {
    let head = format!(
        "-- outbox-relay {}: outbox schema, version {NEWEST}. May be run again.\n\
         -- On an outbox in use, `outbox-relay migrate` is gentler: it builds indexes CONCURRENTLY\n\
         -- and waits for locks in small steps. Leave BEGIN and COMMIT out where your tool opens the\n\
         -- transaction itself.\n",
        env!("CARGO_PKG_VERSION")
    );
    let parts = all(definition.wake).map(|migration| {
        if migration == INDEXES {
            guarded_indexes(definition)
        } else {
            migration.sql(definition)
        }
    });
    in_one_transaction(&definition.outbox, &head, &parts)
}

/// A script that waits for its turn, as `migrate` does.
pub(super) fn in_one_transaction(outbox: &Outbox, head: &str, parts: &[String]) -> String {
    let lock = super::migrate_key(outbox.schema());
    let tag = dollar_tag(outbox);
    format!(
        "{head}\nBEGIN;\n\
         SET LOCAL client_min_messages = warning;\n\
         SET LOCAL search_path = pg_catalog, pg_temp;\n\
         DO {tag} BEGIN PERFORM pg_catalog.pg_advisory_xact_lock({lock}); END {tag};\n\n\
         {}\nCOMMIT;\n",
        parts.join("\n")
    )
}

/// CREATE INDEX IF NOT EXISTS locks writers out before it looks whether there is anything to do;
/// looking first does not.
fn guarded_indexes(definition: &Definition) -> String {
    let outbox = &definition.outbox;
    let tag = dollar_tag(outbox);
    let mut sql = String::new();
    for index in Index::ALL {
        let name = ident::quote_literal(&outbox.sibling(&index.name(outbox)));
        let statement = index.statement(definition, false);
        sql.push_str(&format!(
            "DO {tag}\nBEGIN\n    IF pg_catalog.to_regclass({name}) IS NULL THEN\n    \
             {statement};\n    END IF;\nEND\n{tag};\n\n"
        ));
    }
    sql.push_str(&INDEXES.record(outbox));
    sql
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::postgres::schema::definition::Payload;

    fn definition(schema: &str, relation: &str) -> Definition {
        Definition {
            outbox: Outbox::new(schema, relation).expect("valid names"),
            payload: Payload::Json,
            wake: Wake::Notify,
            keeps_polling: false,
        }
    }

    #[test]
    fn no_placeholder_survives() {
        for wake in [Wake::Notify, Wake::None] {
            let sql = script(&Definition {
                wake,
                ..definition("outbox", "message")
            });
            assert!(!sql.contains("{{") && !sql.contains("}}"), "{sql}");
        }
    }

    #[test]
    fn a_name_that_looks_like_a_placeholder_stays_a_name() {
        let sql = MESSAGE.sql(&definition("{{payload}}", "m"));
        assert!(
            sql.contains(r#"CREATE TABLE IF NOT EXISTS "{{payload}}"."m""#),
            "{sql}"
        );
    }

    #[test]
    fn no_name_can_end_a_dollar_quote() {
        let tag = dollar_tag(&definition("a$outbox$b", "$outbox1$").outbox);
        assert_eq!(tag, "$outbox2$");
    }

    #[test]
    fn each_index_has_its_statement() {
        let definition = definition("outbox", "message");
        for (index, expected) in [
            (
                Index::Pending,
                "CREATE INDEX CONCURRENTLY \"message_pending\" ON \"outbox\".\"message\" (id)\n    \
                 WHERE sent_at IS NULL AND id > 0",
            ),
            (
                Index::Available,
                "CREATE INDEX CONCURRENTLY \"message_available\" ON \"outbox\".\"message\" (available_at)\n    \
                 WHERE sent_at IS NULL AND available_at IS NOT NULL",
            ),
        ] {
            assert_eq!(index.statement(&definition, true), expected);
        }
        for index in Index::ALL {
            assert!(
                index
                    .statement(&definition, false)
                    .starts_with("CREATE INDEX  \"message_")
            );
        }
    }

    #[test]
    fn versions_ascend_and_none_is_used_again() {
        for wake in [Wake::Notify, Wake::None] {
            let versions = all(wake).map(|one| one.version);
            assert_eq!(versions, [1, 2, 3, 4, 5, 8, 9, NEWEST]);
        }
    }
}
