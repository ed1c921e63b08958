//! Which stretch of ids is swept next, and when: removal of sent rows after `outbox.retention`.
//!
//! A walk goes up from the low end, stretch by stretch, and remembers where it ended, so that
//! what was removed before is not met again. It stops at the first sent rows that are still
//! young. Now and then it begins at the bottom, for rows that were pending when it passed.
//!
//! What cannot be removed, because a foreign key or a trigger of the application refuses it or makes it
//! slow, is closed in on by ever shorter stretches, until one row is left over, and passed.
//! Removes nothing itself.

use std::time::Duration;

use crate::runtime::Moment;

/// Rows that one sweep looks at, at the most.
pub const SWEEP_ROWS: usize = 1000;

/// A sweep that took longer than this walked over too much; one that was done sooner than the
/// other may take a longer stretch next. Entries of removed rows stay in the index until vacuum
/// has run, and nothing but the time taken shows them.
const SLOW: Duration = Duration::from_millis(20);
const QUICK: Duration = Duration::from_millis(5);

/// Ids of a stretch to begin with.
const USUAL: i64 = 1000;

/// So many refusals, each an error in the server's log, and the walk rests.
const REFUSALS: u32 = 20;

/// For so long, if it gets on between them.
const BREATH: Duration = Duration::from_secs(2);

/// Sweeping takes at most one part in so many of the session's time.
const SHARE: u32 = 10;

/// Bounds of the pause after a walk came to its end.
const PAUSE: [Duration; 2] = [Duration::from_secs(20), Duration::from_secs(600)];

/// A walk begins at the bottom at most so often, and at least.
const ANEW: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(24 * 3600)];

/// Ids above `after`, up to and with `up_to`; of these the first [`SWEEP_ROWS`] rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Exclusive.
    pub after: i64,
    /// Inclusive.
    pub up_to: i64,
    /// Rows that were sent longer ago are removed.
    pub retention: Duration,
}

/// What a sweep over a stretch met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Rows looked at.
    pub looked: usize,
    /// Id of the last of them.
    pub last: Option<i64>,
    /// Rows removed.
    pub removed: usize,
    /// Rows that could have been removed, had not somebody held their locks.
    pub held: usize,
    /// A row was met that was sent, and not long enough ago.
    pub young: bool,
    /// The highest id there is; none above it needs to be looked for.
    pub top: i64,
}

/// A walk over the outbox.
#[derive(Clone, Debug)]
pub struct Walk {
    retention: Duration,
    /// Everything up to here was looked at.
    after: i64,
    /// The last row met on this walk.
    met: i64,
    span: i64,
    due: Moment,
    anew: Moment,
    /// Since the last rest.
    refusals: u32,
    /// Since the last rest: was anything removed?
    removed: bool,
}

impl Walk {
    /// Begins at the bottom, at once.
    #[must_use]
    pub fn new(retention: Duration) -> Self {
        Self {
            retention,
            after: 0,
            met: 0,
            span: USUAL,
            due: Moment::ORIGIN,
            anew: Moment::ORIGIN,
            refusals: 0,
            removed: false,
        }
    }

    /// When the next stretch is to be swept.
    #[must_use]
    pub fn due_at(&self) -> Moment {
        self.due
    }

    /// The next stretch.
    pub fn stretch(&mut self, now: Moment) -> Stretch {
        if now >= self.anew {
            let [soonest, latest] = ANEW;
            self.anew = now + (self.retention / 7).clamp(soonest, latest);
            (self.after, self.met) = (0, 0);
        }
        Stretch {
            after: self.after,
            up_to: self.after.saturating_add(self.span),
            retention: self.retention,
        }
    }

    /// The stretch was swept, which took so long until `now`.
    pub fn swept(&mut self, stretch: Stretch, swept: &Swept, took: Duration, now: Moment) {
        let full = swept.looked >= SWEEP_ROWS;
        if took > SLOW || full {
            self.span = (self.span / 2).max(1);
        } else if took < QUICK {
            self.span = self.span.saturating_mul(4);
        }
        self.met = swept.last.map_or(self.met, |last| last.max(self.met));
        self.due = now + took * SHARE;
        self.removed |= swept.removed > 0;
        if swept.held > 0 {
            self.anew = self.anew.min(now + ANEW[0]);
        }
        if swept.young && (swept.removed == 0 || !full) {
            self.rest(now);
        } else if full {
            self.after = self.met;
        } else if stretch.up_to < swept.top {
            self.after = stretch.up_to;
        } else {
            // Nothing lies above, yet: the next rows do so right behind the last one met.
            self.after = self.met;
            self.rest(now);
        }
    }

    /// Over some row of the stretch its removal was refused, or took too long, which took so long until
    /// `now`: the next stretch is much shorter. Returns the row if it was the only one; it is passed.
    pub fn refused(&mut self, stretch: Stretch, took: Duration, now: Moment) -> Option<i64> {
        let length = stretch.up_to.saturating_sub(stretch.after);
        self.span = (length.min(USUAL) / 4).max(1);
        self.due = now + took * SHARE;
        self.refusals += 1;
        let row = (length <= 1).then_some(stretch.up_to);
        if let Some(id) = row {
            (self.after, self.met) = (id, self.met.max(id));
        }
        if self.refusals >= REFUSALS {
            let gets_on = self.removed;
            self.rest(now);
            if gets_on {
                self.due = now + BREATH;
            }
        }
        row
    }

    /// The stretch could not be swept, whatever is in it.
    pub fn failed(&mut self, now: Moment) {
        self.span = USUAL;
        self.rest(now);
    }

    fn rest(&mut self, now: Moment) {
        let [shortest, longest] = PAUSE;
        self.due = now + (self.retention / 20).clamp(shortest, longest);
        self.span = self.span.min(USUAL * 16);
        (self.refusals, self.removed) = (0, false);
    }
}

#[cfg(test)]
mod tests;
