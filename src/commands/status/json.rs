//! Status for scripts.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::calendar::time_of;
use super::is_alive;
use crate::store::measures::{Count, Holder, Instance, Measures, Pause, Pin};
use crate::store::postgres::ident::Outbox;
use crate::store::postgres::status::{SentLately, Status};

/// Of the output; raised when a field changes its meaning or goes.
const VERSION: u32 = 1;

/// One object. Times are RFC 3339 in UTC, ages in seconds.
///
/// # Errors
/// Never in fact: all of it can be told in JSON.
pub(super) fn told(outbox: &Outbox, status: &Status) -> serde_json::Result<String> {
    let measures = &status.measures;
    let instances = measures.instances.iter();
    let instances: Vec<_> = instances
        .map(|one| instance(one, measures.partitions_of(one)))
        .collect();
    let partitions: Vec<_> = status.measures.partitions.iter().map(holder).collect();
    let reasons = status.measures.reasons.iter();
    let reasons: Vec<_> = reasons
        .map(|(reason, rows)| json!({ "reason": reason, "rows": rows }))
        .collect();
    serde_json::to_string_pretty(&json!({
        "version": VERSION,
        "outbox": outbox.to_string(),
        "at": time_of(status.now),
        "read_only": status.read_only,
        "pending": count(measures.pending),
        "scheduled": count(measures.scheduled),
        "waiting": count(measures.waiting),
        "waiting_by_reason": reasons,
        "blocked_keys": count(measures.blocked_keys),
        "oldest_due_age_seconds": measures.oldest_due.map(seconds),
        "sent_lately": status.sent.map(sent),
        "quarantine": quarantine(measures),
        "partitions": partitions,
        "instances": instances,
        "pauses": measures.pauses.iter().map(pause).collect::<Vec<_>>(),
        "vacuum": {
            "dead_tuples": measures.dead_tuples,
            "sees_sessions": measures.sees_sessions,
            "held_back_by": measures.pins.iter().map(pin).collect::<Vec<_>>(),
        },
    }))
}

fn count(count: Count) -> Value {
    json!({ "rows": count.value(), "exact": count.is_exact() })
}

fn sent(sent: SentLately) -> Value {
    json!({
        "rows": sent.rows,
        "within_seconds": seconds(sent.within),
        "per_second": super::text::per_second(sent),
    })
}

fn quarantine(measures: &Measures) -> Vec<Value> {
    let given_up = measures.quarantine.iter();
    given_up
        .map(|one| {
            json!({
                "reason": one.reason,
                "rows": count(one.rows),
                "oldest_age_seconds": seconds(one.oldest),
            })
        })
        .collect()
}

fn holder(holder: &Holder) -> Value {
    json!({
        "owner": holder.owner.map(|owner| owner.to_string()),
        "name": holder.name,
        "partitions": holder.partitions,
        "valid": holder.valid,
    })
}

fn instance(instance: &Instance, partitions: i64) -> Value {
    json!({
        "instance": instance.instance.to_string(),
        "name": instance.name,
        "version": instance.version,
        "alive": is_alive(instance),
        "silent_for_seconds": seconds(instance.silent_for),
        "started_at": time_of(instance.started_at),
        "ready": instance.ready,
        "waits_for": instance.waits_for,
        "database": instance.database,
        "broker": instance.broker,
        "last_confirm_at": instance.last_confirm_at.map(time_of),
        "partitions": partitions,
        "held_back": instance.held_back,
    })
}

fn pause(pause: &Pause) -> Value {
    json!({
        "exchange": pause.exchange,
        "by": pause.by,
        "reason": pause.reason,
        "since": time_of(pause.since),
        "until": pause.until.map(time_of),
    })
}

fn pin(pin: &Pin) -> Value {
    json!({
        "kind": pin.kind.as_str(),
        "who": pin.who,
        "state": pin.state,
        "since": pin.since.map(time_of),
        "age_seconds": pin.age.map(seconds),
        "transactions": pin.transactions,
    })
}

/// To the millisecond.
pub(in crate::commands) fn seconds(span: Duration) -> f64 {
    Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)).as_secs_f64()
}
