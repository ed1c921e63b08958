//! `outbox-relay quarantine`: what is in it, and the operator's decisions about it.

mod change;
mod list;
mod show;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};

use super::act::{Amount, Signed, span};
use super::exit::Exit;
use super::servers;
use crate::config::Config;
use crate::message::ReasonClass;
use crate::store::postgres::operator::Operator;
use crate::store::postgres::quarantine::Selection;

/// List, show, replay or discard the rows that were given up.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outbox-relay quarantine list --class unroutable --exchange orders
  outbox-relay quarantine show 4711
  outbox-relay quarantine show 4711 --payload > body.json
  outbox-relay quarantine replay --class unroutable --reason 'queue was bound' --dry-run
  outbox-relay quarantine replay --exchange orders --rate 50/s --reason 'queue was bound'
  outbox-relay quarantine replay --id 4711 --payload-file body.json --reason 'typo in price'
  outbox-relay quarantine discard --older-than 90d --reason 'nobody waits for these'

Rows go in batches, lowest id first; each batch and its audit records are one transaction. Ctrl-C
stops between two; run the same command again to go on.

Exit codes: 0 done; 1 some rows could not be taken, a row that was named is not there, or a signal
came first; 2 usage;
75 the database cannot be reached; 78 configuration.")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List rows in quarantine, newest first
    List(List),
    /// Show all that is kept of a row, but not its payload
    Show(Show),
    /// Put rows back into the outbox, to be sent under the same message_id
    Replay(Replay),
    /// Remove rows for good
    Discard(Discard),
}

/// Which rows.
#[derive(Args, Clone, Debug)]
struct Filter {
    /// Only rows of this reason class, such as unroutable; may be repeated
    #[arg(long, value_name = "CLASS", hide_possible_values = true, value_parser = classes())]
    class: Vec<String>,
    /// Only rows to this exchange ('' for the default exchange)
    #[arg(long, value_name = "NAME")]
    exchange: Option<String>,
    /// Only rows of this ordering key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Only the row with this id; may be repeated
    #[arg(long, value_name = "ID")]
    id: Vec<i64>,
    /// Only rows with this message_id; may be repeated
    #[arg(long, value_name = "MESSAGE_ID")]
    message_id: Vec<String>,
    /// Only rows that have been in quarantine for longer than this, such as 2h
    #[arg(long, value_name = "AGE", value_parser = span)]
    older_than: Option<Duration>,
    /// Only rows that have been in quarantine for less than this
    #[arg(long, value_name = "AGE", value_parser = span)]
    newer_than: Option<Duration>,
}

/// Every class that a row can be in quarantine for.
fn classes() -> PossibleValuesParser {
    let waits = ReasonClass::BehindQuarantined;
    let classes = ReasonClass::ALL.into_iter();
    let classes = classes.filter(|class| *class != waits);
    PossibleValuesParser::new(classes.map(ReasonClass::as_str))
}

impl Filter {
    fn selection(&self) -> Selection {
        Selection {
            classes: self.class.clone(),
            exchange: self.exchange.clone(),
            key: self.key.clone(),
            ids: self.id.clone(),
            message_ids: self.message_id.clone(),
            older_than: self.older_than,
            newer_than: self.newer_than,
        }
    }
}

#[derive(Args, Debug)]
struct List {
    #[command(flatten)]
    filter: Filter,
    /// Rows at the most
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// For scripts
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct Show {
    /// The row's id or message_id
    #[arg(value_name = "ID")]
    id: String,
    /// Print nothing but the payload, byte for byte
    #[arg(long, conflicts_with = "json")]
    payload: bool,
    /// For scripts
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct Replay {
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    signed: Signed,
    #[command(flatten)]
    amount: Amount,
    /// Send the content of this file in place of the payload of the one row that is meant
    #[arg(long, value_name = "FILE")]
    payload_file: Option<PathBuf>,
    /// Rows older than quarantine.replay_window, too: consumers may have forgotten them
    #[arg(long)]
    beyond_window: bool,
}

#[derive(Args, Debug)]
struct Discard {
    #[command(flatten)]
    filter: Filter,
    /// All of quarantine, where no filter is given
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    signed: Signed,
    #[command(flatten)]
    amount: Amount,
}

/// Runs the command.
///
/// # Errors
/// When the database refuses or cannot be asked, or `out` cannot be written to.
pub async fn run(
    arguments: &Arguments,
    config: &Config,
    out: &mut (dyn Write + Send),
    err: &mut (dyn Write + Send),
) -> anyhow::Result<Exit> {
    let store = servers::store(config)?;
    let (acts, window) = match &arguments.command {
        Command::List(_) | Command::Show(_) => (false, None),
        Command::Replay(replay) => {
            let window = config.quarantine.replay_window;
            (true, (!replay.beyond_window).then_some(window))
        }
        Command::Discard(_) => (true, None),
    };
    let operator = if acts {
        Operator::acting(&store).await?
    } else {
        Operator::looking(&store).await?
    };
    let exit = match &arguments.command {
        Command::List(list) => list::run(list, &operator, &config.quarantine.owner, out).await,
        Command::Show(show) => show::run(show, &operator, out, err).await,
        Command::Replay(replay) => change::replay(replay, window, &operator, out, err).await,
        Command::Discard(discard) => change::discard(discard, &operator, out, err).await,
    };
    operator.close().await;
    exit
}
