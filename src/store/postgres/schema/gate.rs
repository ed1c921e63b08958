//! What the catalog says of the wake-up gate, and whether that is what is wanted. Pure.
//!
//! The gate is part of the default of `xid` (`migrations/0009_wake_gate.sql`): a row that is written
//! tries the lock that a sleeping relay holds, and notifies if it does not get it.

use super::catalog::Catalog;
use super::definition::{Definition, Wake};
use super::migration::{self, WAKE_TRIGGER};
use super::pending::{Pending, Remedy};
use super::wake::{wake_channel, wake_key};
use crate::store::postgres::ident::Outbox;

/// What wakes a sleeping relay when a row is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// The default of `xid`.
    Default,
    /// The default of `xid`, but by the lock of another outbox: the table or its schema had another
    /// name when it was made. Wakes nobody.
    OtherNames,
    /// Nothing: rows are found by polling.
    Missing,
}

impl Gate {
    /// What `found` shows of this outbox.
    #[must_use]
    pub fn of(outbox: &Outbox, found: &Catalog) -> Self {
        let column = found.message.as_ref().and_then(|it| it.columns.get("xid"));
        let default = column.and_then(|xid| xid.default.as_deref());
        let key = wake_key(outbox.schema(), outbox.relation()).to_string();
        let channel = wake_channel(outbox.schema(), outbox.relation());
        match default {
            Some(default) if default.contains(&key) && default.contains(&channel) => Self::Default,
            Some(default) if default.contains("pg_notify(") => Self::OtherNames,
            _ => Self::Missing,
        }
    }
}

/// The way of waking that an outbox has. One that had its choice and has no gate was made with
/// `--wake none`: a later `migrate` that says nothing about it must not undo that, or it would break
/// two-phase commit in the application.
pub(super) fn wake_now(outbox: &Outbox, found: &Catalog) -> Wake {
    let by_trigger = !found.wake_triggers.is_empty();
    if found.message.is_none() || by_trigger || Gate::of(outbox, found) != Gate::Missing {
        return Wake::Notify;
    }
    if has_chosen(found) {
        Wake::None
    } else {
        Wake::Notify
    }
}

/// A version that is not known beside our tables, and the function of versions 6 to 8, speak for a
/// choice as well.
fn has_chosen(found: &Catalog) -> bool {
    let by_version = match found.version {
        Some(version) => version >= migration::wake(Wake::None).version,
        None => !found.tables.is_empty(),
    };
    by_version || found.functions.iter().any(|one| one.name == "wake")
}

/// What is not as it must be.
pub(super) fn compare_gate(wanted: &Definition, found: &Catalog, list: &mut Vec<Pending>) {
    let outbox = &wanted.outbox;
    let state = match (wanted.wake, Gate::of(outbox, found)) {
        (Wake::None, Gate::Missing) | (Wake::Notify, Gate::Default) => None,
        (Wake::None, Gate::Default | Gate::OtherNames) => Some("present, but none is wanted"),
        (Wake::Notify, Gate::Missing) => Some("missing"),
        (Wake::Notify, Gate::OtherNames) => Some("made for other names of schema and relation"),
    };
    if let Some(state) = state {
        list.push(Pending {
            problem: format!("wake-up gate in the default of xid of {outbox}: {state}"),
            remedy: Remedy::Migration(migration::wake(wanted.wake)),
        });
    }
    for name in &found.wake_triggers {
        list.push(Pending {
            problem: format!(
                "trigger {name} on {outbox}: the gate in the default of xid has taken its place"
            ),
            remedy: Remedy::Migration(WAKE_TRIGGER),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::postgres::schema::catalog::{Column, Function, Relation};

    const PLAIN: &str = "pg_current_xact_id()";

    fn names() -> Outbox {
        Outbox::new("outbox", "message").expect("valid names")
    }

    fn gate(outbox: &Outbox) -> String {
        let (schema, relation) = (outbox.schema(), outbox.relation());
        format!(
            "CASE WHEN pg_try_advisory_xact_lock_shared('{}'::bigint) THEN {PLAIN} \
             WHEN (pg_notify('{}'::text, ''::text) IS NULL) THEN {PLAIN} ELSE {PLAIN} END",
            wake_key(schema, relation),
            wake_channel(schema, relation)
        )
    }

    fn found(default: &str, version: Option<i32>) -> Catalog {
        let xid = Column {
            sql_type: "xid8".to_owned(),
            not_null: true,
            has_default: true,
            default: Some(default.to_owned()),
        };
        let message = Relation {
            columns: [("xid".to_owned(), xid)].into(),
            ..Relation::default()
        };
        Catalog {
            schema: true,
            message: Some(message),
            version,
            ..Catalog::default()
        }
    }

    fn old_function() -> Function {
        Function {
            name: "wake".to_owned(),
            arguments: String::new(),
            source: String::new(),
            is_safe: true,
        }
    }

    #[test]
    fn a_gate_is_known_by_lock_and_channel() {
        let renamed = Outbox::new("outbox", "renamed").expect("valid names");
        for (default, expected) in [
            (gate(&names()), Gate::Default),
            (gate(&renamed), Gate::OtherNames),
            (PLAIN.to_owned(), Gate::Missing),
        ] {
            assert_eq!(Gate::of(&names(), &found(&default, None)), expected);
        }
    }

    #[test]
    fn what_was_chosen_stays() {
        let plain = |version| found(PLAIN, version);
        let mut old = plain(Some(8));
        old.functions.push(old_function());
        let mut old_notify = old.clone();
        old_notify.wake_triggers.push("outbox_wake".to_owned());
        let mut unread = plain(None);
        let version = ("schema_version".to_owned(), Relation::default());
        unread.tables.extend([version]);
        for (found, expected) in [
            (Catalog::default(), Wake::Notify),
            (plain(None), Wake::Notify),
            (plain(Some(5)), Wake::Notify),
            (plain(Some(9)), Wake::None),
            (unread, Wake::None),
            (old, Wake::None),
            (old_notify, Wake::Notify),
            (found(&gate(&names()), Some(9)), Wake::Notify),
        ] {
            assert_eq!(wake_now(&names(), &found), expected, "{found:?}");
        }
    }
}
