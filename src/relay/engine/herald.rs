//! When this relay tells the others about itself, and what. Writes nothing itself.

use std::time::Duration;

use uuid::Uuid;

use super::board::Posted;
use crate::relay::rules::HeldBack;
use crate::runtime::readiness::{Component, Readiness};
use crate::runtime::{Health, Moment};
use crate::store::Announcement;

/// Signs of life come at least so often. A reader takes a relay for dead after several.
pub const HEARTBEAT: Duration = Duration::from_secs(5);

/// And at most so often, however much changes.
const CALM: Duration = Duration::from_secs(1);

/// Who this relay is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Token of the process, made at its start.
    pub instance: Uuid,
    /// Host and process, for people.
    pub name: String,
    /// Of the program.
    pub version: String,
    /// How long others are to take it for alive without a sign.
    pub lease: Duration,
}

impl Identity {
    /// The longest time between two signs: a lease survives two that are lost.
    fn pace(&self) -> Duration {
        HEARTBEAT.min(self.lease / 3)
    }
}

/// Watches this relay's health and says when the others should hear of it.
pub(super) struct Herald {
    identity: Identity,
    health: Health,
    /// What the engine holds back.
    posted: Posted,
    /// The last sign of life, and when.
    last: Option<(Moment, News)>,
    asked: Moment,
}

impl Herald {
    pub(super) fn new(identity: Identity, health: Health, posted: Posted) -> Self {
        Self {
            identity,
            health,
            posted,
            last: None,
            asked: Moment::ORIGIN,
        }
    }

    /// This relay speaks for the whole outbox.
    pub(super) fn speaks(&self) -> bool {
        self.health.watch().borrow().speaks
    }

    /// It was ready at its last sign, and no rows are due.
    pub(super) fn is_idle(&self) -> bool {
        let ready = self.last.as_ref().is_some_and(|(_, state)| state.ready);
        ready && !self.health.rows_are_due()
    }

    /// When to ask again whether a sign is due.
    pub(super) fn ask_at(&self) -> Moment {
        self.asked + CALM.min(self.identity.pace())
    }

    /// The sign that is due now, if one is: the first, a regular one, or one about a change. It
    /// counts as made, whatever becomes of it. `unmarked` is what cannot be settled.
    pub(super) fn due(
        &mut self,
        unmarked: impl FnOnce() -> Vec<HeldBack>,
        now: Moment,
    ) -> Option<Announcement> {
        self.asked = now;
        let pace = self.identity.pace();
        let age = self.last.as_ref().map(|(at, _)| now.since(*at));
        if age.is_some_and(|age| age < CALM.min(pace)) {
            return None;
        }
        let readiness = self.health.readiness(now);
        let (confirmed, partitions) = {
            let condition = self.health.watch();
            let condition = condition.borrow();
            (condition.confirmed, condition.partitions)
        };
        let mut held_back = unmarked();
        held_back.extend(self.posted.borrow().iter().cloned());
        let held_back = HeldBack::told(held_back);
        let state = News::of(&readiness, partitions, &held_back);
        let news = self
            .last
            .as_ref()
            .is_none_or(|(_, before)| *before != state);
        if age.is_some_and(|age| age < pace) && !news {
            return None;
        }
        let sign = Announcement {
            instance: self.identity.instance,
            name: self.identity.name.clone(),
            version: self.identity.version.clone(),
            ready: readiness.ready,
            waits_for: waits_for(&readiness),
            database: told(&readiness.database),
            broker: told(&readiness.broker),
            last_confirm: confirmed.map(|at| now.since(at)),
            lease: self.identity.lease,
            partitions,
            held_back,
        };
        self.last = Some((now, state));
        Some(sign)
    }

    /// The connection is new: the next sign is due at once.
    pub(super) fn start_anew(&mut self) {
        self.last = None;
    }
}

