//! `quarantine list`.

use std::io::Write;

use serde_json::{Value, json};

use super::super::calendar::{clock, time_of};
use super::super::exit::Exit;
use super::super::plain::short;
use super::super::status::text::table;
use super::List;
use crate::store::postgres::operator::Operator;
use crate::store::postgres::quarantine::Entry;

/// Of the JSON output of the `quarantine` commands; raised when a field changes its meaning or goes.
pub(super) const VERSION: u32 = 1;

/// Characters of a reason, and of a name, in the table; `show` has all of it.
const REASON: usize = 80;
const NAME: usize = 60;

pub(super) async fn run(
    list: &List,
    operator: &Operator,
    owner: &str,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<Exit> {
    let limit = i64::from(list.limit);
    let selection = list.filter.selection();
    let mut entries = operator.quarantined(&selection, limit + 1).await?;
    let more = entries.len() > usize::try_from(limit).unwrap_or(usize::MAX);
    if more {
        entries.pop();
    }
    if list.json {
        let entries: Vec<_> = entries.iter().map(entry).collect();
        let told = json!({ "version": VERSION, "owner": owner, "rows": entries, "more": more });
        writeln!(out, "{told:#}")?;
        return Ok(Exit::Done);
    }
    if entries.is_empty() {
        let none = if selection.is_everything() {
            "Nothing is in quarantine."
        } else {
            "No row in quarantine fits."
        };
        writeln!(out, "{none}")?;
        return Ok(Exit::Done);
    }
    let title = match owner {
        "" => "In quarantine".to_owned(),
        owner => format!("In quarantine (ask {owner})"),
    };
    let head = [
        "id",
        "message_id",
        "exchange",
        "routing key",
        "since",
        "class",
        "reason",
    ];
    write!(out, "{}", table(&title, &head, entries.iter().map(line)))?;
    if more {
        writeln!(out, "There are more than {limit}: use a filter or --limit.")?;
    }
    Ok(Exit::Done)
}

fn line(entry: &Entry) -> Vec<String> {
    vec![
        entry.id.to_string(),
        short(&entry.message_id, NAME),
        short(&entry.exchange, NAME),
        short(&entry.routing_key, NAME),
        clock(entry.quarantined_at),
        entry.reason_class.clone(),
        short(&entry.reason, REASON),
    ]
}

pub(super) fn entry(entry: &Entry) -> Value {
    json!({
        "quarantine_id": entry.quarantine_id,
        "id": entry.id,
        "message_id": entry.message_id,
        "exchange": entry.exchange,
        "routing_key": entry.routing_key,
        "ordering_key": entry.ordering_key,
        "reason_class": entry.reason_class,
        "reason": entry.reason,
        "attempts": entry.attempts,
        "created_at": time_of(entry.created_at),
        "first_failed_at": time_of(entry.first_failed_at),
        "last_failed_at": time_of(entry.last_failed_at),
        "quarantined_at": time_of(entry.quarantined_at),
    })
}
