//! Is the relay ready? A pure rule over what the engine last said.
//!
//! Ready means that due rows make progress, or that there is nothing for this relay to do. A
//! stand-by is ready as long as it could take up work, for which it needs both servers; a paused relay
//! does not need the broker.

use std::time::Duration;

use serde::Serialize;

use super::Moment;
use super::condition::{Broker, Condition, Database, Due, Role};

/// Due rows without a single confirmation for so long are "no progress". Longer than a confirm
/// may take by default plus one reconnect, so that a slow moment does not flap a probe.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The answer, component by component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Readiness {
    /// All components that matter are well.
    pub ready: bool,
    /// PostgreSQL.
    pub database: Component,
    /// RabbitMQ.
    pub broker: Component,
    /// Due rows.
    pub progress: Component,
}

/// One component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Component {
    /// Whether it lets the relay be ready.
    pub ok: bool,
    /// One of a few words.
    pub state: &'static str,
    /// For people; empty when there is nothing to say.
    pub reason: String,
}

impl Component {
    fn new(ok: bool, state: &'static str, reason: impl Into<String>) -> Self {
        Self {
            ok,
            state,
            reason: reason.into(),
        }
    }
}

/// Judges a condition.
#[must_use]
pub fn readiness(condition: &Condition, now: Moment) -> Readiness {
    let database = database(&condition.database);
    let broker = broker(&condition.broker, &condition.role);
    let progress = progress(condition, now);
    Readiness {
        ready: database.ok && broker.ok && progress.ok,
        database,
        broker,
        progress,
    }
}

fn database(database: &Database) -> Component {
    match database {
        Database::Connected => Component::new(true, "connected", ""),
        Database::ReadOnly(reason) => Component::new(false, "read_only", reason),
        Database::Disconnected(reason) | Database::Refused(reason) => {
            Component::new(false, "disconnected", reason)
        }
    }
}

fn broker(broker: &Broker, role: &Role) -> Component {
    // A stand-by may take over at any moment; a broker that blocks is reached.
    let (does_without, bears_a_block) = match role {
        Role::Active | Role::Draining => (false, false),
        Role::StandBy => (false, true),
        Role::Paused(_) => (true, true),
    };
    match broker {
        Broker::Connected => Component::new(true, "connected", ""),
        Broker::Blocked(reason) => Component::new(bears_a_block, "blocked", reason),
        Broker::Disconnected(reason) => Component::new(does_without, "disconnected", reason),
    }
}

/// Well, as far as this relay goes: another replica could send these rows no sooner.
const HELD_BACK: &str = "rows wait for a destination that refuses, or for another attempt of a row of \
     their key; nothing else is due";

/// What cannot be known, or follows from an outage, is said to be so, and never to be well.
fn progress(condition: &Condition, now: Moment) -> Component {
    let reachable = condition.database == Database::Connected;
    match &condition.role {
        Role::Draining => {
            return Component::new(false, "draining", "stopping; takes no new rows");
        }
        Role::StandBy | Role::Paused(_) | Role::Active if !reachable => {
            let reason = "what is due cannot be read without the database";
            return Component::new(false, "unknown", reason);
        }
        Role::StandBy => {
            return Component::new(
                true,
                "stand_by",
                "other relays hold all partitions, or one that is gone does until its lease ends",
            );
        }
        Role::Paused(reason) => return Component::new(true, "paused", reason),
        Role::Active => {}
    }
    let since = match condition.due {
        // No rows are read then: what became due since is not known.
        Due::Unknown | Due::Nothing | Due::HeldBack
            if matches!(condition.broker, Broker::Disconnected(_)) =>
        {
            let reason = "rows are not looked for without the broker";
            return Component::new(false, "unknown", reason);
        }
        Due::Unknown => {
            return Component::new(false, "unknown", "has not looked for due rows yet");
        }
        Due::Nothing => return Component::new(true, "idle", "nothing is due"),
        Due::HeldBack => return Component::new(true, "waiting", HELD_BACK),
        Due::Unmarked(since) => return moving(condition.progressed, since, now, UNMARKED),
        Due::Since(since) => since,
    };
    match condition.broker {
        Broker::Connected => moving(condition.progressed, since, now, UNCONFIRMED),
        Broker::Blocked(_) => {
            let reason = "rows are due and wait until the broker unblocks the connection";
            Component::new(false, "halted", reason)
        }
        Broker::Disconnected(_) => {
            Component::new(false, "halted", "rows are due and wait for the broker")
        }
    }
}

const UNCONFIRMED: &str = "rows are due, and none was sent and marked, put off or given up";

/// Only these keep a settlement from being written for long while the session stands.
const UNMARKED: &str = "rows were sent or given up, and could not be marked: somebody holds them \
     locked, or the database refuses them (see the log)";

