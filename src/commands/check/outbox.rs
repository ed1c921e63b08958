//! What `check` makes of the outbox's catalog. Pure.

use super::finding::Finding;
use crate::config::Config;
use crate::store::postgres::facts::ServerFacts;
use crate::store::postgres::ident::Outbox;
use crate::store::postgres::schema::{
    self, Catalog, Gate, Pending, Remedy, Wanted, wake_channel, wake_key,
};

/// Problems told in one finding.
const TOLD: usize = 4;

/// Tables, columns, functions; the relay's indexes; the identity.
pub(super) fn schema_findings(outbox: &Outbox, catalog: &Catalog) -> Vec<Finding> {
    let definition = match schema::resolve(outbox, Wanted::default(), catalog) {
        Ok(definition) => definition,
        Err(refusal) => {
            return vec![Finding::failed(
                "schema",
                refusal.to_string(),
                "outbox-relay migrate",
            )];
        }
    };
    let (indexes, others): (Vec<_>, Vec<_>) = schema::pending(&definition, catalog)
        .into_iter()
        .partition(|one| matches!(one.remedy, Remedy::Index { .. }));
    let mut findings = told("schema", &others);
    if others.is_empty() {
        let version = catalog.version.map_or_else(
            || "; its version may not be read".to_owned(),
            |version| format!(", version {version}"),
        );
        let found = format!("{outbox} is complete{version}");
        findings.push(Finding::ok("schema", found));
    }
    findings.extend(told("indexes", &indexes));
    if let Some(message) = &catalog.message {
        if indexes.is_empty() && !message.is_view {
            findings.push(Finding::ok(
                "indexes",
                "all that the relay reads by are valid",
            ));
        }
        findings.extend(identity(outbox, catalog));
    }
    findings
}

/// What `migrate` makes right is one finding, what it does not is one each.
fn told(check: &'static str, pending: &[Pending]) -> Vec<Finding> {
    let by_hand = pending.iter().filter_map(|one| match &one.remedy {
        Remedy::ByHand(what) => Some(Finding::failed(check, one.problem.as_str(), what.as_str())),
        Remedy::Migration(_) | Remedy::Index { .. } => None,
    });
    let mut findings: Vec<_> = by_hand.collect();
    let rest = pending.len() - findings.len();
    let problems = pending
        .iter()
        .filter(|one| !matches!(one.remedy, Remedy::ByHand(_)))
        .map(|one| one.problem.as_str())
        .take(TOLD);
    let mut found = problems.collect::<Vec<_>>().join("; ");
    if rest > TOLD {
        found.push_str(&format!("; and {} more", rest - TOLD));
    }
    if rest > 0 {
        let remedy = "outbox-relay migrate (--check lists all that is pending)";
        findings.push(Finding::failed(check, found, remedy));
    }
    findings
}

/// A wrong cache is among what is pending.
fn identity(outbox: &Outbox, catalog: &Catalog) -> Option<Finding> {
    const CHECK: &str = "identity";
    let view = catalog
        .message
        .as_ref()
        .is_some_and(|message| message.is_view);
    match catalog.identity_cache {
        Some(1) => Some(Finding::ok(
            CHECK,
            format!("{outbox}.id is drawn one by one (cache 1)"),
        )),
        Some(_) => None,
        None if view => Some(Finding::warning(
            CHECK,
            format!("{outbox} is a view: whether its id is drawn in order cannot be seen"),
            "see to it that id is a bigint identity or sequence with CACHE 1, or set relay.ordering = \"none\"",
        )),
        None => Some(Finding::failed(
            CHECK,
            format!("{outbox}.id has no sequence of its own: ids may be out of order, or missing"),
            format!(
                "ALTER TABLE {} ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY",
                outbox.quoted()
            ),
        )),
    }
}

pub(super) fn wake(
    outbox: &Outbox,
    catalog: &Catalog,
    server: &ServerFacts,
    config: &Config,
) -> Finding {
    const CHECK: &str = "wake";
    let key = wake_key(outbox.schema(), outbox.relation());
    let channel = wake_channel(outbox.schema(), outbox.relation());
    let by = match Gate::of(outbox, catalog) {
        Gate::Default => "the default of xid",
        Gate::Trigger => "a trigger",
        Gate::OtherNames | Gate::Missing | Gate::NoDefault => {
            let poll = config.relay.poll_interval.as_millis();
            let found = format!(
                "no gate: rows are found by polling every {poll} ms; advisory lock {key}, channel {channel}"
            );
            return Finding::ok(CHECK, found);
        }
    };
    let found = format!("by {by}; advisory lock {key}, channel {channel}");
    if server.max_prepared_transactions == 0 {
        return Finding::ok(CHECK, found);
    }
    Finding::warning(
        CHECK,
        format!(
            "{found}; the server allows two-phase commit (max_prepared_transactions = {}), and PREPARE TRANSACTION fails after a row has notified",
            server.max_prepared_transactions
        ),
        "if an application that writes to the outbox uses PREPARE TRANSACTION: outbox-relay migrate --wake none",
    )
}
