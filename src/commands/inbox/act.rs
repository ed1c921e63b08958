//! Replaying and discarding: which entries, at which pace, and what came of each.

use std::io::Write;

use clap::Args;
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_postgres::Client;

use super::super::plain::plain;
use super::told::VERSION;
use super::{FilterArgs, tell_slip};
use crate::commands::act::{Rate, Signed};
use crate::commands::exit::{Exit, Misuse};
use crate::store::postgres::inbox_entries::{Act, Entry, Outcome, act, list};
use crate::store::postgres::operator::Act as Signature;

/// Entries looked up at once.
const PAGE: i64 = 1000;

const EVERYTHING: &str =
    "say which messages: by id, by --consumer, --class, --key, --older-than, or --all";

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outbox-relay inbox replay 8b1d… --reason 'account was created'
  outbox-relay inbox replay --consumer billing --class attempts_exhausted --rate 20 \\
      --by ann --reason 'bank is back' --dry-run
  outbox-relay inbox discard --all --limit 10 --reason 'test data'

Exit codes: 0 all done; 1 some were refused; 2 usage; 75 the database cannot be reached.")]
pub(super) struct ActArgs {
    /// These messages
    message_id: Vec<String>,
    #[command(flatten)]
    filter: FilterArgs,
    /// Every dead message, where nothing else says which
    #[arg(long)]
    all: bool,
    /// At most so many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Not faster than this, such as 50/s
    #[arg(long, value_name = "N/s")]
    rate: Option<Rate>,
    #[command(flatten)]
    signed: Signed,
    /// Say what would be done, change nothing
    #[arg(long)]
    dry_run: bool,
    /// For scripts
    #[arg(long)]
    json: bool,
}

/// What came of all.
#[derive(Default)]
struct Tally {
    done: u32,
    refused: u32,
    /// Of each, for scripts.
    entries: Vec<Value>,
}

/// Does it, one entry after the other, each with its record.
pub(super) async fn run(
    what: Act,
    args: &ActArgs,
    client: &Client,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<Exit> {
    if args.message_id.is_empty() && args.filter.is_empty() && !args.all {
        return Err(Misuse(EVERYTHING.to_owned()).into());
    }
    let signature = args.signed.act()?;
    let entries = chosen(args, client).await?;
    let mut tally = Tally::default();
    for missing in args.message_id.iter().filter(|id| {
        let is_it = |entry: &Entry| entry.message_id == **id;
        !entries.iter().any(is_it)
    }) {
        if args.json {
            tally.entries.push(object(None, missing, Outcome::Missing));
        } else {
            writeln!(out, "{}: no such entry", plain(missing))?;
        }
        tally.refused += 1;
    }
    if entries.is_empty() && !args.json {
        tell_slip(&args.filter, client, out).await?;
    }
    let total = entries.len();
    for (number, entry) in entries.iter().enumerate() {
        if number > 0
            && !args.dry_run
            && let Some(rate) = args.rate
        {
            sleep(rate.time_for(1)).await;
        }
        one(what, args, client, &signature, entry, &mut tally, out).await?;
        if !args.dry_run && !args.json && (number + 1) % 100 == 0 {
            writeln!(out, "{} of {total}", number + 1)?;
            out.flush()?;
        }
    }
    summary(what, args, &tally, out)
}

/// Those that were named, whatever their state, so that each is answered; else the dead ones.
async fn chosen(args: &ActArgs, client: &Client) -> anyhow::Result<Vec<Entry>> {
    let state = args.message_id.is_empty().then_some("dead");
    let filter = args.filter.filter(state, &args.message_id);
    let limit = args.limit.map_or(i64::MAX, i64::from);
    // One list, taken once: what dies meanwhile is not meant.
    Ok(list(client, &filter, limit.min(PAGE * PAGE)).await?)
}

async fn one(
    what: Act,
    args: &ActArgs,
    client: &Client,
    signature: &Signature,
    entry: &Entry,
    tally: &mut Tally,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<()> {
    let name = format!("{} {}", plain(&entry.consumer), plain(&entry.message_id));
    let outcome = if args.dry_run {
        would_be(entry)
    } else {
        act(client, what, &entry.consumer, &entry.message_id, signature).await?
    };
    let said = match (outcome, what, args.dry_run) {
        (Outcome::Done, Act::Replay, false) => "replayed",
        (Outcome::Done, Act::Replay, true) => "would be replayed",
        (Outcome::Done, Act::Discard, false) => "discarded",
        (Outcome::Done, Act::Discard, true) => "would be discarded",
        (Outcome::Suppressed, _, _) => "suppressed: it is done, and will not run twice",
        (Outcome::Unfinished, _, _) => "refused: it is not dead, it is still being worked on",
        (Outcome::Missing, _, _) => "refused: there is no such entry any more",
    };
    if args.json {
        let told = object(Some(&entry.consumer), &entry.message_id, outcome);
        tally.entries.push(told);
    } else {
        writeln!(out, "{name}: {said}")?;
    }
    match outcome {
        Outcome::Done => tally.done += 1,
        Outcome::Suppressed | Outcome::Unfinished | Outcome::Missing => tally.refused += 1,
    }
    Ok(())
}

/// What came of one entry; the consumer of one that is not there is not known.
fn object(consumer: Option<&str>, message_id: &str, outcome: Outcome) -> Value {
    let outcome = match outcome {
        Outcome::Done => "done",
        Outcome::Suppressed => "suppressed",
        Outcome::Unfinished => "unfinished",
        Outcome::Missing => "missing",
    };
    json!({ "consumer": consumer, "message_id": message_id, "outcome": outcome })
}

fn would_be(entry: &Entry) -> Outcome {
    match entry.state.as_str() {
        "dead" => Outcome::Done,
        "done" => Outcome::Suppressed,
        _ => Outcome::Unfinished,
    }
}

fn summary(
    what: Act,
    args: &ActArgs,
    tally: &Tally,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<Exit> {
    let act = match what {
        Act::Replay => "replayed",
        Act::Discard => "discarded",
    };
    let Tally {
        done,
        refused,
        entries,
    } = tally;
    if args.json {
        let told = json!({
            "version": VERSION,
            "dry_run": args.dry_run,
            "done": done,
            "refused": refused,
            "entries": entries,
        });
        writeln!(out, "{told:#}")?;
    } else {
        let would = if args.dry_run { "would be " } else { "" };
        writeln!(out, "{done} {would}{act}, {refused} refused")?;
    }
    Ok(if *refused == 0 {
        Exit::Done
    } else {
        Exit::Failed
    })
}
