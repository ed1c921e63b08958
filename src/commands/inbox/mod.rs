//! `outbox-relay inbox`: what operators see of the consumer half, and what they do to it.

mod act;
mod slip;
mod told;

use std::io::Write;
use std::time::Duration;

use clap::{Args, Subcommand};
use tokio_postgres::Client;

use super::exit::Exit;
use crate::config::{Config, parse_duration};
use crate::store::error::StoreError;
use crate::store::postgres::connect::open;
use crate::store::postgres::inbox_entries::{Act, Filter, list, show, totals};
use crate::store::postgres::session::{Session, application_name};

/// How long saying goodbye may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// Look after the consumer half: entries, dead messages, replays
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Count entries by consumer, state and reason
    Status(StatusArgs),
    /// List entries in the order of their arrival
    List(ListArgs),
    /// Show all about one message, with what operators did to it
    Show(ShowArgs),
    /// Open dead messages again: each keeps its identity and its place in its key, and runs once
    ///
    /// A message that is done is not run again; that is said, and recorded like every act. Each
    /// message is a transaction of its own: an interrupted command is simply given again.
    Replay(act::ActArgs),
    /// Close dead messages for good: copies that still arrive are duplicates
    ///
    /// The payload is removed; its digest stays in the audit.
    Discard(act::ActArgs),
}

#[derive(Args, Debug)]
struct StatusArgs {
    /// For scripts
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outbox-relay inbox list --state dead
  outbox-relay inbox list --consumer billing --class attempts_exhausted --older-than 1h --json")]
struct ListArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// In this state: processing, waiting, retry, done or dead
    #[arg(long, value_parser = ["processing", "waiting", "retry", "done", "dead"])]
    state: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// For scripts
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct ShowArgs {
    /// The message's id
    message_id: String,
    /// Of this consumer alone
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    /// With its payload, in base64: it may hold what not everybody should see
    #[arg(long)]
    payload: bool,
    /// For scripts
    #[arg(long)]
    json: bool,
}

#[derive(Args, Clone, Debug, Default)]
struct FilterArgs {
    /// Of this consumer
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    /// That failed with a reason of this class, such as attempts_exhausted
    #[arg(long, value_name = "CLASS")]
    class: Option<String>,
    /// Of this ordering key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// That arrived at least so long ago, such as 30m
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    older_than: Option<Duration>,
}

impl FilterArgs {
    fn is_empty(&self) -> bool {
        let Self {
            consumer,
            class,
            key,
            older_than,
        } = self;
        consumer.is_none() && class.is_none() && key.is_none() && older_than.is_none()
    }

    fn filter(&self, state: Option<&str>, message_ids: &[String]) -> Filter {
        Filter {
            consumer: self.consumer.clone(),
            state: state.map(str::to_owned),
            class: self.class.clone(),
            key: self.key.clone(),
            older_than: self.older_than,
            message_ids: message_ids.to_vec(),
        }
    }
}

/// Does it.
///
/// # Errors
/// When the database cannot be asked, or `out` cannot be written to.
pub async fn run(
    arguments: &Arguments,
    config: &Config,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<Exit> {
    let session = enter(config).await?;
    let done = on(&session, arguments, out).await;
    session.close(GOODBYE).await;
    done
}

async fn enter(config: &Config) -> Result<Session, StoreError> {
    let name = application_name("inbox", &std::process::id().to_string());
    Box::pin(open(&config.database_target(), &name)).await
}

async fn on(
    session: &Session,
    arguments: &Arguments,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<Exit> {
    let client = &session.client;
    match &arguments.command {
        Command::Status(args) => {
            let totals = totals(client).await?;
            writeln!(out, "{}", told::totals(&totals, args.json)?)?;
        }
        Command::List(args) => {
            let filter = args.filter.filter(args.state.as_deref(), &[]);
            let entries = list(client, &filter, i64::from(args.limit)).await?;
            writeln!(out, "{}", told::entries(&entries, args.json)?)?;
            if entries.is_empty() && !args.json {
                tell_slip(&args.filter, client, out).await?;
            }
        }
        Command::Show(args) => {
            let consumer = args.consumer.as_deref();
            let entries = show(client, consumer, &args.message_id, args.payload).await?;
            writeln!(out, "{}", told::shown(&entries, args.json)?)?;
            if entries.is_empty() {
                return Ok(Exit::Failed);
            }
        }
        Command::Replay(args) => return act::run(Act::Replay, args, client, out).await,
        Command::Discard(args) => return act::run(Act::Discard, args, client, out).await,
    }
    Ok(Exit::Done)
}

async fn tell_slip(
    filter: &FilterArgs,
    client: &Client,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<()> {
    if let Some(told) = slip::slip(filter, &totals(client).await?) {
        writeln!(out, "{told}")?;
    }
    Ok(())
}
