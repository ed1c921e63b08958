//! Status for people.

use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::NOTHING;

use super::super::calendar::clock;
use super::super::counted::counted;
use super::super::plain::plain;
use super::is_alive;
use crate::relay::rules::{HeldBack, Unwritten, Withheld};
use crate::store::measures::{Holder, Instance, Measures, Pause, Pin};
use crate::store::postgres::ident::Outbox;
use crate::store::postgres::status::{SentLately, Status};

/// Headed paragraphs; what there is nothing of is left out.
pub(super) fn told(outbox: &Outbox, status: &Status, owner: &str) -> String {
    let measures = &status.measures;
    let parts = [
        format!("{outbox} at {} UTC\n", clock(status.now)),
        read_only(status).to_owned(),
        backlog(status),
        table(
            "Waiting after a failure, by reason",
            &["rows", "reason"],
            measures
                .reasons
                .iter()
                .map(|(reason, rows)| vec![rows.to_string(), reason.clone()]),
        ),
        quarantine(measures, owner),
        table(
            "Paused",
            &["what", "since", "until", "by", "reason"],
            measures.pauses.iter().map(pause),
        ),
        held_back(measures),
        instances(measures),
        partitions(&status.measures.partitions),
        vacuum(measures),
    ];
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("\n")
}

fn read_only(status: &Status) -> &'static str {
    if status.read_only {
        "The database accepts no writes (default_transaction_read_only): nothing is sent, and no relay can \
         give a sign of life\n"
    } else {
        ""
    }
}

fn backlog(status: &Status) -> String {
    let measures = &status.measures;
    let mut table = Table::new();
    table.load_style(NOTHING);
    let oldest = measures
        .oldest_due
        .map_or_else(|| "nothing is due".to_owned(), span);
    let sent = status.sent.map_or_else(
        || "not known: no sent row is kept".to_owned(),
        |sent| {
            format!(
                "{} in the last {}, {:.1}/s",
                counted(sent.rows.unsigned_abs(), "row"),
                span(sent.within),
                per_second(sent)
            )
        },
    );
    for (name, value) in [
        ("pending", measures.pending.to_string()),
        ("  scheduled for later", measures.scheduled.to_string()),
        ("  waiting after a failure", measures.waiting.to_string()),
        ("ordering keys held back", measures.blocked_keys.to_string()),
        ("oldest due row", oldest),
        ("sent", sent),
    ] {
        table.add_row([name.to_owned(), value]);
    }
    format!("{}\n", trimmed(&table))
}

/// Rows per second.
pub(super) fn per_second(sent: SentLately) -> f64 {
    let rows = u32::try_from(sent.rows).unwrap_or(u32::MAX);
    let rate = f64::from(rows) / sent.within.as_secs_f64().max(0.001);
    (rate * 10.0).round() / 10.0
}

fn quarantine(measures: &Measures, owner: &str) -> String {
    let title = match owner {
        "" => "In quarantine".to_owned(),
        owner => format!("In quarantine (ask {owner})"),
    };
    let rows = measures.quarantine.iter();
    let rows = rows.map(|one| vec![one.rows.to_string(), one.reason.clone(), span(one.oldest)]);
    table(&title, &["rows", "reason", "oldest"], rows)
}

fn pause(pause: &Pause) -> Vec<String> {
    let what = match pause.exchange.as_deref() {
        None => "everything".to_owned(),
        Some("") => "the default exchange".to_owned(),
        Some(exchange) => format!("exchange {exchange}"),
    };
    let until = pause.until.map_or_else(|| "resumed".to_owned(), clock);
    vec![
        what,
        clock(pause.since),
        until,
        pause.by.clone(),
        pause.reason.clone(),
    ]
}

fn instances(measures: &Measures) -> String {
    if measures.instances.is_empty() {
        return "Relays: none has told that it is alive\n".to_owned();
    }
    let row = |one: &Instance| {
        let state = match (is_alive(one), one.ready) {
            (false, _) => format!("silent for {}", span(one.silent_for)),
            (true, true) => "ready".to_owned(),
            (true, false) => "not ready".to_owned(),
        };
        vec![
            one.name.clone(),
            one.version.clone(),
            state,
            measures.partitions_of(one).to_string(),
            format!("{} ago", span(one.silent_for)),
            one.last_confirm_at.map_or_else(|| "none".to_owned(), clock),
            one.waits_for.clone().unwrap_or_default(),
        ]
    };
    let head = [
        "relay",
        "version",
        "state",
        "partitions",
        "last sign",
        "last confirm",
        "waits for",
    ];
    let nobody = !measures.instances.iter().any(is_alive);
    let lately = |one: &&Instance| nobody || is_alive(one) || one.silent_for < LATELY;
    table(
        "Relays",
        &head,
        measures.instances.iter().filter(lately).map(row),
    )
}

/// Relays that fell silent longer ago are not shown beside others.
const LATELY: Duration = Duration::from_secs(600);

