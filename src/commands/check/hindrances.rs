//! What `check` makes of what stands in the way of marking and removing rows. Pure.

use super::finding::Finding;
use crate::store::postgres::facts::Hindrances;
use crate::store::postgres::facts::hindrances::Reference;
use crate::store::postgres::ident::Outbox;

/// What refers to the outbox, and triggers on it. Nothing is said where there is nothing.
pub(super) fn findings(outbox: &Outbox, hindrances: &Hindrances) -> Vec<Finding> {
    let references = hindrances.references.iter().filter_map(reference);
    let mut findings: Vec<_> = references.collect();
    if !hindrances.triggers.is_empty() {
        let names = hindrances.triggers.join(", ");
        findings.push(Finding::warning(
            "triggers",
            format!("{outbox} has triggers of its own on UPDATE or DELETE: {names}"),
            "see to it that none raises an error or returns NULL where the relay marks or removes a row: it \
             would stay as it is",
        ));
    }
    findings
}

fn reference(one: &Reference) -> Option<Finding> {
    const CHECK: &str = "references";
    let Reference {
        name,
        table,
        columns,
        keeps,
        indexed,
    } = one;
    match (keeps, indexed) {
        (true, true) => Some(Finding::warning(
            CHECK,
            format!(
                "{table} refers to the outbox ({name}): a row that it refers to is not removed after outbox.retention"
            ),
            format!(
                "ALTER TABLE {table} DROP CONSTRAINT {name}, or make it ON DELETE CASCADE or SET NULL"
            ),
        )),
        (_, false) => Some(Finding::warning(
            CHECK,
            format!(
                "{table} refers to the outbox ({name}) without an index: each row that is removed costs a look at all of it"
            ),
            format!(
                "CREATE INDEX CONCURRENTLY ON {table} ({columns}), or ALTER TABLE {table} DROP CONSTRAINT {name}"
            ),
        )),
        (false, true) => None,
    }
}

/// Rows that are never read.
pub(super) fn unread(outbox: &Outbox, lowest: Option<i64>) -> Option<Finding> {
    let lowest = lowest?;
    Some(Finding::failed(
        "ids",
        format!(
            "{outbox} has pending rows with ids below 1, from {lowest} on: they are never read"
        ),
        format!(
            "insert them again without an id, and DELETE FROM {} WHERE id < 1 AND sent_at IS NULL",
            outbox.quoted()
        ),
    ))
}
