//! The page's JSON. Not public: it changes with the page's script. Scripts take
//! `outbox-relay status --json` or `/metrics`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::board::{Board, Seen};
use crate::relay::Fate;
use crate::runtime::Moment;
use crate::store::Measures;
use crate::store::measures::Count;

/// Lines of a table, at the most.
const LINES: usize = 100;

/// One object. Times are seconds since 1970, spans seconds.
pub(super) fn told(board: &Board, seen: &Seen, now: Moment, wall: SystemTime) -> Value {
    let facts = &board.facts;
    let readiness = board.health.readiness(now);
    let condition = board.health.watch();
    let condition = condition.borrow();
    let fates = Fate::ALL.iter().zip(seen.fates);
    let fates = fates.map(|(fate, count)| (fate.as_str().to_owned(), json!(count)));
    json!({
        "at": unix(wall),
        "outbox": facts.outbox,
        "instance": facts.instance,
        "version": env!("CARGO_PKG_VERSION"),
        "owner": facts.owner,
        "readiness": readiness,
        "partitions_held": condition.partitions,
        "speaks": condition.speaks,
        "publishes": serde_json::Map::from_iter(fates),
        "removed": seen.removed,
        "in_flight": seen.in_flight,
        "buffered_bytes": seen.buffered_bytes,
        "last_confirm": seen.last_confirm.map(unix),
        "reconnects": { "database": seen.reconnects[0], "broker": seen.reconnects[1] },
        "series": series(seen, now, wall),
        "whole": seen.measured.as_ref().map(|(at, measures)| whole(seen, measures, *at, now)),
    })
}

/// Columns of numbers; null where nothing is known.
fn series(seen: &Seen, now: Moment, wall: SystemTime) -> Value {
    let column = |number: &dyn Fn(&super::history::Sample) -> Value| {
        seen.history.samples().map(number).collect::<Vec<_>>()
    };
    let latency = |place: usize| {
        column(&move |sample| json!(sample.latency.map(|both| rounded(both[place]))))
    };
    json!({
        "at": column(&|sample| json!(unix(wall - now.since(sample.at)))),
        "rate": column(&|sample| json!((sample.rate * 10.0).round() / 10.0)),
        "p50": latency(0),
        "p99": latency(1),
        "pending": column(&|sample| json!(sample.pending)),
        "oldest": column(&|sample| json!(sample.oldest.map(rounded))),
    })
}

/// The outbox as a whole.
fn whole(seen: &Seen, measures: &Measures, at: Moment, now: Moment) -> Value {
    let reasons = measures.reasons.iter().take(LINES);
    let given_up = measures.quarantine.iter().take(LINES);
    json!({
        "age": rounded(now.since(at)),
        "pending": count(measures.pending),
        "scheduled": count(measures.scheduled),
        "waiting": count(measures.waiting),
        "blocked_keys": count(measures.blocked_keys),
        "oldest": seen.oldest(now).map(rounded),
        "reasons": reasons
            .map(|(reason, rows)| json!({ "reason": reason, "rows": rows }))
            .collect::<Vec<_>>(),
        "quarantine": given_up
            .map(|one| json!({
                "reason": one.reason,
                "rows": count(one.rows),
                "oldest": rounded(one.oldest),
            }))
            .collect::<Vec<_>>(),
        "pauses": pauses(measures),
        "partitions": partitions(measures),
        "instances": instances(measures),
        "dead_tuples": measures.dead_tuples,
        "sees_sessions": measures.sees_sessions,
        "pins": pins(measures),
    })
}

fn pauses(measures: &Measures) -> Vec<Value> {
    let pauses = measures.pauses.iter().take(LINES);
    let told = pauses.map(|pause| {
        json!({
            "exchange": pause.exchange,
            "by": pause.by,
            "reason": pause.reason,
            "since": unix(pause.since),
            "until": pause.until.map(unix),
        })
    });
    told.collect()
}

fn partitions(measures: &Measures) -> Vec<Value> {
    let holders = measures.partitions.iter().take(LINES);
    let told = holders.map(|holder| {
        json!({
            "name": holder.name,
            "owned": holder.owner.is_some(),
            "partitions": holder.partitions,
            "valid": holder.valid,
        })
    });
    told.collect()
}

fn instances(measures: &Measures) -> Vec<Value> {
    let instances = measures.instances.iter().take(LINES);
    let told = instances.map(|one| {
        json!({
            "name": one.name,
            "version": one.version,
            "started": unix(one.started_at),
            "silent": rounded(one.silent_for),
            "lease": rounded(one.lease),
            "ready": one.ready,
            "waits_for": one.waits_for,
            "database": one.database,
            "broker": one.broker,
            "last_confirm": one.last_confirm_at.map(unix),
            "partitions": measures.partitions_of(one),
        })
    });
    told.collect()
}

fn pins(measures: &Measures) -> Vec<Value> {
    let pins = measures.pins.iter().take(LINES);
    let told = pins.map(|pin| {
        json!({
            "kind": pin.kind.as_str(),
            "who": pin.who,
            "state": pin.state,
            "age": pin.age.map(rounded),
        })
    });
    told.collect()
}

fn count(count: Count) -> Value {
    json!({ "rows": count.value(), "exact": count.is_exact() })
}

/// Seconds, to the tenth of a millisecond.
fn rounded(span: Duration) -> f64 {
    (span.as_secs_f64() * 10_000.0).round() / 10_000.0
}

/// Seconds since 1970, to the millisecond.
fn unix(at: SystemTime) -> f64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs_f64() * 1000.0).round() / 1000.0
}
