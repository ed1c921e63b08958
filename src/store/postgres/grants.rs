//! The least rights of each role, as SQL. Prints, never runs.
//!
//! GRANT may be repeated without harm. Identity columns and triggers need no right of their own:
//! PostgreSQL checks neither the sequence behind GENERATED ALWAYS AS IDENTITY nor EXECUTE on a
//! trigger's function when a row is inserted (manual, "GRANT", "CREATE TRIGGER").

use super::ident::{NameError, Outbox, quote_ident, quoted};

/// What applications may write: never what the relay decides by.
const BUSINESS: [&str; 12] = [
    "message_id",
    "exchange",
    "routing_key",
    "ordering_key",
    "payload",
    "headers",
    "type",
    "correlation_id",
    "content_type",
    "properties",
    "available_at",
    "created_at",
];

/// What the relay writes into a row that stays. `xid` only to repair it after a restore.
const MARKS: [&str; 5] = ["attempts", "retry_at", "last_error", "sent_at", "xid"];

/// What an operator's act leaves behind; the rest of `audit` is the database's own testimony.
const TESTIMONY: &str =
    "act, by_whom, reason, row_id, message_id, detail, old_sha256, new_sha256, version";

/// What may hold the customer's data: not for monitoring.
const CONTENTS: [&str; 3] = ["payload", "headers", "properties"];

/// Columns of the outbox, in order.
const MESSAGE: [&str; 18] = [
    "id",
    "message_id",
    "exchange",
    "routing_key",
    "ordering_key",
    "payload",
    "headers",
    "type",
    "correlation_id",
    "content_type",
    "properties",
    "available_at",
    "created_at",
    "attempts",
    "retry_at",
    "last_error",
    "sent_at",
    "xid",
];

/// What quarantine has in addition.
const CIRCUMSTANCES: &str =
    "quarantine_id, reason_class, reason, first_failed_at, last_failed_at, quarantined_at";

/// Who gets what; several roles may do the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// The daemon's.
    pub relay: Vec<String>,
    /// The applications'.
    pub app: Vec<String>,
    /// The people's who replay, discard and pause.
    pub operator: Vec<String>,
    /// Of whoever only looks.
    pub monitor: Vec<String>,
}

/// Why a role cannot be granted anything.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoleError {
    /// PostgreSQL could not take the name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// PostgreSQL takes `public`, quoted or not, for everybody.
    #[error("\"public\" is everybody, and nothing of the outbox is for everybody; name a role")]
    Everybody,
}

/// Who may do what with the outbox, as one script. `has` says which columns of the outbox exist.
///
/// # Errors
/// [`RoleError`] names the role that cannot be used.
pub fn grants(
    outbox: &Outbox,
    roles: &Roles,
    has: &dyn Fn(&str) -> bool,
) -> Result<String, RoleError> {
    let script = Script { outbox, has };
    let mut sql = String::from(
        "-- The least rights of each role. May be run again. To be run by the owner of the schema.\n\
         BEGIN;\n",
    );
    for (list, rights, title) in [
        (
            &roles.relay,
            script.relay(),
            "The relay: reads, marks, moves to quarantine",
        ),
        (
            &roles.app,
            script.app(),
            "The application: writes messages, and nothing that the relay decides by",
        ),
        (
            &roles.operator,
            script.operator(),
            "The operator: replays, discards, resends, pauses; each act is recorded and stays so",
        ),
        (
            &roles.monitor,
            script.monitor(),
            "Monitoring: reads everything but contents of messages",
        ),
    ] {
        for role in list {
            let role = role_name(role)?;
            sql.push_str(&format!("\n-- {title}.\n"));
            for right in &rights {
                sql.push_str(&format!("GRANT {right} TO {role};\n"));
            }
        }
    }
    if !roles.relay.is_empty() {
        sql.push_str(
            "\n-- Optional, for naming the sessions that hold vacuum back; by a superuser:\n\
             -- GRANT pg_read_all_stats TO <the relay's role>;\n",
        );
    }
    sql.push_str("\nCOMMIT;\n");
    Ok(sql)
}

/// Quotes the name of a role that may be granted something.
pub(super) fn role_name(role: &str) -> Result<String, RoleError> {
    if role == "public" {
        return Err(RoleError::Everybody);
    }
    Ok(quote_ident(role)?)
}

struct Script<'a> {
    outbox: &'a Outbox,
    has: &'a dyn Fn(&str) -> bool,
}

