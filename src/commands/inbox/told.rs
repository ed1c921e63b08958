//! Entries for people and for scripts.

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde_json::{Value, json};

use super::super::calendar::{clock, time_of};
use super::super::plain::{plain, short};
use crate::store::postgres::inbox_entries::{Entry, Total};

/// Of the output for scripts; raised when a field changes its meaning or goes.
pub(super) const VERSION: u32 = 1;
/// Longest reason in a table, in characters; `show` has all of it.
const LONGEST_REASON: usize = 80;

/// Counts.
pub(super) fn totals(totals: &[Total], json: bool) -> serde_json::Result<String> {
    if json {
        let totals: Vec<_> = totals
            .iter()
            .map(|one| {
                json!({
                    "consumer": one.consumer,
                    "state": one.state,
                    "class": one.class,
                    "entries": one.entries,
                    "oldest_age_seconds": one.oldest_age.as_secs(),
                })
            })
            .collect();
        return serde_json::to_string_pretty(&json!({ "version": VERSION, "inbox": totals }));
    }
    if totals.is_empty() {
        return Ok("the inbox is empty".to_owned());
    }
    let rows = totals.iter().map(|one| {
        vec![
            plain(&one.consumer),
            one.state.clone(),
            plain(one.class.as_deref().unwrap_or_default()),
            one.entries.to_string(),
            format!("{} s", one.oldest_age.as_secs()),
        ]
    });
    Ok(table(
        &["consumer", "state", "reason", "entries", "oldest"],
        rows,
    ))
}

/// A list.
pub(super) fn entries(entries: &[Entry], json: bool) -> serde_json::Result<String> {
    if json {
        let entries: Vec<_> = entries.iter().map(entry).collect();
        return serde_json::to_string_pretty(&json!({ "version": VERSION, "entries": entries }));
    }
    if entries.is_empty() {
        return Ok("no such entry".to_owned());
    }
    let rows = entries.iter().map(|one| {
        vec![
            plain(&one.consumer),
            plain(&one.message_id),
            plain(one.ordering_key.as_deref().unwrap_or_default()),
            one.state.clone(),
            one.attempt.to_string(),
            clock(one.received_at),
            one.due_at.map(clock).unwrap_or_default(),
            plain(one.reason_class.as_deref().unwrap_or_default()),
            short(one.reason.as_deref().unwrap_or_default(), LONGEST_REASON),
        ]
    });
    let head = [
        "consumer",
        "message",
        "key",
        "state",
        "attempts",
        "received (UTC)",
        "due (UTC)",
        "class",
        "reason",
    ];
    Ok(table(&head, rows))
}

fn entry(entry: &Entry) -> Value {
    json!({
        "consumer": entry.consumer,
        "message_id": entry.message_id,
        "ordering_key": entry.ordering_key,
        "state": entry.state,
        "attempts": entry.attempt,
        "due_at": entry.due_at.map(time_of),
        "class": entry.reason_class,
        "reason": entry.reason,
        "received_at": time_of(entry.received_at),
        "finished_at": entry.done_at.map(time_of),
    })
}

/// All about one message.
pub(super) fn shown(entries: &[Value], json: bool) -> serde_json::Result<String> {
    if json {
        return serde_json::to_string_pretty(&json!({ "version": VERSION, "entries": entries }));
    }
    if entries.is_empty() {
        return Ok("no such entry".to_owned());
    }
    let parts: Vec<_> = entries.iter().map(one_shown).collect();
    Ok(parts.join("\n\n"))
}

/// A line for each field that is set, in an order for people, then what was done to it.
fn one_shown(entry: &Value) -> String {
    const ORDER: [&str; 22] = [
        "consumer",
        "message_id",
        "ordering_key",
        "state",
        "reason_class",
        "reason",
        "attempt",
        "owner",
        "lease_until",
        "due_at",
        "received_at",
        "first_failed_at",
        "done_at",
        "exchange",
        "routing_key",
        "schema_version",
        "headers",
        "properties",
        "payload_bytes",
        "payload_sha256",
        "payload_base64",
        "result",
    ];
    let value = |value: &Value| {
        let text = value.as_str().map(str::to_owned);
        plain(&text.unwrap_or_else(|| value.to_string()))
    };
    let set = |name: &&str| entry.get(*name).filter(|value| !value.is_null());
    let fields = ORDER.iter().filter_map(|name| {
        let value = value(set(name)?);
        Some(vec![name.replace('_', " "), value])
    });
    let acts = entry.get("audit").and_then(Value::as_array);
    let acts = acts.into_iter().flatten();
    let acts = acts.map(|act| vec!["audit".to_owned(), value(act)]);
    table(&[], fields.chain(acts))
}

fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    if !head.is_empty() {
        table.set_header(head.iter().copied());
    }
    for row in rows {
        table.add_row(row);
    }
    let text = table.to_string();
    let lines: Vec<_> = text.lines().map(str::trim_end).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn what_is_known_of_an_entry_is_told_a_line_each() {
        let entry = json!({
            "consumer": "pay", "message_id": "a\u{1b}[2J", "owner": null, "headers": {"n": 1},
            "audit": [{"act": "replay", "by_whom": "ann"}],
        });
        let text = shown(&[entry.clone(), entry], false).expect("text");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 9, "{text}");
        assert_eq!(lines[1].trim_end(), " message id  a\u{fffd}[2J");
        assert!(lines[2].ends_with(r#"{"n":1}"#), "{text}");
        assert!(
            lines[3].contains("ann") && !text.contains("owner"),
            "{text}"
        );
    }

    #[test]
    fn an_entry_is_told_on_one_line_whatever_it_holds() {
        let one = Entry {
            consumer: "pay".to_owned(),
            message_id: "a\nb\u{1b}[2J".to_owned(),
            ordering_key: None,
            state: "dead".to_owned(),
            attempt: 3,
            due_at: None,
            reason_class: Some("permanent".to_owned()),
            reason: Some("x".repeat(500)),
            received_at: UNIX_EPOCH + Duration::from_secs(86_400),
            done_at: None,
        };
        let text = entries(std::slice::from_ref(&one), false).expect("text");
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("1970-01-02 00:00:00") && !text.contains('\u{1b}'));
        let json = entries(&[one], true).expect("JSON");
        let json: Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["version"], 1);
        assert_eq!(json["entries"][0]["message_id"], "a\nb\u{1b}[2J");
    }
}
