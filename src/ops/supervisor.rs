//! Tells systemd how the daemon is doing, by the protocol of sd_notify(3): started, reloading,
//! stopping, a line for `systemctl status`, and the watchdog.
//!
//! Says nothing where nobody listens (`NOTIFY_SOCKET` is not set). Started means configured and
//! listening, not connected: an outage must not fail a start. The watchdog is fed only while the
//! engine comes round its loop, whatever its servers do, so that it ends a stuck process and never
//! one that waits.

use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use sd_notify::NotifyState;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::runtime::condition::Condition;
use crate::runtime::readiness::{Readiness, readiness};
use crate::runtime::{Clock, Health, Moment};

/// Looks at the engine in each period of the watchdog. The engine comes round every five seconds
/// at least, so a period of ten seconds or more never ends a healthy process.
const LOOKS: u32 = 4;

/// Whoever started the process and wants to hear of it.
#[derive(Clone, Copy, Debug)]
pub struct Supervisor {
    watchdog: Option<Duration>,
}

impl Supervisor {
    /// Takes the watchdog's period from `WATCHDOG_USEC`, if it is meant for this process.
    #[must_use]
    pub fn of_environment() -> Self {
        Self {
            watchdog: sd_notify::watchdog_enabled().filter(|period| !period.is_zero()),
        }
    }

    /// The configuration is good, signals are heard, probes are answered.
    pub fn started(self) {
        tell(&[NotifyState::Ready]);
    }

    /// The configuration is being read again. [`Supervisor::started`] says that it has been.
    pub fn reloading(self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => tell(&[NotifyState::Reloading, now]),
            Err(error) => debug!(%error, "a reload is not announced"),
        }
    }

    /// Feeds the watchdog and keeps the line of `systemctl status`, until `stop`; says that the
    /// process is stopping when `drain` is cancelled.
    pub async fn attend(
        self,
        health: Health,
        clock: Clock,
        drain: CancellationToken,
        stop: CancellationToken,
    ) {
        let both = async { tokio::join!(self.feed(&health, clock), describe(&health, clock)) };
        let mut both = pin!(both.fuse());
        tokio::select! {
            biased;
            () = drain.cancelled() => tell(&[NotifyState::Stopping]),
            () = stop.cancelled() => {}
            _ = &mut both => {}
        }
        // A drain takes time, too, and can be stuck.
        stop.run_until_cancelled(both).await;
    }

    async fn feed(self, health: &Health, clock: Clock) {
        let Some(period) = self.watchdog else {
            return;
        };
        let mut hunger = Hunger::new(health.last_turn());
        loop {
            tokio::time::sleep(period / LOOKS).await;
            let turned = health.last_turn();
            if hunger.is_fed_by(turned) {
                tell(&[NotifyState::Watchdog]);
            } else {
                let silent = clock.now().since(turned).as_secs();
                debug!(
                    silent,
                    "the engine did not come round; no word to the watchdog"
                );
            }
        }
    }
}

/// Feeds the watchdog for a turn that it has not been fed for, and for no other.
struct Hunger {
    fed_for: Moment,
}

impl Hunger {
    fn new(turned: Moment) -> Self {
        Self { fed_for: turned }
    }

    fn is_fed_by(&mut self, turned: Moment) -> bool {
        let anew = turned > self.fed_for;
        self.fed_for = turned;
        anew
    }
}

/// Tells each change of the condition.
async fn describe(health: &Health, clock: Clock) {
    let mut condition = health.watch();
    let mut said = String::new();
    loop {
        let line = line(&condition.borrow_and_update(), clock.now());
        if line != said {
            tell(&[NotifyState::Status(&line)]);
            said = line;
        }
        if condition.changed().await.is_err() {
            return;
        }
    }
}

/// What keeps the relay from being ready, or else what it does; one line, as the protocol needs.
fn line(condition: &Condition, now: Moment) -> String {
    let Readiness {
        database,
        broker,
        progress,
        ..
    } = readiness(condition, now);
    let mut parts: Vec<String> = [("PostgreSQL", &database), ("RabbitMQ", &broker)]
        .into_iter()
        .filter(|(_, component)| !component.ok)
        .map(|(name, component)| format!("{name} {}: {}", component.state, component.reason))
        .collect();
    if parts.is_empty() {
        parts.push(progress.state.to_owned());
    }
    parts.join("; ").replace(['\n', '\r'], " ")
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!(%error, "the supervisor at NOTIFY_SOCKET cannot be told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::condition::{Broker, Database, Due, Role};

    fn at(seconds: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(seconds))
    }

    #[test]
    fn the_watchdog_is_fed_for_new_turns_only() {
        let mut hunger = Hunger::new(at(10));
        assert!(!hunger.is_fed_by(at(10)));
        assert!(hunger.is_fed_by(at(12)));
        assert!(!hunger.is_fed_by(at(12)));
        assert!(hunger.is_fed_by(at(15)));
    }

    #[test]
    fn the_status_line_names_what_is_in_the_way_else_what_is_done() {
        let mut condition = Condition {
            database: Database::Connected,
            broker: Broker::Disconnected("mq:5672: refused\nagain".to_owned()),
            ..Condition::default()
        };
        assert_eq!(
            line(&condition, at(0)),
            "RabbitMQ disconnected: mq:5672: refused again"
        );
        condition.broker = Broker::Connected;
        assert_eq!(line(&condition, at(0)), "unknown");
        condition.due = Due::Nothing;
        assert_eq!(line(&condition, at(0)), "idle");
        condition.role = Role::StandBy;
        assert_eq!(line(&condition, at(0)), "stand_by");
    }
}
