//! What the engine tells about itself, held for whoever asks: probes, the status page, the
//! instance row.
//!
//! Cheap to clone and to tell. Judges liveness; readiness is `readiness`'s rule.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::Moment;
use super::condition::{Broker, Condition, Database, Due, Role};
use super::readiness::{Readiness, readiness};

/// An engine that did not come round its loop for so long is stuck. Every wait in it has a
/// deadline, so that it comes round far more often during any outage.
pub const STUCK_AFTER: Duration = Duration::from_secs(120);

/// What a read found to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backlog {
    /// Nothing.
    Nothing,
    /// Nothing that could be sent now: see [`Due::HeldBack`].
    HeldBack,
    /// Rows that are due.
    Due,
    /// Rows whose fate is decided and not yet written down, and no others.
    Unmarked,
    /// Nobody looks.
    Unread,
}

/// The engine's word about itself.
#[derive(Clone, Debug)]
pub struct Health {
    condition: watch::Sender<Condition>,
    /// Milliseconds since the clock's origin at which the engine last came round.
    turned: Arc<AtomicU64>,
}

impl Health {
    /// Nothing is connected yet.
    #[must_use]
    pub fn starting(now: Moment) -> Self {
        let health = Self {
            condition: watch::Sender::new(Condition::default()),
            turned: Arc::new(AtomicU64::new(0)),
        };
        health.turn(now);
        health
    }

    /// The engine came round its loop: whatever it waits for, it is not stuck.
    pub fn turn(&self, now: Moment) {
        let millis = u64::try_from(now.since_origin().as_millis()).unwrap_or(u64::MAX);
        self.turned.fetch_max(millis, Ordering::Relaxed);
    }

    /// When the engine last came round.
    #[must_use]
    pub fn last_turn(&self) -> Moment {
        Moment::from_origin(Duration::from_millis(self.turned.load(Ordering::Relaxed)))
    }

    /// The connection to PostgreSQL changed. Without it nobody knows what is due.
    pub fn database(&self, database: Database) {
        if database != Database::Connected {
            self.change(|condition| &mut condition.due, Due::Unknown);
        }
        self.change(|condition| &mut condition.database, database);
    }

    /// The connection to RabbitMQ changed.
    pub fn broker(&self, broker: Broker) {
        self.change(|condition| &mut condition.broker, broker);
    }

    /// The relay's part changed.
    pub fn role(&self, role: Role) {
        self.change(|condition| &mut condition.role, role);
    }

    /// So many partitions are held, and whether the first is among them.
    pub fn partitions(&self, held: u16, first: bool) {
        self.change(|condition| &mut condition.partitions, held);
        self.change(|condition| &mut condition.speaks, first);
    }

    /// What there is to send: after each read and, while there are none, as it changes. The moment
    /// counts from the first of many reads that say that something is due.
    pub fn backlog(&self, backlog: Backlog, now: Moment) {
        self.condition.send_if_modified(|condition| {
            let due = match (backlog, condition.due) {
                (Backlog::Nothing, _) => Due::Nothing,
                (Backlog::HeldBack, _) => Due::HeldBack,
                (Backlog::Due, due) => Due::Since(due.since().unwrap_or(now)),
                (Backlog::Unmarked, due) => Due::Unmarked(due.since().unwrap_or(now)),
                (Backlog::Unread, _) => Due::Unknown,
            };
            // Between these it goes to and fro all the time: that wakes nobody.
            let still_due = condition.due.since().is_some() && due.since().is_some();
            let changed = condition.due != due && !still_due;
            condition.due = due;
            changed
        });
    }

    /// A row was routed and confirmed. Wakes nobody, like [`Health::progressed`].
    pub fn confirmed(&self, now: Moment) {
        self.condition.send_if_modified(|condition| {
            condition.confirmed = condition.confirmed.max(Some(now));
            false
        });
    }

    /// Rows were settled. Wakes nobody: it happens all the time.
    pub fn progressed(&self, now: Moment) {
        self.condition.send_if_modified(|condition| {
            condition.progressed = condition.progressed.max(Some(now));
            false
        });
    }

    /// The whole condition, and a way to wait for its next change.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Condition> {
        self.condition.subscribe()
    }

    /// Whether rows are due, by the last read.
    #[must_use]
    pub fn rows_are_due(&self) -> bool {
        self.condition.borrow().due.since().is_some()
    }

    /// Whether the relay is ready, and why not.
    #[must_use]
    pub fn readiness(&self, now: Moment) -> Readiness {
        readiness(&self.condition.borrow(), now)
    }

    /// `Err` with how long the engine has been stuck. An outage is no reason.
    ///
    /// # Errors
    /// The time since the engine last came round, if it is longer than [`STUCK_AFTER`].
    pub fn liveness(&self, now: Moment) -> Result<(), Duration> {
        let silent = now.since(self.last_turn());
        if silent > STUCK_AFTER {
            Err(silent)
        } else {
            Ok(())
        }
    }

    fn change<T: PartialEq>(&self, part: impl FnOnce(&mut Condition) -> &mut T, to: T) {
        self.condition.send_if_modified(|condition| {
            let part = part(condition);
            let changed = *part != to;
            *part = to;
            changed
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(seconds))
    }

    #[test]
    fn liveness_needs_turns_only() {
        let health = Health::starting(at(1000));
        assert_eq!(health.liveness(at(1120)), Ok(()));
        assert_eq!(health.liveness(at(1121)), Err(Duration::from_secs(121)));
        health.turn(at(1121));
        health.broker(Broker::Disconnected("down".to_owned()));
        health.database(Database::Disconnected("down".to_owned()));
        assert_eq!(health.liveness(at(1241)), Ok(()));
    }

    #[test]
    fn the_first_due_read_counts_until_nothing_is_due() {
        let health = Health::starting(at(0));
        let due = || health.watch().borrow().due;
        assert_eq!(due(), Due::Unknown);
        health.backlog(Backlog::Due, at(5));
        health.backlog(Backlog::Due, at(9));
        assert_eq!(due(), Due::Since(at(5)));
        health.backlog(Backlog::Nothing, at(10));
        assert_eq!(due(), Due::Nothing);
        health.database(Database::Disconnected("down".to_owned()));
        assert_eq!(due(), Due::Unknown);
    }

    #[test]
    fn only_a_change_wakes_a_watcher() {
        let health = Health::starting(at(0));
        let mut watcher = health.watch();
        watcher.mark_unchanged();
        health.progressed(at(1));
        health.role(Role::Active);
        assert!(!watcher.has_changed().unwrap());
        health.role(Role::StandBy);
        assert!(watcher.has_changed().unwrap());
        assert_eq!(watcher.borrow_and_update().progressed, Some(at(1)));
    }
}
