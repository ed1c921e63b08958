//! `quarantine show`: one row. Never its payload, unless that alone is asked for.

use std::io::Write;

use serde_json::{Value, json};

use super::super::calendar::{clock, time_of};
use super::super::counted::counted;
use super::super::exit::Exit;
use super::super::status::text::table;
use super::Show;
use super::list::{VERSION, entry};
use crate::store::postgres::operator::Operator;
use crate::store::postgres::quarantine::{Selection, Whole};

pub(super) async fn run(
    show: &Show,
    operator: &Operator,
    out: &mut (dyn Write + Send),
    err: &mut (dyn Write + Send),
) -> anyhow::Result<Exit> {
    let selection = Selection {
        ids: show.id.parse().into_iter().collect(),
        message_ids: vec![show.id.clone()],
        ..Selection::default()
    };
    let rows = operator.quarantined_whole(&selection).await?;
    if show.json {
        let rows: Vec<_> = rows.iter().map(object).collect();
        let exit = if rows.is_empty() {
            Exit::Failed
        } else {
            Exit::Done
        };
        let told = json!({ "version": VERSION, "rows": rows });
        writeln!(out, "{told:#}")?;
        return Ok(exit);
    }
    if rows.is_empty() {
        let id = &show.id;
        writeln!(
            err,
            "No row in quarantine has the id or message_id {id}; `explain {id}` looks further."
        )?;
        return Ok(Exit::Failed);
    }
    if show.payload {
        return payload(&rows, operator, out, err).await;
    }
    for row in &rows {
        write!(out, "{}", told(row))?;
    }
    Ok(Exit::Done)
}

async fn payload(
    rows: &[Whole],
    operator: &Operator,
    out: &mut (dyn Write + Send),
    err: &mut (dyn Write + Send),
) -> anyhow::Result<Exit> {
    let [one] = rows else {
        let ids: Vec<_> = rows.iter().map(|one| one.entry.id.to_string()).collect();
        let ids = ids.join(", ");
        writeln!(err, "Several rows fit; ask for one by its id: {ids}.")?;
        return Ok(Exit::Failed);
    };
    let bytes = operator.quarantined_payload(one.entry.quarantine_id);
    let Some(bytes) = bytes.await? else {
        writeln!(err, "The row has no payload.")?;
        return Ok(Exit::Failed);
    };
    out.write_all(&bytes)?;
    Ok(Exit::Done)
}

fn told(row: &Whole) -> String {
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
    let json = |value: &Option<Value>| {
        value
            .as_ref()
            .map_or_else(|| "none".to_owned(), Value::to_string)
    };
    let entry = &row.entry;
    let payload = match (&row.payload_size, &row.payload_sha256) {
        (Some(size), Some(digest)) => {
            let size = counted(u64::from(size.unsigned_abs()), "byte");
            format!("{size}, SHA-256 {digest}")
        }
        _ => "none".to_owned(),
    };
    let lines = [
        ("message_id", entry.message_id.clone()),
        ("exchange", entry.exchange.clone()),
        ("routing key", entry.routing_key.clone()),
        ("ordering key", text(&entry.ordering_key)),
        ("class", entry.reason_class.clone()),
        ("reason", entry.reason.clone()),
        ("attempts", entry.attempts.to_string()),
        ("written", clock(entry.created_at)),
        (
            "available",
            row.available_at.map_or_else(|| "at once".to_owned(), clock),
        ),
        ("first failed", clock(entry.first_failed_at)),
        ("last failed", clock(entry.last_failed_at)),
        ("in quarantine since", clock(entry.quarantined_at)),
        ("type", text(&row.message_type)),
        ("correlation id", text(&row.correlation_id)),
        ("content type", text(&row.content_type)),
        ("headers", json(&row.headers)),
        ("properties", json(&row.properties)),
        ("payload", payload),
    ];
    let title = format!(
        "Row {} (entry {}), times in UTC",
        entry.id, entry.quarantine_id
    );
    let lines = lines
        .into_iter()
        .map(|(name, value)| vec![name.to_owned(), value]);
    table(&title, &[], lines)
}

fn object(row: &Whole) -> Value {
    let mut object = entry(&row.entry);
    let rest = json!({
        "type": row.message_type,
        "correlation_id": row.correlation_id,
        "content_type": row.content_type,
        "headers": row.headers,
        "properties": row.properties,
        "available_at": row.available_at.map(time_of),
        "payload_bytes": row.payload_size,
        "payload_sha256": row.payload_sha256,
    });
    if let (Value::Object(all), Value::Object(rest)) = (&mut object, rest) {
        all.extend(rest);
    }
    object
}
