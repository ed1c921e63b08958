//! Rows that wait for another attempt, where the relation has no columns to note it in. Shared by
//! the two sessions of a relay; gone with the process, after which attempts begin anew.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// Attempts and the time of the next one, by row.
#[derive(Clone, Debug, Default)]
pub struct Waits(Arc<Mutex<HashMap<i64, (i32, SystemTime)>>>);

/// The same in PostgreSQL's types.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) ids: Vec<i64>,
    pub(super) attempts: Vec<i32>,
    pub(super) retry_at: Vec<SystemTime>,
}

impl Waits {
    fn lock(&self) -> MutexGuard<'_, HashMap<i64, (i32, SystemTime)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note(&self, id: i64, attempts: i32, retry_at: SystemTime) {
        self.lock().insert(id, (attempts, retry_at));
    }

    /// These rows wait no more: they are sent, or gone.
    pub(super) fn forget(&self, ids: impl Iterator<Item = i64>) {
        let mut waits = self.lock();
        if !waits.is_empty() {
            let gone: HashSet<i64> = ids.collect();
            waits.retain(|id, _| !gone.contains(id));
        }
    }

    pub(super) fn listed(&self) -> Listed {
        let mut listed = Listed::default();
        for (id, (attempts, retry_at)) in self.lock().iter() {
            listed.ids.push(*id);
            listed.attempts.push(*attempts);
            listed.retry_at.push(*retry_at);
        }
        listed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_remembered_until_it_is_forgotten() {
        let waits = Waits::default();
        let at = SystemTime::UNIX_EPOCH;
        waits.note(7, 1, at);
        waits.note(7, 2, at);
        waits.note(8, 1, at);
        waits.forget([8, 9].into_iter());
        let listed = waits.listed();
        assert_eq!((listed.ids, listed.attempts), (vec![7], vec![2]));
        assert_eq!(listed.retry_at, [at]);
    }
}