/// What is news when it changes; reasons and ages hold numbers that change all the time.
#[derive(PartialEq)]
struct News {
    ready: bool,
    states: [&'static str; 3],
    partitions: u16,
    held_back: usize,
}

impl News {
    fn of(readiness: &Readiness, partitions: u16, held_back: &[HeldBack]) -> Self {
        let Readiness {
            ready,
            database,
            broker,
            progress,
        } = readiness;
        Self {
            ready: *ready,
            states: [database, broker, progress].map(|component| component.state),
            partitions,
            held_back: held_back.len(),
        }
    }
}

fn told(component: &Component) -> (String, String) {
    (component.state.to_owned(), component.reason.clone())
}

fn waits_for(readiness: &Readiness) -> Option<String> {
    let parts = [
        ("database", &readiness.database),
        ("broker", &readiness.broker),
        ("progress", &readiness.progress),
    ];
    // That nothing moves follows from the loss of a server, and is told where that is not it.
    let (servers, progress) = parts.split_at(2);
    let bad = |part: &&(_, &Component)| !part.1.ok;
    let lost: Vec<_> = servers.iter().filter(bad).collect();
    let bad = if lost.is_empty() {
        progress.iter().filter(bad).collect()
    } else {
        lost
    };
    let reasons: Vec<_> = bad
        .iter()
        .map(|(name, component)| format!("{name} {}: {}", component.state, component.reason))
        .collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::*;
    use crate::relay::rules::{Unwritten, Withheld};
    use crate::runtime::Backlog;
    use crate::runtime::condition::{Broker, Database};

    fn at(millis: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(millis))
    }

    fn herald() -> (Herald, Health) {
        let (_, posted) = watch::channel(Vec::new());
        let health = Health::starting(at(0));
        health.database(Database::Connected);
        health.broker(Broker::Connected);
        health.backlog(Backlog::Nothing, at(0));
        let identity = Identity {
            instance: Uuid::nil(),
            name: "pod:1".to_owned(),
            version: "1".to_owned(),
            lease: Duration::from_secs(15),
        };
        (Herald::new(identity, health.clone(), posted), health)
    }

    #[test]
    fn signs_come_at_the_start_and_then_regularly() {
        let (mut herald, _health) = herald();
        let signs = (0..=15_000)
            .step_by(100)
            .filter(|now| herald.due(Vec::new, at(*now)).is_some());
        assert_eq!(signs.collect::<Vec<_>>(), [0, 5_000, 10_000, 15_000]);
    }

    #[test]
    fn a_change_is_told_soon_and_with_its_reason() {
        let (mut herald, health) = herald();
        let first = herald.due(Vec::new, at(0)).expect("the first");
        assert_eq!((first.ready, first.waits_for), (true, None));
        health.broker(Broker::Disconnected("mq: refused".to_owned()));
        assert!(herald.due(Vec::new, at(500)).is_none());
        assert_eq!(herald.ask_at(), at(1_500));
        let news = herald.due(Vec::new, at(1_000)).expect("news");
        assert!(!news.ready);
        let why = news.waits_for.as_deref();
        assert_eq!(why, Some("broker disconnected: mq: refused"));
        health.broker(Broker::Disconnected("mq: no answer".to_owned()));
        assert!(herald.due(Vec::new, at(2_000)).is_none(), "the same state");
        health.partitions(7, true);
        let sign = herald.due(Vec::new, at(3_000)).expect("news");
        assert_eq!(sign.partitions, 7);
        let locked = HeldBack {
            what: Withheld::Unmarked {
                fate: Unwritten::Sent,
                ids: vec![1],
                rows: 1,
            },
            for_seconds: 5,
            why: "locked".to_owned(),
        };
        let sign = herald.due(|| vec![locked.clone()], at(4_000));
        assert_eq!(sign.expect("news").held_back, [locked]);
    }

    #[test]
    fn only_a_routed_and_confirmed_row_is_a_confirm() {
        let (mut herald, health) = herald();
        health.progressed(at(100));
        assert_eq!(
            herald
                .due(Vec::new, at(200))
                .expect("the first")
                .last_confirm,
            None
        );
        health.confirmed(at(300));
        let sign = herald.due(Vec::new, at(6_000)).expect("a regular one");
        assert_eq!(sign.last_confirm, Some(Duration::from_millis(5_700)));
    }

    #[test]
    fn a_new_connection_is_used_at_once() {
        let (mut herald, _health) = herald();
        assert!(herald.due(Vec::new, at(0)).is_some());
        herald.start_anew();
        assert!(herald.due(Vec::new, at(10)).is_some());
    }
}
