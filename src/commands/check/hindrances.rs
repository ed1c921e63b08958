//! What `check` makes of what stands in the way of marking and removing rows. Pure.

use super::finding::Finding;
use crate::config::OnSent;
use crate::store::postgres::facts::Hindrances;
use crate::store::postgres::facts::hindrances::Reference;
use crate::store::postgres::ident::Outbox;

/// What refers to the outbox, and triggers on it. Nothing is said where there is nothing.
pub(super) fn findings(outbox: &Outbox, hindrances: &Hindrances, on_sent: OnSent) -> Vec<Finding> {
    let references = hindrances.references.iter();
    let mut findings: Vec<_> = references
        .filter_map(|one| reference(one, on_sent))
        .collect();
    if !hindrances.triggers.is_empty() {
        let names = hindrances.triggers.join(", ");
        findings.push(Finding::warning(
            "triggers",
            format!("{outbox} has triggers of its own on UPDATE or DELETE: {names}"),
            "see to it that none raises an error or returns NULL where the relay marks or removes a row: it \
             would stay as it is",
        ));
    }
    if hindrances.row_security {
        findings.push(Finding::warning(
            "row security",
            format!(
                "row-level security of {outbox} applies to this login: a row that no policy shows it is never \
                 sent, and nothing tells of it"
            ),
            "ALTER ROLE … BYPASSRLS for the relay's login, or a policy for it: FOR ALL USING (true)",
        ));
    }
    findings
}

fn reference(one: &Reference, on_sent: OnSent) -> Option<Finding> {
    let (table, name) = (&one.table, &one.name);
    let kept = match on_sent {
        OnSent::Mark => "a row that it refers to is not removed after outbox.retention",
        OnSent::Delete => {
            "a row that it refers to is sent and cannot be deleted: a restarted relay sends it again"
        }
    };
    let slow = "without an index, each row that is removed costs a look at all of it";
    let concurrently = if one.partitioned { "" } else { " CONCURRENTLY" };
    let index = format!("CREATE INDEX{concurrently} ON {table} ({})", one.columns);
    let drop = format!("ALTER TABLE {table} DROP CONSTRAINT {name}");
    let (found, remedy) = match (one.keeps, one.indexed) {
        (true, true) => (
            kept.to_owned(),
            format!("{drop}, or make it ON DELETE CASCADE or SET NULL"),
        ),
        (true, false) => (
            format!("{kept}; {slow}"),
            format!("{drop}, or make it ON DELETE CASCADE or SET NULL with an index: {index}"),
        ),
        (false, false) => (slow.to_owned(), format!("{index}, or {drop}")),
        (false, true) => return None,
    };
    let found = format!("{table} refers to the outbox ({name}): {found}");
    Some(Finding::warning("references", found, remedy))
}

/// Rows that a pass over what is pending does not meet.
pub(super) fn unread(outbox: &Outbox, lowest: Option<i64>) -> Option<Finding> {
    let lowest = lowest?;
    Some(Finding::failed(
        "ids",
        format!(
            "{outbox} has rows with ids below 1, from {lowest} on: of these only those are sent that were \
             committed while a relay was running"
        ),
        format!(
            "insert them again without an id, and DELETE FROM {} WHERE id < 1",
            outbox.quoted()
        ),
    ))
}
