//! What the page shows, gathered from what the engine tells.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::history::{History, Outbox};
use super::told;
use crate::message::ReasonClass;
use crate::ops::http::Page;
use crate::relay::rules::Standing;
use crate::relay::{Fate, Landing, Observer, Server};
use crate::runtime::{Clock, Health, Moment};
use crate::store::Measures;

/// Somebody looks at the page if it was asked for so lately.
const LOOKING: Duration = Duration::from_secs(10);

/// Older measures are of a database that cannot be asked any more: what waits grows older.
const FRESH: Duration = Duration::from_secs(60);

/// What does not change.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Schema and relation, for people.
    pub outbox: String,
    /// Host and process.
    pub instance: String,
    /// `quarantine.owner`.
    pub owner: String,
}

/// Everything that the page shows. Cheap to tell; rendered when it is asked for.
#[derive(Debug)]
pub struct Board {
    pub(super) facts: Facts,
    pub(super) health: Health,
    clock: Clock,
    seen: Mutex<Seen>,
}

/// What was told so far.
#[derive(Debug)]
pub(super) struct Seen {
    /// Publications by fate, in the order of [`Fate::ALL`].
    pub(super) fates: [u64; Fate::ALL.len()],
    pub(super) in_flight: usize,
    pub(super) buffered_bytes: usize,
    pub(super) removed: u64,
    pub(super) last_confirm: Option<SystemTime>,
    pub(super) reconnects: [u64; 2],
    pub(super) history: History,
    pub(super) measured: Option<(Moment, Measures)>,
    looked: Option<Moment>,
}

impl Board {
    /// Nothing has happened yet.
    #[must_use]
    pub fn new(facts: Facts, health: Health, clock: Clock) -> Self {
        let seen = Seen {
            fates: [0; Fate::ALL.len()],
            in_flight: 0,
            buffered_bytes: 0,
            removed: 0,
            last_confirm: None,
            reconnects: [0; 2],
            history: History::new(clock.now()),
            measured: None,
            looked: None,
        };
        Self {
            facts,
            health,
            clock,
            seen: Mutex::new(seen),
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The JSON that the page's script asks for.
    pub(super) fn page(&self) -> Page {
        let now = self.clock.now();
        let mut seen = self.seen();
        seen.looked = Some(now);
        if !self.health.watch().borrow().speaks {
            seen.measured = None;
        }
        let told = told::told(self, &seen, now, self.clock.wall());
        Page {
            content_type: "application/json",
            body: Bytes::from(format!("{told}\n")),
        }
    }
}

impl Seen {
    /// Age of the oldest due row. While the database cannot be asked it grows.
    pub(super) fn oldest(&self, now: Moment) -> Option<Duration> {
        let (at, measures) = self.measured.as_ref()?;
        let silent = Some(now.since(*at)).filter(|silent| *silent > FRESH);
        let age = measures.oldest_due;
        Some(age.map_or(Duration::ZERO, |age| age + silent.unwrap_or_default()))
    }

    fn outbox(&self, now: Moment) -> Outbox {
        let measured = self.measured.as_ref();
        Outbox {
            pending: measured.map(|(_, measures)| measures.pending.value()),
            oldest: self.oldest(now),
        }
    }
}

impl Observer for Board {
    fn read(&self, _rows: usize, _took: Duration) {}

    fn landed(&self, landings: &[Landing<'_>]) {
        let (now, mut seen) = (self.clock.wall(), self.seen());
        for landing in landings {
            let place = Fate::ALL.iter().position(|one| *one == landing.fate);
            seen.fates[place.unwrap_or_default()] += 1;
            if let Some(since_due) = landing.since_due {
                seen.history.confirmed(since_due);
                seen.last_confirm = Some(now);
            }
        }
    }

    fn settled(&self, _took: Duration) {}

    fn removed(&self, rows: usize) {
        self.seen().removed += rows as u64;
    }

    fn kept(&self) {}

    fn retried(&self, _reason: ReasonClass) {}

    fn standing(&self, standing: &Standing) {
        let now = self.clock.now();
        let mut seen = self.seen();
        seen.in_flight = standing.in_flight;
        seen.buffered_bytes = standing.buffered_bytes;
        let outbox = seen.outbox(now);
        seen.history.step(now, || outbox);
    }

    fn connected(&self, server: Server, again: bool) {
        let place = match server {
            Server::Database => 0,
            Server::Broker => 1,
        };
        self.seen().reconnects[place] += u64::from(again);
    }

    fn leases_lost(&self, _partitions: usize) {}

    fn measured(&self, measures: Measures) {
        self.seen().measured = Some((self.clock.now(), measures));
    }

    fn is_watched(&self) -> bool {
        let looked = self.seen().looked;
        looked.is_some_and(|at| self.clock.now().since(at) < LOOKING)
    }
}
