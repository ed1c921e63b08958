//! The least rights of each role on the inbox, as SQL. Prints, never runs.

use super::grants::{RoleError, role_name};

/// What an operator's act leaves behind; the rest of `audit` is the database's own testimony.
const TESTIMONY: &str = "act, by_whom, reason, consumer, message_id, detail, version";

/// What may hold the customer's data: not for monitoring.
const WITHOUT_CONTENTS: &str = "consumer, message_id, ordering_key, state, owner, lease_until, \
    attempt, due_at, exchange, routing_key, schema_version, reason_class, reason, received_at, \
    first_failed_at, done_at";

/// Who gets what; several roles may do the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InboxRoles {
    /// The consuming applications'.
    pub consumer: Vec<String>,
    /// The people's who replay and discard.
    pub operator: Vec<String>,
    /// Of whoever only looks.
    pub monitor: Vec<String>,
}

/// Who may do what with the inbox, as one script.
///
/// # Errors
/// [`RoleError`] names the role that cannot be used.
pub fn inbox_grants(roles: &InboxRoles) -> Result<String, RoleError> {
    let mut sql = String::from(
        "-- The least rights of each role. May be run again. To be run by the owner of the schema.\n\
         BEGIN;\n",
    );
    for (list, rights, title) in [
        (
            &roles.consumer,
            consumer(),
            "A consumer: claims, completes, retries, forgets what is old",
        ),
        (
            &roles.operator,
            operator(),
            "The operator: replays and discards; each act is recorded and stays so",
        ),
        (
            &roles.monitor,
            monitor(),
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
    sql.push_str("\nCOMMIT;\n");
    Ok(sql)
}

/// Functions run with their caller's rights, so the caller needs those on the tables, too.
fn consumer() -> Vec<String> {
    let mut rights = vec![
        "USAGE ON SCHEMA inbox".to_owned(),
        "SELECT, INSERT, UPDATE, DELETE ON inbox.message".to_owned(),
        "SELECT, INSERT, UPDATE ON inbox.consumer".to_owned(),
        "SELECT ON inbox.schema_version".to_owned(),
    ];
    rights.extend(execute(&[
        "configure(text, integer, interval, double precision, interval, double precision, interval, interval)",
        "attempts_allowed(text, integer)",
        "key_lock(text, text)",
        "lock_key(text, text)",
        "pass_on(text, text)",
        "take_up(text, text, interval, integer)",
        "claim(text, text, interval, bytea, jsonb, jsonb, text, text, text, integer)",
        "refuse(text, text, bytea, text, jsonb, jsonb, text, text)",
        "due(text, integer, interval)",
        "hold(text, text, uuid)",
        "renew(text, text, uuid, interval)",
        "complete(text, text, uuid, jsonb)",
        "fail(text, text, uuid, text, text)",
        "release(text, text, uuid)",
        "retry(text, text, uuid, text, interval)",
        "tidy(text, integer)",
    ]));
    rights
}

fn operator() -> Vec<String> {
    let mut rights = vec![
        "USAGE ON SCHEMA inbox".to_owned(),
        "SELECT ON inbox.message".to_owned(),
        "UPDATE (state, owner, attempt, due_at, payload, reason_class, reason, first_failed_at, \
         done_at) ON inbox.message"
            .to_owned(),
        "SELECT ON inbox.consumer".to_owned(),
        "SELECT ON inbox.schema_version".to_owned(),
        format!("INSERT ({TESTIMONY}) ON inbox.audit"),
    ];
    rights.extend(execute(&[
        "key_lock(text, text)",
        "pass_on(text, text)",
        "replay(text, text, text, text, text)",
        "discard(text, text, text, text, text)",
    ]));
    rights
}

fn monitor() -> Vec<String> {
    vec![
        "USAGE ON SCHEMA inbox".to_owned(),
        format!("SELECT ({WITHOUT_CONTENTS}) ON inbox.message"),
        "SELECT ON inbox.consumer".to_owned(),
        "SELECT ON inbox.audit".to_owned(),
        "SELECT ON inbox.schema_version".to_owned(),
    ]
}

fn execute(functions: &[&str]) -> Vec<String> {
    let right = |function: &&str| format!("EXECUTE ON FUNCTION inbox.{function}");
    functions.iter().map(right).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_that_is_not_named_gets_nothing_and_public_never_anything() {
        let none = inbox_grants(&InboxRoles::default()).expect("no names");
        assert!(!none.contains("GRANT"), "{none}");
        let everybody = InboxRoles {
            consumer: vec!["public".to_owned()],
            ..InboxRoles::default()
        };
        assert_eq!(inbox_grants(&everybody), Err(RoleError::Everybody));
    }

    #[test]
    fn monitoring_reads_no_contents() {
        for column in ["payload", "headers", "properties", "result"] {
            assert!(!WITHOUT_CONTENTS.split(", ").any(|one| one == column));
        }
    }
}