/// What relays that are alive hold back on purpose.
fn held_back(measures: &Measures) -> String {
    let alive = measures.instances.iter().filter(|one| is_alive(one));
    let all = alive.flat_map(|one| one.held_back.iter().map(|told| (one.name.clone(), told)));
    let row = |(relay, told): (String, &HeldBack)| {
        let what = match &told.what {
            Withheld::Unmarked { fate, ids, rows } => {
                let first = ids
                    .iter()
                    .min()
                    .map_or_else(String::new, ToString::to_string);
                let rows = u64::try_from(*rows).unwrap_or(u64::MAX);
                let fate = match fate {
                    Unwritten::Sent => "sent",
                    Unwritten::Waits => "refused",
                    Unwritten::GivenUp => "given up",
                };
                format!("marks of {} {fate}, from {first} on", counted(rows, "row"))
            }
            Withheld::Destination {
                exchange,
                routing_key,
                ..
            } => destination(exchange, routing_key.as_deref()),
            Withheld::Everything { .. } => "all rows that are not in memory".to_owned(),
            Withheld::Others { others } => counted(*others as u64, "more destination"),
        };
        let age = match told.for_seconds {
            0 => String::new(),
            seconds => span(Duration::from_secs(seconds)),
        };
        vec![what, age, relay, told.why.clone()]
    };
    table("Held back", &["what", "for", "relay", "why"], all.map(row))
}

fn destination(exchange: &str, routing_key: Option<&str>) -> String {
    match (exchange, routing_key) {
        ("", Some(queue)) => format!("queue {queue}"),
        (exchange, Some(key)) => format!("exchange {exchange}, key {key}"),
        (exchange, None) => format!("exchange {exchange}"),
    }
}

/// Told only where relays share the partitions.
fn partitions(holders: &[Holder]) -> String {
    if holders.iter().all(|holder| holder.owner.is_none()) {
        return String::new();
    }
    let row = |one: &Holder| {
        let who = match (&one.name, one.owner) {
            (Some(name), _) => name.clone(),
            (None, Some(owner)) => owner.to_string(),
            (None, None) => "nobody".to_owned(),
        };
        let state = match (one.owner, one.valid) {
            (None, _) => "free",
            (Some(_), true) => "held",
            (Some(_), false) => "expired",
        };
        vec![one.partitions.to_string(), who, state.to_owned()]
    };
    table(
        "Partitions",
        &["number", "relay", "lease"],
        holders.iter().map(row),
    )
}

fn vacuum(measures: &Measures) -> String {
    let mut text = String::new();
    if let Some(dead) = measures.dead_tuples {
        text.push_str(&format!(
            "Vacuum: {} to remove",
            counted(dead.unsigned_abs(), "dead row version")
        ));
    } else {
        text.push_str("Vacuum");
    }
    if measures.pins.is_empty() {
        text.push_str(", nothing holds it back");
    }
    if !measures.sees_sessions {
        text.push_str("; other sessions may not be looked at (GRANT pg_read_all_stats)");
    }
    text.push('\n');
    for pin in &measures.pins {
        text.push_str(&format!("  held back by {}\n", held_by(pin)));
    }
    text
}

fn held_by(pin: &Pin) -> String {
    let Pin {
        who,
        state,
        transactions,
        ..
    } = pin;
    match (pin.since, pin.age) {
        (Some(since), Some(age)) => {
            format!("{who}, {state} since {} ({})", clock(since), span(age))
        }
        _ => format!(
            "{who}, {state}, {} behind",
            counted(transactions.unsigned_abs(), "transaction")
        ),
    }
}

/// A table under its title; nothing where there are no rows. Without `head` it has no heading.
pub(in crate::commands) fn table(
    title: &str,
    head: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    if !head.is_empty() {
        table.set_header(head.to_vec());
    }
    let mut any = false;
    for row in rows {
        table.add_row(row.iter().map(|cell| plain(cell)));
        any = true;
    }
    if any {
        format!("{title}\n{}\n", trimmed(&table))
    } else {
        String::new()
    }
}

fn trimmed(table: &Table) -> String {
    // The table puts a blank before each cell.
    let lines = table.lines().map(|line| format!(" {}", line.trim_end()));
    lines.collect::<Vec<_>>().join("\n")
}

/// `1d 4h`, `4h 9m`, `12m 3s`, `7s`, `300ms`.
pub(in crate::commands) fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes, seconds) {
        (0, 0, 0, 0) => format!("{}ms", span.as_millis()),
        (0, 0, 0, _) => format!("{seconds}s"),
        (0, 0, _, _) => format!("{minutes}m {}s", seconds % 60),
        (0, _, _, _) => format!("{hours}h {minutes}m"),
        (_, _, _, _) => format!("{days}d {hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::measures::PinKind;

    #[test]
    fn spans_are_told_in_two_units() {
        for (seconds, shown) in [
            (0.3, "300ms"),
            (7.9, "7s"),
            (60.0, "1m 0s"),
            (723.0, "12m 3s"),
            (14_940.0, "4h 9m"),
            (100_800.0, "1d 4h"),
        ] {
            assert_eq!(span(Duration::from_secs_f64(seconds)), shown);
        }
    }

    #[test]
    fn who_holds_vacuum_back_is_told_in_a_sentence() {
        let pin = Pin {
            kind: PinKind::Session,
            who: "pid 4711 (shop worker)".to_owned(),
            state: "idle in transaction".to_owned(),
            since: Some(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(7_860)),
            age: Some(Duration::from_secs(600)),
            transactions: 9,
        };
        assert_eq!(
            held_by(&pin),
            "pid 4711 (shop worker), idle in transaction since 1970-01-01 02:11:00 (10m 0s)"
        );
        let slot = Pin {
            kind: PinKind::Slot,
            who: "slot backup".to_owned(),
            state: "nobody reads it".to_owned(),
            since: None,
            age: None,
            transactions: 12_000,
        };
        assert_eq!(
            held_by(&slot),
            "slot backup, nobody reads it, 12000 transactions behind"
        );
    }
}
