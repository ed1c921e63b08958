//! `outbox-relay resend`: publishes rows again that were sent and are still kept.

use std::io::Write;
use std::time::SystemTime;

use clap::Args;
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::act::{Amount, Done, Signed, in_batches, span};
use super::counted::counted;
use super::exit::Exit;
use super::servers;
use crate::config::{Config, OnSent};
use crate::store::StoreError;
use crate::store::postgres::operator::{Act, Operator};
use crate::store::postgres::resend::Sent;

/// Of the JSON output; raised when a field changes its meaning or goes.
const VERSION: u32 = 1;

/// Publish rows again that were sent and are still kept, under the same message_id.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outbox-relay resend --since 2h --exchange orders --reason 'queue was purged' --dry-run
  outbox-relay resend --since 2026-03-01T08:00:00Z --key order:842 --reason 'consumer lost it'

Rows go in batches, lowest id first; each batch and its audit records are one transaction. Ctrl-C
stops between two and says how to go on.

Exit codes: 0 done; 1 a signal came first; 2 usage; 75 the database cannot be reached;
78 configuration.")]
pub struct Arguments {
    /// Rows sent at this time or later: RFC 3339 with an offset, or a span of time such as 2h
    #[arg(long, value_name = "T", value_parser = since)]
    since: Since,
    /// Only rows to this exchange ('' for the default exchange)
    #[arg(long, value_name = "NAME")]
    exchange: Option<String>,
    /// Only rows of this ordering key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Only rows with a greater id: to go on after an interruption
    #[arg(long, value_name = "ID", default_value_t = i64::MIN, hide_default_value = true)]
    after: i64,
    #[command(flatten)]
    signed: Signed,
    #[command(flatten)]
    amount: Amount,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    Time(SystemTime),
    Ago(std::time::Duration),
}

fn since(text: &str) -> Result<Since, String> {
    if let Ok(time) = OffsetDateTime::parse(text, &Rfc3339) {
        return Ok(Since::Time(time.into()));
    }
    let ago = span(text).map(Since::Ago);
    ago.map_err(|_| "write a time such as 2026-03-01T08:00:00Z, or a span such as 2h".to_owned())
}

/// Resends.
///
/// # Errors
/// When the database refuses or cannot be asked, or `out` cannot be written to.
pub async fn run(
    arguments: &Arguments,
    config: &Config,
    out: &mut (dyn Write + Send),
    err: &mut (dyn Write + Send),
) -> anyhow::Result<Exit> {
    match config.outbox.on_sent {
        OnSent::Mark => {}
        OnSent::Delete => {
            writeln!(
                err,
                "outbox-relay: outbox.on_sent is \"delete\": no sent row is kept"
            )?;
            return Ok(Exit::Failed);
        }
    }
    let act = arguments.signed.act()?;
    let operator = Operator::acting(&servers::store(config)?).await?;
    let done = resend(arguments, &operator, &act, err).await;
    operator.close().await;
    tell(arguments, done?, out, err)
}

fn tell(
    arguments: &Arguments,
    done: Done,
    out: &mut (dyn Write + Send),
    err: &mut (dyn Write + Send),
) -> anyhow::Result<Exit> {
    let Done {
        rows,
        interrupted_at,
    } = done;
    if let Some(id) = interrupted_at {
        writeln!(
            err,
            "Interrupted. To go on, run the same command with --after {id}."
        )?;
    }
    if arguments.amount.json {
        let told = json!({
            "version": VERSION,
            "dry_run": arguments.amount.dry_run,
            "rows": rows,
            "interrupted_after": interrupted_at,
        });
        writeln!(out, "{told:#}")?;
    } else {
        let word = if arguments.amount.dry_run {
            "would be"
        } else {
            "will be"
        };
        writeln!(out, "{} {word} published again", counted(rows, "row"))?;
        if rows == 0 {
            writeln!(
                out,
                "No row that is still kept (outbox.retention) was sent since then and fits."
            )?;
        }
    }
    Ok(if interrupted_at.is_some() {
        Exit::Failed
    } else {
        Exit::Done
    })
}

async fn resend(
    arguments: &Arguments,
    operator: &Operator,
    act: &Act,
    err: &mut (dyn Write + Send),
) -> anyhow::Result<Done> {
    let before = operator.clock().await?;
    let sent = Sent {
        since: match arguments.since {
            Since::Time(time) => time,
            Since::Ago(ago) => before.checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH),
        },
        before,
        exchange: arguments.exchange.clone(),
        key: arguments.key.clone(),
    };
    let total = count(operator, &sent, arguments.after).await?;
    if arguments.amount.dry_run {
        return Ok(arguments.amount.of(total));
    }
    let after = arguments.after;
    let step =
        async |cursor: i64, limit| operator.resend(&sent, act, cursor.max(after), limit).await;
    in_batches(
        ("made pending again", total),
        arguments.amount.pace(),
        err,
        step,
    )
    .await
}

async fn count(operator: &Operator, sent: &Sent, after: i64) -> Result<u64, StoreError> {
    let (mut rows, mut cursor) = (0, after);
    loop {
        let batch = operator.count_sent(sent, cursor).await?;
        rows += batch.rows;
        match batch.cursor {
            Some(reached) => cursor = reached,
            None => return Ok(rows),
        }
    }
}
