//! How often the outbox is measured.

use std::time::Duration;

use crate::runtime::Moment;

/// An outbox in which nothing goes on and at which nobody looks is measured so often, and any
/// other so often. Rows that are due and do not move are what an operator wants to know most.
const IDLE: Duration = Duration::from_secs(30);
const BUSY: Duration = Duration::from_secs(5);

/// A new session is let alone for so long: rows that wait go first, and measuring takes a session
/// some 20 ms the first time.
pub(super) const FIRST: Duration = Duration::from_secs(1);

/// Measuring takes at most one part in so many of the session's time.
const SHARE: u32 = 20;

/// What came of measuring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It succeeded, and rows were due or not.
    Seen { due: bool },
    /// Somebody held the table locked. While he does, nothing else would have had the session's time.
    Locked,
    /// It failed for another reason.
    Failed,
}

/// When to measure next.
#[derive(Debug)]
pub(super) struct Rhythm {
    /// If something goes on, and in any case.
    at: [Moment; 2],
    /// Something was settled since the last time.
    settled: bool,
    /// Rows were due the last time.
    due: bool,
}

impl Rhythm {
    /// The first time is then.
    pub(super) fn beginning(at: Moment) -> Self {
        Self {
            at: [at; 2],
            settled: false,
            due: false,
        }
    }

    pub(super) fn settled(&mut self) {
        self.settled = true;
    }

    pub(super) fn is_due(&self, watched: bool, now: Moment) -> bool {
        let [busy, idle] = self.at;
        let goes_on = self.settled || self.due || watched;
        now >= if goes_on { busy } else { idle }
    }

    /// It was measured from `begun` to `ended`.
    pub(super) fn measured(&mut self, begun: Moment, ended: Moment, outcome: Outcome) {
        let soonest = ended.since(begun) * SHARE;
        // What was measured last grows old: it is looked at soon after the lock is gone.
        let soonest = match outcome {
            Outcome::Locked => soonest.min(IDLE),
            Outcome::Seen { .. } | Outcome::Failed => soonest,
        };
        self.at = [BUSY, IDLE].map(|pace| begun + pace.max(soonest));
        if let Outcome::Seen { due } = outcome {
            self.settled = false;
            self.due = due;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(seconds))
    }

    /// When it is measured within two minutes, if each time takes `takes` seconds.
    fn times(mut rhythm: Rhythm, takes: u64, due: bool) -> Vec<u64> {
        let mut times = Vec::new();
        for now in 0..120 {
            if rhythm.is_due(false, at(now)) {
                rhythm.measured(at(now), at(now + takes), Outcome::Seen { due });
                times.push(now);
            }
        }
        times
    }

    #[test]
    fn an_idle_outbox_is_measured_now_and_then_and_one_with_due_rows_often() {
        let idle = times(Rhythm::beginning(at(0)), 0, false);
        assert_eq!(idle, [0, 30, 60, 90]);
        let due = times(Rhythm::beginning(at(0)), 0, true);
        assert_eq!(due, (0..120).step_by(5).collect::<Vec<_>>());
    }

    #[test]
    fn slow_measuring_takes_a_small_share_of_the_time() {
        assert_eq!(times(Rhythm::beginning(at(0)), 2, true), [0, 40, 80]);
    }

    #[test]
    fn a_table_that_somebody_locks_is_looked_at_again_soon() {
        let mut rhythm = Rhythm::beginning(at(0));
        rhythm.measured(at(0), at(0), Outcome::Seen { due: true });
        rhythm.measured(at(5), at(15), Outcome::Failed);
        assert!(!rhythm.is_due(false, at(204)));
        rhythm.measured(at(205), at(215), Outcome::Locked);
        assert!(!rhythm.is_due(false, at(234)));
        assert!(rhythm.is_due(false, at(235)));
    }

    #[test]
    fn what_was_settled_or_is_looked_at_is_measured_often() {
        let mut rhythm = Rhythm::beginning(at(0));
        let idle = Outcome::Seen { due: false };
        rhythm.measured(at(0), at(0), idle);
        assert!(!rhythm.is_due(false, at(5)));
        assert!(rhythm.is_due(true, at(5)));
        rhythm.settled();
        assert!(rhythm.is_due(false, at(5)));
        rhythm.measured(at(5), at(5), Outcome::Failed);
        assert!(rhythm.is_due(false, at(10)), "that was not seen");
        rhythm.measured(at(10), at(10), idle);
        assert!(!rhythm.is_due(false, at(15)));
    }
}
