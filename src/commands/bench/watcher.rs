//! Watches a relay that is measured.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::message::{ReasonClass, RowId};
use crate::relay::rules::Standing;
use crate::relay::{Fate, Landing, Observer, Server};
use crate::runtime::{Clock, Moment};
use crate::store::Measures;

/// What is seen.
#[derive(Default)]
struct Seen {
    /// When the first read with rows began.
    began: Option<Moment>,
    /// When each row was confirmed.
    confirmed: HashMap<RowId, Moment>,
    /// Publications that were not confirmed.
    refused: usize,
}

/// Takes down when rows are confirmed.
pub(super) struct Watcher {
    seen: Mutex<Seen>,
    count: watch::Sender<usize>,
}

impl Watcher {
    pub(super) fn new() -> Self {
        Self {
            seen: Mutex::default(),
            count: watch::Sender::new(0),
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until so many rows are confirmed.
    pub(super) async fn confirmed(&self, rows: usize) {
        let mut count = self.count.subscribe();
        // The sender lives as long as this.
        let _ = count.wait_for(|count| *count >= rows).await;
    }

    /// From the beginning of the first read that brought rows to the last confirm.
    pub(super) fn took(&self) -> Option<Duration> {
        let seen = self.seen();
        let last = seen.confirmed.values().max()?;
        Some(last.since(seen.began?))
    }

    /// When each row was confirmed.
    pub(super) fn take_confirmed(&self) -> HashMap<RowId, Moment> {
        std::mem::take(&mut self.seen().confirmed)
    }

    /// Publications that were not confirmed.
    pub(super) fn refused(&self) -> usize {
        self.seen().refused
    }
}

impl Observer for Watcher {
    fn read(&self, rows: usize, took: Duration) {
        if rows > 0 {
            let now = Clock.now();
            let began = now.checked_sub(took).unwrap_or(now);
            self.seen().began.get_or_insert(began);
        }
    }

    fn landed(&self, landings: &[Landing<'_>]) {
        let (now, mut seen) = (Clock.now(), self.seen());
        for landing in landings {
            if landing.fate == Fate::Confirmed {
                seen.confirmed.insert(landing.row, now);
            } else {
                seen.refused += 1;
            }
        }
        let count = seen.confirmed.len();
        drop(seen);
        self.count.send_replace(count);
    }

    fn settled(&self, _took: Duration) {}
    fn removed(&self, _rows: usize) {}
    fn kept(&self) {}
    fn retried(&self, _reason: ReasonClass) {}
    fn standing(&self, _standing: &Standing) {}
    fn connected(&self, _server: Server, _again: bool) {}
    fn leases_lost(&self, _partitions: usize) {}
    fn measured(&self, _measures: Measures) {}
}
