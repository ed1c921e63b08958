//! `outbox-relay pause` and `resume`: the database keeps what must not be published, every relay
//! obeys.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::act::{Signed, span};
use super::calendar::{clock, time_of};
use super::exit::Exit;
use super::servers;
use crate::config::{Config, nearest};
use crate::store::postgres::operator::Operator;
use crate::store::postgres::pause::Paused;

/// Of the JSON output; raised when a field changes its meaning or goes.
const VERSION: u32 = 1;

/// Stop publishing, to one exchange or to all, on every relay.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outbox-relay pause --exchange orders --reason 'consumers are being migrated' --for 1h
  outbox-relay pause --reason 'broker upgrade'

Every relay obeys within relay.poll_interval; what is in flight is still confirmed and marked.
Rows go on being written, and wait. A pause that there is already is replaced. An exchange that no row
names is paused, too, with a warning.")]
pub struct PauseArguments {
    /// Only this exchange ('' for the default exchange) [default: everything]
    #[arg(long, value_name = "NAME")]
    exchange: Option<String>,
    #[command(flatten)]
    signed: Signed,
    /// Resume by itself after this time, such as 1h
    #[arg(long = "for", value_name = "TIME", value_parser = span)]
    lasting: Option<Duration>,
    /// For scripts
    #[arg(long)]
    json: bool,
}

/// Go on publishing what was paused.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outbox-relay resume --exchange orders --reason 'migration is over'
  outbox-relay resume --all --reason 'broker is back'

Without --exchange and --all it ends the pause of everything, and leaves those of single exchanges.

Exit codes: 0 done; 1 that was not paused; 75 the database cannot be reached; 78 configuration.")]
pub struct ResumeArguments {
    /// This exchange ('' for the default exchange)
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    exchange: Option<String>,
    /// Every pause there is
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    signed: Signed,
    /// For scripts
    #[arg(long)]
    json: bool,
}

/// Pauses.
///
/// # Errors
/// When the database refuses or cannot be asked, or `out` cannot be written to.
pub async fn pause(
    arguments: &PauseArguments,
    config: &Config,
    out: &mut (dyn Write + Send),
    err: &mut (dyn Write + Send),
) -> anyhow::Result<Exit> {
    let act = arguments.signed.act()?;
    let what = Paused::from(arguments.exchange.clone());
    let operator = Operator::acting(&servers::store(config)?).await?;
    let paused = operator.pause(&what, &act, arguments.lasting).await;
    let seen = match &what {
        // A relation of one's own need not name exchanges.
        Paused::Exchange(name) => operator.exchanges().await.ok().map(|seen| (name, seen)),
        Paused::Everything => None,
    };
    operator.close().await;
    let until = paused?;
    if let Some((name, seen)) = &seen {
        warn_of_a_slip(name, seen, err)?;
    }
    if arguments.json {
        let told = json!({
            "version": VERSION,
            "exchange": exchange(&what),
            "until": until.map(time_of),
        });
        writeln!(out, "{told:#}")?;
        return Ok(Exit::Done);
    }
    let until = until.map_or_else(
        || "until it is resumed".to_owned(),
        |until| format!("until {} UTC", clock(until)),
    );
    writeln!(out, "Paused {} {until}.", told(&what))?;
    Ok(Exit::Done)
}

/// Exchanges that no row names can be paused, before the first one is written. Mostly it is a slip.
fn warn_of_a_slip(
    name: &str,
    seen: &[String],
    err: &mut (dyn Write + Send),
) -> std::io::Result<()> {
    if name.is_empty() || seen.iter().any(|one| one == name) {
        return Ok(());
    }
    let like = nearest(name, seen.iter().map(String::as_str))
        .map_or_else(String::new, |like| format!(" Did you mean {like}?"));
    writeln!(
        err,
        "outbox-relay: warning: no pending row, and none of those written lately, names exchange \
         {name}; it is paused all the same.{like}"
    )
}

/// Resumes.
///
/// # Errors
/// When the database refuses or cannot be asked, or `out` cannot be written to.
pub async fn resume(
    arguments: &ResumeArguments,
    config: &Config,
    out: &mut (dyn Write + Send),
    err: &mut (dyn Write + Send),
) -> anyhow::Result<Exit> {
    let act = arguments.signed.act()?;
    let what = Paused::from(arguments.exchange.clone());
    let what = (!arguments.all).then_some(what);
    let operator = Operator::acting(&servers::store(config)?).await?;
    let resumed = operator.resume(what.as_ref(), &act).await;
    let left = operator.paused().await;
    operator.close().await;
    let (resumed, left) = (resumed?, left?);
    let exit = if resumed.is_empty() {
        Exit::Failed
    } else {
        Exit::Done
    };
    if arguments.json {
        let names = |all: &[Paused]| all.iter().map(exchange).collect::<Vec<_>>();
        let told = json!({
            "version": VERSION,
            "resumed": names(&resumed),
            "still_paused": names(&left),
        });
        writeln!(out, "{told:#}")?;
        return Ok(exit);
    }
    for one in &resumed {
        writeln!(out, "Resumed {}.", told(one))?;
    }
    if resumed.is_empty() {
        let what = what.as_ref().map_or("anything".to_owned(), told);
        writeln!(err, "No pause of {what} was in force.")?;
    }
    for one in &left {
        writeln!(err, "Still paused: {}.", told(one))?;
    }
    Ok(exit)
}

/// For scripts: the exchange's name; null is everything.
fn exchange(what: &Paused) -> Option<String> {
    match what {
        Paused::Everything => None,
        Paused::Exchange(name) => Some(name.clone()),
    }
}

pub(super) fn told(what: &Paused) -> String {
    match what {
        Paused::Everything => "everything".to_owned(),
        Paused::Exchange(name) if name.is_empty() => "the default exchange".to_owned(),
        Paused::Exchange(name) => format!("exchange {name}"),
    }
}
