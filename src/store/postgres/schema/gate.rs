//! What the catalog says of the wake-up gate, and whether that is what is wanted. Pure.
//!
//! The gate is part of the default of `xid` (`migrations/0009_wake_gate.sql`): a row that is written
//! tries the lock that a sleeping relay holds, and notifies if it does not get it.

use super::catalog::{Catalog, Trigger};
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
    /// The trigger of versions up to 8.
    Trigger,
    /// The default of `xid`, but by the lock of another outbox: the table or its schema had another
    /// name when it was made. Wakes nobody.
    OtherNames,
    /// Nothing: rows are found by polling.
    Missing,
    /// Nothing, and `xid` has no default at all.
    NoDefault,
}

impl Gate {
    /// What `found` shows of this outbox.
    #[must_use]
    pub fn of(outbox: &Outbox, found: &Catalog) -> Self {
        let key = wake_key(outbox.schema(), outbox.relation()).to_string();
        let channel = wake_channel(outbox.schema(), outbox.relation());
        match default(found) {
            Some(default) if default.contains(&key) && default.contains(&channel) => Self::Default,
            _ if found.wake_triggers.iter().any(|one| works(one, &key)) => Self::Trigger,
            Some(default) if default.contains("pg_notify(") => Self::OtherNames,
            Some(_) => Self::Missing,
            None => Self::NoDefault,
        }
    }
}

fn default(found: &Catalog) -> Option<&str> {
    let xid = found.message.as_ref()?.columns.get("xid")?;
    xid.default.as_deref()
}

fn works(trigger: &Trigger, key: &str) -> bool {
    trigger.enabled && trigger.definition.contains(key)
}

/// The way of waking that an outbox has. One that had its choice and has no gate was made with
/// `--wake none`: a later `migrate` that says nothing about it must not undo that, or it would break
/// two-phase commit in the application. `migrations/0009_wake_gate.sql` says the same for a script.
pub(super) fn wake_now(outbox: &Outbox, found: &Catalog) -> Wake {
    let polls = found.wake_triggers.is_empty() && Gate::of(outbox, found) == Gate::Missing;
    if polls && has_chosen(found) {
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
        (Wake::None, Gate::Missing | Gate::Trigger) | (Wake::Notify, Gate::Default) => None,
        (Wake::None, Gate::Default | Gate::OtherNames) => Some("present, but none is wanted"),
        (Wake::None, Gate::NoDefault) => Some("missing, as is all of the default"),
        (Wake::Notify, Gate::Missing | Gate::NoDefault | Gate::Trigger) => Some("missing"),
        (Wake::Notify, Gate::OtherNames) => Some("made for other names of schema and relation"),
    };
    if let Some(state) = state {
        list.push(Pending {
            problem: format!("wake-up gate in the default of xid of {outbox}: {state}"),
            remedy: Remedy::Migration(migration::wake(wanted.wake)),
        });
    }
    for Trigger { name, .. } in &found.wake_triggers {
        list.push(Pending {
            problem: format!(
                "trigger {name} on {outbox}: what wakes the relay is the default of xid now"
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

    fn trigger(enabled: bool) -> Trigger {
        let key = wake_key("outbox", "message");
        Trigger {
            name: "outbox_wake".to_owned(),
            enabled,
            definition: format!("… WHEN (NOT pg_try_advisory_xact_lock_shared('{key}'::bigint)) …"),
        }
    }

    #[test]
    fn a_trigger_counts_while_it_works() {
        let renamed = Outbox::new("outbox", "renamed").expect("valid names");
        for (outbox, enabled, expected) in [
            (names(), true, Gate::Trigger),
            (names(), false, Gate::Missing),
            (renamed, true, Gate::Missing),
        ] {
            let mut found = found(PLAIN, Some(8));
            found.wake_triggers.push(trigger(enabled));
            assert_eq!(Gate::of(&outbox, &found), expected);
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
        old_notify.wake_triggers.push(trigger(true));
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
