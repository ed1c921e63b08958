//! `outbox-relay bench`: bare confirmed publisher and relay side by side, on the user's servers.
//!
//! Works in a schema and a queue of its own, with names that nothing else has, and removes both,
//! also when it is interrupted. Runs take turns and medians are told, because machines are noisy;
//! the ratios are what counts.

mod bare;
mod latency;
mod report;
mod stage;
mod watcher;

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;

use super::exit::Exit;
use super::servers;
use crate::config::{Config, RelaySection, parse_duration};
use report::Report;
use stage::{Made, Stage};

/// Measure the relay beside a bare publisher, on your servers.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  outbox-relay bench
  outbox-relay bench --rows 100000 --rounds 5 --json
  outbox-relay bench --rate 5000 --for 30s --yes    # on servers elsewhere

Makes a schema outbox_relay_bench_… and a queue outbox-relay.bench.… and removes both, also on
Ctrl-C. The login must be allowed to create schemas, and the user to configure the queue.

Exit codes: 0 measured; 1 something failed, or interrupted; 2 usage; 75 a server cannot be reached.")]
pub struct Arguments {
    /// Rows of each drain
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    rows: u32,
    /// Drains of each kind; the median is told
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Rows a second for the latency
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// How long to write at that rate
    #[arg(long = "for", value_name = "DURATION", default_value = "10s", value_parser = a_while)]
    span: Duration,
    /// Sessions that write at that rate together
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    writers: u32,
    /// Ordering keys
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    keys: u32,
    /// Bytes of a payload
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(12..=1_000_000))]
    size: u32,
    /// A classic queue in place of a quorum queue
    #[arg(long)]
    classic: bool,
    /// Also on servers that are not on this machine
    #[arg(long)]
    yes: bool,
    /// For scripts
    #[arg(long)]
    json: bool,
}

/// Measures, and removes what it made.
///
/// # Errors
/// When something fails on the way; what was made is removed even so.
pub async fn run(
    arguments: &Arguments,
    config: &Config,
    out: &mut (dyn Write + Send),
    err: &mut (dyn Write + Send),
) -> anyhow::Result<Exit> {
    if let Some(elsewhere) = elsewhere(config)?
        && !arguments.yes
    {
        writeln!(
            err,
            "bench: {elsewhere} is not on this machine; --yes lets it work there all the same"
        )?;
        return Ok(Exit::Usage);
    }
    let config = &for_scratch(config);
    let store = servers::store(config)?;
    let made = Made::names(&store)?;
    writeln!(
        err,
        "making schema {} and queue {}",
        made.outbox.schema(),
        made.queue
    )?;
    let measured = tokio::select! {
        measured = Box::pin(measure(arguments, config, &made, err)) => Some(measured),
        signal = interrupted() => {
            signal?;
            None
        }
    };
    // Dropping the measurement has ended its relays and writers.
    let removed = made.remove(config).await;
    match measured {
        None => {
            removed?;
            bail!("interrupted; what was made is removed")
        }
        Some(Err(error)) => {
            // What failed first comes last, where it is looked for.
            if let Err(left) = removed {
                writeln!(err, "bench: {left:#}")?;
            }
            Err(error)
        }
        Some(Ok(report)) => {
            removed?;
            let text = if arguments.json {
                report.json()?
            } else {
                report.text()
            };
            writeln!(out, "{text}")?;
            Ok(Exit::Done)
        }
    }
}

/// What is measured goes through the default exchange, whatever the application may use.
fn for_scratch(config: &Config) -> Config {
    let mut config = config.clone();
    config.relay.allowed_exchanges = RelaySection::default().allowed_exchanges;
    config
}

/// Long enough for a rate.
fn a_while(text: &str) -> Result<Duration, String> {
    let span = parse_duration(text)?;
    if span < Duration::from_secs(1) {
        return Err("must be a second at least: 1s".to_owned());
    }
    Ok(span)
}

async fn measure(
    arguments: &Arguments,
    config: &Config,
    made: &Made,
    err: &mut (dyn Write + Send),
) -> anyhow::Result<Report> {
    let stage = Stage::set(arguments, config, made).await?;
    let mut report = Report::of(arguments, config);
    for round in 1..=arguments.rounds {
        let bare = stage.bare_drain().await.context("bare publisher")?;
        writeln!(err, "round {round}: bare publisher {bare}")?;
        report.bare.push(bare);
        let relay = stage.relay_drain().await.context("relay")?;
        writeln!(err, "round {round}: relay          {relay}")?;
        report.relay.push(relay);
    }
    let (rate, seconds) = (arguments.rate, arguments.span.as_secs_f64());
    writeln!(
        err,
        "latency at {rate} rows/s for {seconds} s: bare publisher"
    )?;
    report.bare_latency = Some(latency::bare(&stage).await.context("bare publisher")?);
    writeln!(err, "latency at {rate} rows/s for {seconds} s: relay")?;
    report.relay_latency = Some(latency::relay(&stage).await.context("relay")?);
    stage.leave().await;
    Ok(report)
}

/// The first server that is not on this machine.
fn elsewhere(config: &Config) -> anyhow::Result<Option<String>> {
    let database = config.database_target().resolve()?;
    let remote = database.endpoints.iter().find(|one| !one.host.is_local());
    if let Some(endpoint) = remote {
        return Ok(Some(endpoint.to_string()));
    }
    let broker = config.broker_target().resolve()?;
    let remote = broker.endpoints.iter().find(|one| !one.is_local());
    Ok(remote.map(ToString::to_string))
}

/// Ctrl-C, or what a supervisor sends.
async fn interrupted() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    // The terminal was closed.
    let mut hang_up = signal(SignalKind::hangup())?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed,
        _ = terminate.recv() => Ok(()),
        _ = hang_up.recv() => Ok(()),
    }
}
