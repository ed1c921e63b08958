//! `outbox-relay explain`: why a row is not sent, or when it was.

mod facts;
mod remedy;
mod verdict;
mod withheld;

use std::io::Write;

use clap::Args;
use serde_json::{Value, json};

use super::calendar::time_of;
use super::exit::Exit;
use super::plain::plain;
use super::servers;
use crate::config::{Config, Successors};
use crate::relay::HEARTBEAT;
use crate::relay::rules::BEHIND_QUARANTINED;
use crate::store::StoreError;
use crate::store::postgres::explain::{Sender, Standing};
use crate::store::postgres::operator::Operator;
use verdict::{Circumstances, Verdict};

/// Of the JSON output; raised when a field changes its meaning or goes.
const VERSION: u32 = 1;

/// Tell why a row is not sent, or when it was.
#[derive(Args, Debug)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  outbox-relay explain 4711
  outbox-relay explain invoice:842:send --json | jq -r '.rows[].state'

Exit codes: 0 told; 1 no such row; 75 the database cannot be reached; 78 configuration."
)]
pub struct Arguments {
    /// The row's id, or its message_id where no row has that id
    #[arg(value_name = "ID")]
    id: String,
    /// For scripts
    #[arg(long)]
    json: bool,
}

/// Looks and tells.
///
/// # Errors
/// When the database cannot be asked, or `out` cannot be written to.
pub async fn run(
    arguments: &Arguments,
    config: &Config,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<Exit> {
    let store = servers::store(config)?;
    let operator = Operator::looking(&store).await?;
    let found = look(&operator, &arguments.id, config.quarantine.successors).await;
    operator.close().await;
    let found = found?;
    if arguments.json {
        let rows: Vec<_> = found.iter().map(object).collect();
        let told = json!({ "version": VERSION, "rows": rows });
        writeln!(out, "{told:#}")?;
    } else {
        for (row, verdict) in &found {
            writeln!(
                out,
                "Row {} ({}) {}",
                row.id,
                plain(&row.message_id),
                plain(&verdict.sentence())
            )?;
            if let Some(remedy) = verdict.remedy(row.id) {
                writeln!(out, "  {}", plain(&remedy))?;
            }
        }
        if found.is_empty() {
            writeln!(
                out,
                "No row has the id or message_id {}: it was never committed, was discarded, or was \
                 removed after having been sent.",
                arguments.id
            )?;
        }
    }
    Ok(if found.is_empty() {
        Exit::Failed
    } else {
        Exit::Done
    })
}

/// What names a row, wherever it is.
struct Named {
    id: i64,
    message_id: String,
    exchange: String,
    routing_key: String,
    ordering_key: Option<String>,
}

async fn look(
    operator: &Operator,
    id: &str,
    successors: Successors,
) -> Result<Vec<(Named, Verdict)>, StoreError> {
    let mut found = Vec::new();
    for row in operator.standing(id).await? {
        let verdict = judge(operator, &row, successors).await?;
        found.push((
            Named {
                id: row.id,
                message_id: row.message_id,
                exchange: row.exchange,
                routing_key: row.routing_key,
                ordering_key: row.ordering_key,
            },
            verdict,
        ));
    }
    for entry in operator.given_up(id).await? {
        found.push((
            Named {
                id: entry.id,
                message_id: entry.message_id.clone(),
                exchange: entry.exchange.clone(),
                routing_key: entry.routing_key.clone(),
                ordering_key: entry.ordering_key.clone(),
            },
            Verdict::Quarantined(entry),
        ));
    }
    Ok(found)
}

async fn judge(
    operator: &Operator,
    row: &Standing,
    successors: Successors,
) -> Result<Verdict, StoreError> {
    if let Some(settled) = Verdict::by_itself(row).filter(|_| !waits_behind_quarantined(row)) {
        return Ok(settled);
    }
    let senders = senders(operator, row).await?;
    if let Some(unmarked) = Verdict::unmarked(row, &senders) {
        return Ok(unmarked);
    }
    if let Some(earlier) = operator.ahead_of(row).await? {
        let why = judge_alone(operator, &earlier, successors).await?;
        if !why.lets_pass() {
            return Ok(Verdict::Behind {
                id: earlier.id,
                key: row.ordering_key.clone().unwrap_or_default(),
                why: Box::new(why),
            });
        }
    }
    judge_alone(operator, row, successors).await
}

/// The relay has said so of it.
fn waits_behind_quarantined(row: &Standing) -> bool {
    row.sent_at.is_none() && row.last_error.as_deref() == Some(BEHIND_QUARANTINED)
}

/// Who may send it.
async fn senders(operator: &Operator, row: &Standing) -> Result<Vec<Sender>, StoreError> {
    let patience = (HEARTBEAT * 3).as_secs_f64();
    operator.senders(row.partition, patience).await
}

/// The row is not behind another.
async fn judge_alone(
    operator: &Operator,
    row: &Standing,
    successors: Successors,
) -> Result<Verdict, StoreError> {
    let held = successors == Successors::Wait || waits_behind_quarantined(row);
    if let Some(key) = row.ordering_key.as_deref().filter(|_| held)
        && let Some(entry) = operator.quarantined_before(key, row.id).await?
    {
        return Ok(Verdict::BehindQuarantined(entry));
    }
    let circumstances = Circumstances {
        held: operator.held(&row.exchange).await?,
        read_only: operator.is_read_only().await?,
        senders: senders(operator, row).await?,
        lease: operator.lease(row.partition).await?,
        knocking: operator.knocking(row).await?,
    };
    Ok(Verdict::of(row, circumstances))
}

fn object((row, verdict): &(Named, Verdict)) -> Value {
    let mut object = json!({
        "id": row.id,
        "message_id": row.message_id,
        "exchange": row.exchange,
        "routing_key": row.routing_key,
        "ordering_key": row.ordering_key,
        "state": verdict.word(),
        "sentence": format!("Row {} ({}) {}", row.id, row.message_id, verdict.sentence()),
        "remedy": verdict.remedy(row.id),
    });
    let facts = verdict.facts(&time_of);
    if let (Value::Object(all), Value::Object(facts)) = (&mut object, facts) {
        all.extend(facts);
    }
    object
}
