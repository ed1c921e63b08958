//! `outbox-relay run`: the daemon.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use super::act::span;
use super::reload::{self, Reload};
use super::servers::{broker, instance_name, store};
use super::until_empty::{self, Cause};
use super::{Exit, Start};
use crate::broker::AmqpBroker;
use crate::config::{BrokerTarget, Config, Login, Ordering, Successors};
use crate::message::Rules;
use crate::ops::{Board, Everyone, Facts, HttpServer, Metrics, Site, Supervisor, with_page};
use crate::relay::rules::FlowLimits;
use crate::relay::{Ended, Identity, Mode, Relay, Settings};
use crate::runtime::{Clock, Health, Shutdown};
use crate::store::postgres::PgStore;

/// A minute is short beside what a person needs who changed a row by hand, and long beside what a
/// walk over the pending rows costs.
const SWEEP: Duration = Duration::from_secs(60);

/// Publish committed rows until told to stop
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outbox-relay run
  outbox-relay run --until-empty    # send what is due, say what is left, and exit

SIGTERM or SIGINT drains: nothing new is published, what is in flight is awaited and marked. It ends
within relay.shutdown_grace: with 0, and says in its log if rows were left in doubt, and how many.
A second signal exits at once.
SIGHUP reads the configuration again: log level, retries and secrets count at once or at the next
connect; the log says what needs a restart.")]
pub struct Arguments {
    /// Send what is due, say what is scheduled, waiting or quarantined, and exit 0; 1 if it was
    /// stopped before
    #[arg(long)]
    pub until_empty: bool,
    /// With --until-empty: exit 75 when a server could not be used for so long without a break, or
    /// 78 when the database refused for so long what only another setting, login, right or schema changes
    #[arg(long, value_name = "TIME", requires = "until_empty", value_parser = span,
          default_value = until_empty::PATIENCE)]
    pub wait: Duration,
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
        err,
    } = start;
    let hangups = reload::hangups().context("cannot listen for SIGHUP")?;
    let config = &loaded.config.clone();
    let shutdown = Shutdown::listen().context("cannot listen for signals")?;
    let health = Health::starting(Clock.now());
    let stop = CancellationToken::new();
    let server = listen(config.http.listen).await?;
    let (site, observer) = shown(config, &health);
    let pages = tokio::spawn(server.serve(Arc::new(site), stop.clone()));
    let supervisor = Supervisor::of_environment();
    let store = store(config)?;
    let target = config.broker_target();
    let (broker, drain) = (broker(target.clone()), shutdown.drain().clone());
    let attended = tokio::spawn(supervisor.attend(health.clone(), Clock, drain, stop.clone()));
    let told = settings(config, &target, store.token);
    let relay = Relay::new(told, store.clone(), broker, health.clone()).observed_by(observer);
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
    let grace = config.relay.shutdown_grace;
    let (ended, cause) = arguments.carry_out(relay, &health, &shutdown, grace).await;
    let exit = if arguments.until_empty {
        until_empty::conclude(ended, cause, &store, out, err).await
    } else {
        // Told to stop it stopped; what was left is said below.
        Ok(Exit::Done)
    };
    stop.cancel();
    ended_all([pages, reloads, attended], grace / LAST_WORDS).await;
    tell(ended);
    exit
}

fn tell(ended: Ended) {
    match ended {
        Ended::Drained => info!("drained"),
        Ended::GraceOver(rows) => warn!(
            rows,
            "stopped before all was confirmed and marked; these rows stay pending and may be sent once more"
        ),
    }
}

/// Of the grace period, one part in so many is left for whoever reads the pages.
const LAST_WORDS: u32 = 50;

/// The tasks beside the relay end when they are told to, or with the process; one that panicked
/// is told of.
async fn ended_all(tasks: [JoinHandle<()>; 3], deadline: Duration) {
    let all = async {
        for task in tasks {
            if let Err(error) = task.await {
                warn!(%error, "the HTTP server, the reload or the watchdog ended badly");
            }
        }
    };
    if timeout(deadline, all).await.is_err() {
        info!("somebody is still reading a page");
    }
}

async fn listen(address: SocketAddr) -> anyhow::Result<HttpServer> {
    let server = HttpServer::bind(address).await.with_context(|| {
        format!(
            "http.listen: cannot listen on {address}; if another relay runs here, set http.listen \
             (OUTBOX_RELAY__HTTP__LISTEN) to another port for this one"
        )
    })?;
    info!(address = %server.address()?, version = env!("CARGO_PKG_VERSION"), "starting");
    Ok(server)
}

/// The probes and pages, and who is to be told what they show.
fn shown(config: &Config, health: &Health) -> (Site, Arc<Everyone>) {
    let metrics = Arc::new(Metrics::new(
        health.clone(),
        Clock,
        &config.quarantine.owner,
    ));
    let facts = Facts {
        outbox: format!("{}.{}", config.outbox.schema, config.outbox.relation),
        instance: instance_name(),
        owner: config.quarantine.owner.clone(),
    };
    let board = Arc::new(Board::new(facts, health.clone(), Clock));
    let everyone = Everyone(vec![
        Arc::clone(&metrics) as Arc<_>,
        Arc::clone(&board) as _,
    ]);
    let site = Site::new(health.clone(), Clock).with_page("/metrics", move || metrics.page());
    (with_page(site, board), Arc::new(everyone))
}

impl Arguments {
    /// Runs the relay to its end, and tells what ended it.
    async fn carry_out(
        &self,
        relay: Relay<PgStore, AmqpBroker>,
        health: &Health,
        shutdown: &Shutdown,
        grace: Duration,
    ) -> (Ended, Cause) {
        let signalled = shutdown.drain();
        if !self.until_empty {
            let ended = relay.run(Mode::Forever, signalled.clone()).await;
            return (ended, Cause::Stopped(grace));
        }
        let drain = signalled.child_token();
        let running = relay.run(Mode::UntilEmpty, drain.clone());
        tokio::pin!(running);
        let (ended, given_up) = tokio::select! {
            ended = &mut running => (ended, None),
            why = until_empty::out_of_reach(health, self.wait) => {
                drain.cancel();
                (running.await, Some(why))
            }
        };
        let cause = match given_up {
            Some(why) => Cause::OutOfReach(why),
            None if signalled.is_cancelled() => Cause::Stopped(grace),
            None => Cause::Empty,
        };
        (ended, cause)
    }
}

/// What an engine is told at its start.
#[must_use]
pub fn settings(config: &Config, target: &BrokerTarget, token: Uuid) -> Settings {
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
            instance: token,
            name: instance_name(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            lease: relay.lease,
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
        successors_wait: config.quarantine.successors == Successors::Wait,
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
