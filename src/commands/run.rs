//! `outbox-relay run`: the daemon.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use super::reload::{self, Reload};
use super::servers::{broker, instance_name, store};
use super::{Exit, Start};
use crate::config::{BrokerTarget, Config, Login, Ordering};
use crate::message::Rules;
use crate::ops::{HttpServer, Metrics, Site, Supervisor};
use crate::relay::rules::FlowLimits;
use crate::relay::{Ended, Identity, Mode, Relay, Settings};
use crate::runtime::{Clock, Health, Shutdown};
use crate::store::postgres::PgStore;
use crate::store::postgres::operator::Operator;
use crate::store::postgres::remaining::{Remaining, remaining};

/// A minute is short beside what a person needs who changed a row by hand, and long beside what a
/// walk over the pending rows costs.
const SWEEP: Duration = Duration::from_secs(60);

/// Publish committed rows until told to stop
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outbox-relay run
  outbox-relay run --until-empty    # send what is due, say what is left, and exit

SIGTERM or SIGINT drains: nothing new is published, what is in flight is awaited and marked,
for at most relay.shutdown_grace. A second signal exits at once.
SIGHUP reads the configuration again: log level, retries and secrets count at once or at the next
connect; the log says what needs a restart.")]
pub struct Arguments {
    /// Send what is due, say what is scheduled, waiting or quarantined, and exit 0. Waits for
    /// servers that cannot be reached
    #[arg(long)]
    pub until_empty: bool,
}

/// Runs until it is told to stop. Outages never end it.
///
/// # Errors
/// The HTTP address cannot be bound, or a name in the configuration cannot be used.
pub async fn run(arguments: &Arguments, start: Start<'_>) -> anyhow::Result<Exit> {
    let Start {
        sources,
        loaded,
        telemetry,
        out,
        ..
    } = start;
    let hangups = reload::hangups().context("cannot listen for SIGHUP")?;
    let config = &loaded.config.clone();
    let shutdown = Shutdown::listen().context("cannot listen for signals")?;
    let health = Health::starting(Clock.now());
    let stop = CancellationToken::new();
    let server = listen(config.http.listen).await?;
    let metrics = Arc::new(Metrics::new(health.clone(), Clock));
    let site = Arc::new(site(health.clone(), Arc::clone(&metrics)));
    let pages = tokio::spawn(server.serve(site, stop.clone()));
    let supervisor = Supervisor::of_environment();
    let store = store(config)?;
    let target = config.broker_target();
    let broker = broker(target.clone());
    let drain = shutdown.drain().clone();
    let attended = supervisor.attend(health.clone(), Clock, drain.clone(), stop.clone());
    let attended = tokio::spawn(attended);
    let relay =
        Relay::new(settings(config, &target), store.clone(), broker, health).observed_by(metrics);
    let reload = Reload {
        sources,
        current: loaded,
        telemetry,
        database: store.target.clone(),
        broker: target,
        adjuster: relay.adjuster(),
        supervisor,
    };
    let reloads = tokio::spawn(reload.at_each(hangups, stop.clone()));
    supervisor.started();
    let mode = arguments.mode();
    let ended = relay.run(mode, drain).await;
    if mode == Mode::UntilEmpty {
        report(&store, out).await?;
    }
    stop.cancel();
    ended_all([pages, reloads, attended]).await;
    match ended {
        Ended::Drained => info!("drained"),
        Ended::GraceOver(rows) => warn!(rows, "stopped before all was confirmed"),
    }
    Ok(Exit::Done)
}

/// The tasks beside the relay end when they are told to; one that panicked is told of.
async fn ended_all(tasks: [JoinHandle<()>; 3]) {
    for task in tasks {
        if let Err(error) = task.await {
            warn!(%error, "the HTTP server, the reload or the watchdog ended badly");
        }
    }
}

async fn listen(address: SocketAddr) -> anyhow::Result<HttpServer> {
    let server = HttpServer::bind(address)
        .await
        .with_context(|| format!("http.listen: cannot listen on {address}"))?;
    info!(address = %server.address()?, version = env!("CARGO_PKG_VERSION"), "starting");
    Ok(server)
}

/// The probes and pages.
fn site(health: Health, metrics: Arc<Metrics>) -> Site {
    Site::new(health, Clock).with_page("/metrics", move || metrics.page())
}

impl Arguments {
    fn mode(&self) -> Mode {
        if self.until_empty {
            Mode::UntilEmpty
        } else {
            Mode::Forever
        }
    }
}

/// What an engine is told at its start.
pub(super) fn settings(config: &Config, target: &BrokerTarget) -> Settings {
    let relay = &config.relay;
    let limits = limits(config);
    let rules = Rules {
        max_message_size: relay.max_message_size.bytes(),
        // Found out on connecting; nothing is validated before.
        frame_max: 0,
        mandatory: relay.mandatory,
        optional_exchanges: relay.optional_exchanges.clone(),
        allowed_exchanges: relay.allowed_exchanges.clone(),
        default_content_type: "application/octet-stream",
        login: login(target),
    };
    Settings {
        limits,
        rules,
        identity: Identity {
            instance: Uuid::new_v4(),
            name: instance_name(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        },
        retention: config.outbox.retention,
        shutdown_grace: relay.shutdown_grace,
    }
}

/// What bounds the flow, and how attempts are repeated.
pub(super) fn limits(config: &Config) -> FlowLimits {
    let relay = &config.relay;
    let usize_of = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    FlowLimits {
        batch_size: relay.batch_size,
        max_in_flight: relay.max_in_flight,
        channels: relay.channels,
        max_buffered_bytes: usize_of(relay.max_buffered_bytes.bytes()),
        poll_interval: relay.poll_interval,
        sweep_interval: SWEEP,
        ordered: relay.ordering == Ordering::Key,
        retry: config.retry.policy(),
        max_attempts: config.retry.max_attempts,
        unroutable_after: config.retry.unroutable_after,
        destination_after: config.retry.destination_after,
    }
}

/// The broker's user, if it is the same at every host.
fn login(target: &BrokerTarget) -> Option<String> {
    let access = target.resolve().ok()?;
    let mut users = access
        .endpoints
        .iter()
        .map(|endpoint| user(&endpoint.login));
    let first = users.next()??.to_owned();
    users
        .all(|user| user == Some(first.as_str()))
        .then_some(first)
}

fn user(login: &Login) -> Option<&str> {
    match login {
        Login::Plain { user, .. } => Some(user),
        Login::External => None,
    }
}

async fn report(store: &PgStore, out: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    let Remaining {
        due,
        scheduled,
        waiting,
        quarantined,
    } = remaining(store).await?;
    writeln!(out, "due: {due}")?;
    writeln!(out, "scheduled for later: {scheduled}")?;
    writeln!(out, "waiting to be retried: {waiting}")?;
    writeln!(out, "in quarantine: {quarantined}")?;
    let looking = Operator::looking(store).await?;
    let paused = looking.paused().await;
    looking.close().await;
    for one in paused? {
        writeln!(out, "paused: {}", super::pause::told(&one))?;
    }
    Ok(())
}
