//! SIGHUP: reads the configuration again and takes up what a running relay can take up: log
//! level, retries, and addresses and secrets for the next connect. Says what needs a restart.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::config::{BrokerTarget, Changes, DatabaseTarget, Loaded, Needs, Sources};
use crate::ops::{Supervisor, Telemetry};
use crate::relay::Adjuster;

/// What a reload reaches.
pub(super) struct Reload {
    pub(super) sources: Sources,
    /// What is in effect.
    pub(super) current: Loaded,
    pub(super) telemetry: Telemetry,
    pub(super) database: DatabaseTarget,
    pub(super) broker: BrokerTarget,
    pub(super) adjuster: Adjuster,
    pub(super) supervisor: Supervisor,
}

/// Hears SIGHUP from now on; without this the signal would end the process.
///
/// # Errors
/// When the handler cannot be installed.
pub(super) fn hangups() -> std::io::Result<Signal> {
    signal(SignalKind::hangup())
}

impl Reload {
    /// Reloads at each signal, until `stop`.
    pub(super) async fn at_each(mut self, mut hangups: Signal, stop: CancellationToken) {
        while let Some(Some(())) = stop.run_until_cancelled(hangups.recv()).await {
            let supervisor = self.supervisor;
            supervisor.reloading();
            self = match tokio::task::spawn_blocking(move || self.reload()).await {
                Ok(reloaded) => {
                    supervisor.started();
                    reloaded
                }
                Err(error) => {
                    error!(%error, "the configuration cannot be reloaded any more");
                    return;
                }
            };
        }
    }

    /// Blocks on the files of the configuration. A mistake in them changes nothing.
    fn reload(mut self) -> Self {
        let needs = Needs {
            database: true,
            broker: true,
        };
        match self.sources.load(needs) {
            Ok(new) => self.take_up(new),
            Err(faults) => {
                error!(%faults, "the configuration was not reloaded; the old one stays in effect");
            }
        }
        self
    }

    fn take_up(&mut self, new: Loaded) {
        let changes = Changes::between(&self.current, &new);
        if changes.live.contains(&"log.level")
            && let Err(error) = self.telemetry.set_level(&new.config.log.level)
        {
            error!(%error, "the log level stays as it is");
        }
        self.database.take_up(&new.config.database);
        self.broker.take_up(&new.config.broker);
        let limits = super::run::limits(&new.config);
        self.adjuster.adjust(limits);
        if changes == Changes::default() {
            info!("reloaded: no setting has changed; secret files are read at every connect");
        } else {
            info!(changed = changes.live.join(", "), "reloaded");
        }
        if !changes.restart.is_empty() {
            let keys = changes.restart.join(", ");
            warn!(keys, "changed, but in effect after a restart only");
        }
        self.current.now_in_effect(new, &changes);
    }
}