fn moving(progressed: Option<Moment>, due_since: Moment, now: Moment, what: &str) -> Component {
    let waiting_since = progressed.map_or(due_since, |p| p.max(due_since));
    let waiting = now.since(waiting_since);
    if waiting <= PATIENCE {
        return Component::new(true, "progressing", "");
    }
    let seconds = waiting.as_secs();
    Component::new(false, "stuck", format!("{what}, for {seconds} s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(seconds))
    }

    fn well() -> Condition {
        Condition {
            database: Database::Connected,
            broker: Broker::Connected,
            due: Due::Nothing,
            ..Condition::default()
        }
    }

    fn told(condition: &Condition) -> (&'static str, bool) {
        let progress = readiness(condition, at(0)).progress;
        assert_eq!(progress.reason.is_empty(), progress.state == "progressing");
        (progress.state, progress.ok)
    }

    fn blamed(condition: &Condition, now: Moment) -> Vec<&'static str> {
        let answer = readiness(condition, now);
        let parts = [
            ("database", &answer.database),
            ("broker", &answer.broker),
            ("progress", &answer.progress),
        ];
        let blamed: Vec<_> = parts.iter().filter(|p| !p.1.ok).map(|p| p.0).collect();
        assert_eq!(answer.ready, blamed.is_empty());
        blamed
    }

    #[test]
    fn a_relay_that_just_started_is_not_ready() {
        let blamed = blamed(&Condition::default(), at(0));
        assert_eq!(blamed, ["database", "broker", "progress"]);
    }

    #[test]
    fn a_relay_that_has_not_looked_yet_does_not_say_that_nothing_is_due() {
        let condition = Condition {
            due: Due::Unknown,
            ..well()
        };
        assert_eq!(told(&condition), ("unknown", false));
    }

    #[test]
    fn during_an_outage_due_rows_are_not_said_to_progress() {
        let outages = [
            (
                Broker::Disconnected("refused".to_owned()),
                ("unknown", false),
            ),
            (Broker::Blocked("low on memory".to_owned()), ("idle", true)),
        ];
        for (broker, with_nothing_due) in outages {
            let mut condition = Condition { broker, ..well() };
            assert_eq!(told(&condition), with_nothing_due);
            condition.due = Due::Since(at(0));
            condition.progressed = Some(at(0));
            assert_eq!(told(&condition), ("halted", false));
        }
        for due in [Due::Unknown, Due::Nothing, Due::Since(at(0))] {
            for role in [Role::Active, Role::StandBy, Role::Paused(String::new())] {
                let condition = Condition {
                    database: Database::ReadOnly("db2".to_owned()),
                    due,
                    role,
                    ..well()
                };
                assert_eq!(told(&condition), ("unknown", false));
            }
        }
    }

    #[test]
    fn nothing_due_is_ready() {
        assert!(blamed(&well(), at(1_000_000)).is_empty());
    }

    #[test]
    fn rows_that_are_held_back_are_told_and_leave_the_relay_ready() {
        let mut condition = Condition {
            due: Due::HeldBack,
            ..well()
        };
        assert_eq!(told(&condition), ("waiting", true));
        assert!(blamed(&condition, at(1_000_000)).is_empty());
        condition.broker = Broker::Disconnected("refused".to_owned());
        assert_eq!(told(&condition), ("unknown", false));
    }

    #[test]
    fn due_rows_must_move() {
        let mut condition = well();
        condition.due = Due::Since(at(100));
        assert!(blamed(&condition, at(160)).is_empty());
        assert_eq!(blamed(&condition, at(161)), ["progress"]);
        let reason = readiness(&condition, at(175)).progress.reason;
        assert_eq!(
            reason,
            "rows are due, and none was sent and marked, put off or given up, for 75 s"
        );
        condition.due = Due::Unmarked(at(100));
        let reason = readiness(&condition, at(175)).progress.reason;
        assert!(
            reason.contains("locked") && reason.ends_with("75 s"),
            "{reason}"
        );
        condition.progressed = Some(at(150));
        assert!(blamed(&condition, at(210)).is_empty());
        assert_eq!(blamed(&condition, at(211)), ["progress"]);
    }

    #[test]
    fn an_old_confirmation_does_not_shorten_the_patience_for_new_rows() {
        let mut condition = well();
        condition.progressed = Some(at(1));
        condition.due = Due::Since(at(1_000));
        assert!(blamed(&condition, at(1_060)).is_empty());
    }

    #[test]
    fn a_broker_that_is_down_or_blocked_is_not_ready() {
        let outages = [
            (
                Broker::Disconnected("refused".to_owned()),
                &["broker", "progress"][..],
            ),
            (Broker::Blocked("low on memory".to_owned()), &["broker"]),
        ];
        for (broker, to_blame) in outages {
            let condition = Condition { broker, ..well() };
            assert_eq!(blamed(&condition, at(0)), to_blame);
        }
    }

    #[test]
    fn a_database_that_is_down_or_read_only_is_never_ready() {
        for database in [
            Database::Disconnected("refused".to_owned()),
            Database::ReadOnly("db2".to_owned()),
        ] {
            for role in [Role::Active, Role::StandBy, Role::Paused(String::new())] {
                let database = database.clone();
                let condition = Condition {
                    database,
                    role,
                    ..well()
                };
                assert_eq!(blamed(&condition, at(0)), ["database", "progress"]);
            }
        }
    }

    #[test]
    fn a_paused_relay_is_ready_without_broker_and_progress_and_a_stand_by_without_progress() {
        let down = Broker::Disconnected("down".to_owned());
        let low = Broker::Blocked("low on memory".to_owned());
        let paused = Role::Paused("ann: deploy".to_owned());
        for (role, broker, to_blame) in [
            (paused.clone(), down.clone(), vec![]),
            (paused, low.clone(), vec![]),
            (Role::StandBy, low, vec![]),
            (Role::StandBy, down, vec!["broker"]),
        ] {
            let condition = Condition {
                role,
                broker,
                due: Due::Since(at(0)),
                ..well()
            };
            assert_eq!(blamed(&condition, at(10_000)), to_blame);
        }
    }

    #[test]
    fn a_stopping_relay_is_not_ready() {
        let condition = Condition {
            role: Role::Draining,
            ..well()
        };
        assert_eq!(blamed(&condition, at(0)), ["progress"]);
    }
}
