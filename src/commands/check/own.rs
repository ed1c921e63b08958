//! What a relation of the user's own lacks, what that costs, and how to add it. Pure.

use super::finding::Finding;
use crate::config::{OnSent, OutboxSection};
use crate::store::postgres::ident::Outbox;
use crate::store::postgres::schema::Relation;

const CHECK: &str = "own relation";

/// What is missing that something depends on: columns, the price, and their definitions.
const FEATURES: [(&[&str], &str, &str); 6] = [
    (
        &["xid"],
        "each read costs a scan of what is pending, and in a backlog order is not kept for rows that commit late",
        "ADD COLUMN xid xid8 NOT NULL DEFAULT pg_current_xact_id()",
    ),
    (
        &["attempts", "retry_at", "last_error"],
        "retries are counted in memory and begin anew with every restart",
        "ADD COLUMN attempts integer NOT NULL DEFAULT 0, ADD COLUMN retry_at timestamptz, ADD COLUMN last_error text",
    ),
    (
        &["message_id"],
        "the id stands for it",
        "ADD COLUMN message_id text NOT NULL DEFAULT gen_random_uuid()::text",
    ),
    (
        &["ordering_key"],
        "rows are sent in no order",
        "ADD COLUMN ordering_key text",
    ),
    (
        &["created_at"],
        "the age of what waits is not known, and no destination's patience is ever over",
        "ADD COLUMN created_at timestamptz NOT NULL DEFAULT clock_timestamp()",
    ),
    (
        &["available_at"],
        "no row can be scheduled for later",
        "ADD COLUMN available_at timestamptz",
    ),
];

/// Findings about a view; none about the outbox's own table, which has everything.
pub(super) fn features(
    outbox: &Outbox,
    message: &Relation,
    settings: &OutboxSection,
) -> Vec<Finding> {
    if !message.is_view {
        return Vec::new();
    }
    let has = |column: &&&str| message.columns.contains_key(**column);
    let mut findings = Vec::new();
    for needed in ["id", "payload"] {
        if !has(&&needed) {
            let found = format!("{outbox} has no column {needed}, which nothing can stand for");
            findings.push(Finding::failed(CHECK, found, offer(outbox, "")));
        }
    }
    if !has(&&"sent_at") && settings.on_sent == OnSent::Mark {
        let found = format!("{outbox} has no column sent_at: a sent row cannot be marked");
        let add = offer(outbox, "ADD COLUMN sent_at timestamptz");
        let remedy = format!("set outbox.on_sent = \"delete\", or {add}");
        findings.push(Finding::failed(CHECK, found, remedy));
    }
    for (columns, price, definition) in FEATURES {
        if columns.iter().all(|column| has(&column)) {
            continue;
        }
        let plural = if columns.len() == 1 { "" } else { "s" };
        let names = columns.join(", ");
        let found = format!("{outbox} has no column{plural} {names}: {price}");
        findings.push(Finding::warning(CHECK, found, offer(outbox, definition)));
    }
    findings
}

/// How a column comes to be offered.
fn offer(outbox: &Outbox, definition: &str) -> String {
    let view = outbox.quoted();
    let table = if definition.is_empty() {
        String::new()
    } else {
        format!("ALTER TABLE <the table behind it> {definition}; ")
    };
    format!("{table}CREATE OR REPLACE VIEW {view} with it as a further column")
}
