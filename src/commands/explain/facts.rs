//! What a state consists of, for scripts.

use std::time::SystemTime;

use serde_json::{Value, json};

use super::verdict::{Failures, Verdict};
use crate::store::postgres::explain::{Lease, Sender};
use crate::store::postgres::quarantine::Entry;

impl Verdict {
    /// What the state consists of, for scripts.
    pub(super) fn facts(&self, time: &dyn Fn(SystemTime) -> String) -> Value {
        match self {
            Self::Sent(at) => json!({ "sent_at": time(*at) }),
            Self::Scheduled(at) => json!({ "available_at": time(*at) }),
            Self::Retry { at, failures, but } => json!({
                "if": but,
                "retry_at": time(*at),
                "attempts": failures.attempts,
                "last_error": failures.error,
            }),
            Self::Behind { id, why, .. } => json!({
                "behind": { "id": id, "state": why.word(), "facts": why.facts(time) },
            }),
            Self::Paused(held) => json!({
                "pause": {
                    "exchange": held.exchange,
                    "by": held.by,
                    "reason": held.reason,
                    "since": time(held.since),
                    "until": held.until.map(time),
                },
            }),
            Self::ReadOnly | Self::NeverRead => json!({}),
            Self::NoRelay { last, failures } => json!({
                "attempts": failures.attempts,
                "last_error": failures.error,
                "last_relay": last.as_ref().map(|last| json!({
                    "name": last.name,
                    "seen_at": time(last.seen_at),
                })),
            }),
            Self::RelayWaits(sender) => {
                json!({ "relay": sender.name, "waits_for": sender.waits_for })
            }
            Self::RelaySilent { owner, lease } => silent_facts(owner, lease.as_ref(), time),
            Self::Destination { id, at, failures } => refused_facts(*id, *at, failures, time),
            Self::HeldBack { relay, told, .. } => json!({ "relay": relay, "held_back": told }),
            Self::Due { failures, lease } => json!({
                "attempts": failures.attempts,
                "last_error": failures.error,
                "lease": lease.as_ref().map(|lease| json!({
                    "owner": lease.owner,
                    "until": time(lease.until),
                })),
            }),
            Self::BehindQuarantined(entry) => {
                let facts = entry_facts(entry, time);
                json!({ "behind": { "id": entry.id, "state": "quarantined", "facts": facts } })
            }
            Self::Quarantined(entry) => entry_facts(entry, time),
        }
    }
}

fn refused_facts(
    id: i64,
    at: Option<SystemTime>,
    failures: &Failures,
    time: &dyn Fn(SystemTime) -> String,
) -> Value {
    json!({
        "destination": {
            "tried_by": id,
            "retry_at": at.map(time),
            "last_error": failures.error,
        },
    })
}

fn silent_facts(
    owner: &Sender,
    lease: Option<&Lease>,
    time: &dyn Fn(SystemTime) -> String,
) -> Value {
    json!({
        "relay": owner.name,
        "seen_at": time(owner.seen_at),
        "lease_until": lease.map(|lease| time(lease.until)),
    })
}

fn entry_facts(entry: &Entry, time: &dyn Fn(SystemTime) -> String) -> Value {
    json!({
        "quarantine_id": entry.quarantine_id,
        "reason_class": entry.reason_class,
        "reason": entry.reason,
        "quarantined_at": time(entry.quarantined_at),
    })
}