impl Script<'_> {
    fn relay(&self) -> Vec<String> {
        vec![
            self.usage(),
            self.message("SELECT, DELETE"),
            self.message(&format!("UPDATE ({})", self.existing(&MARKS))),
            self.on("SELECT, INSERT", "quarantine"),
            self.on("SELECT, INSERT, UPDATE", "lease"),
            self.on("SELECT, INSERT, UPDATE, DELETE", "instance"),
            self.on("SELECT", "pause"),
            self.on("SELECT", "schema_version"),
        ]
    }

    fn app(&self) -> Vec<String> {
        vec![
            self.usage(),
            self.message(&format!("INSERT ({})", self.existing(&BUSINESS))),
            // Without its arguments, which name the payload's type: there is only one.
            format!("EXECUTE ON FUNCTION {}", self.outbox.sibling("enqueue")),
        ]
    }

    fn operator(&self) -> Vec<String> {
        vec![
            self.usage(),
            self.message("SELECT, INSERT"),
            self.message(&format!("UPDATE ({})", self.existing(&MARKS))),
            self.on("SELECT, DELETE", "quarantine"),
            self.on(&format!("INSERT ({TESTIMONY})"), "audit"),
            self.on("SELECT, INSERT, UPDATE, DELETE", "pause"),
            self.on("SELECT", "lease"),
            self.on("SELECT", "instance"),
            self.on("SELECT", "schema_version"),
        ]
    }

    fn monitor(&self) -> Vec<String> {
        let columns: Vec<_> = MESSAGE
            .into_iter()
            .filter(|column| !CONTENTS.contains(column))
            .collect();
        let quarantined = columns
            .iter()
            .map(|one| quoted(one))
            .collect::<Vec<_>>()
            .join(", ");
        let quarantined = format!("SELECT ({quarantined}, {CIRCUMSTANCES})");
        let mut rights = vec![
            self.usage(),
            self.message(&format!("SELECT ({})", self.existing(&columns))),
            self.on(&quarantined, "quarantine"),
        ];
        for table in ["audit", "lease", "instance", "pause", "schema_version"] {
            rights.push(self.on("SELECT", table));
        }
        rights
    }

    fn usage(&self) -> String {
        format!("USAGE ON SCHEMA {}", self.outbox.quoted_schema())
    }

    fn message(&self, rights: &str) -> String {
        format!("{rights} ON {}", self.outbox.quoted())
    }

    fn on(&self, rights: &str, table: &str) -> String {
        format!("{rights} ON {}", self.outbox.sibling(table))
    }

    fn existing(&self, columns: &[&str]) -> String {
        let existing: Vec<_> = columns
            .iter()
            .filter(|column| (self.has)(column))
            .map(|column| quoted(column))
            .collect();
        existing.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(roles: &Roles) -> Result<String, RoleError> {
        let outbox = Outbox::new("outbox", "message").expect("valid");
        grants(&outbox, roles, &|_| true)
    }

    #[test]
    fn every_name_is_quoted() {
        let sql = printed(&Roles {
            app: vec![r#"shop"; DROP TABLE x; --"#.to_owned()],
            ..Roles::default()
        })
        .expect("a valid name");
        assert!(sql.contains(r#"TO "shop""; DROP TABLE x; --";"#), "{sql}");
    }

    #[test]
    fn nothing_is_granted_to_everybody() {
        let roles = Roles {
            monitor: vec!["public".to_owned()],
            ..Roles::default()
        };
        assert_eq!(printed(&roles), Err(RoleError::Everybody));
    }

    #[test]
    fn a_role_that_is_not_named_gets_nothing() {
        let sql = printed(&Roles::default()).expect("no names");
        assert!(!sql.contains("GRANT"), "{sql}");
    }

    #[test]
    fn the_application_may_not_write_what_the_relay_decides_by() {
        for column in ["id", "xid", "attempts", "retry_at", "last_error", "sent_at"] {
            assert!(!BUSINESS.contains(&column), "{column}");
        }
    }

    #[test]
    fn only_columns_that_exist_are_named() {
        let outbox = Outbox::new("outbox", "view").expect("valid");
        let roles = Roles {
            relay: vec!["relay".to_owned()],
            ..Roles::default()
        };
        let sql = grants(&outbox, &roles, &|column| column == "sent_at").expect("valid");
        assert!(
            sql.contains(r#"UPDATE ("sent_at") ON "outbox"."view""#),
            "{sql}"
        );
    }
}
