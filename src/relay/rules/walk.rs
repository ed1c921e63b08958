//! Which stretch of ids is swept next, and when: removal of sent rows after `outbox.retention`.
//!
//! A walk goes up from the low end, stretch by stretch, and remembers where it ended, so that
//! what was removed before is not met again. It stops at the first sent rows that are still
//! young. Now and then it begins at the bottom, for rows that were pending when it passed.
//!
//! What cannot be removed, because a foreign key or a trigger of the application refuses it or makes it
//! slow, is named by the server, or closed in on by ever shorter stretches until one row is left over.
//! It is remembered and passed over, for a day. Removes nothing itself.

use std::collections::BTreeSet;
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

/// So many refusals, each an error in the server's log, and the walk rests. One that names a row is
/// needed once a day for each such row: it counts for so much less.
const REFUSALS: u32 = 20;
const UNNAMED: u32 = 5;

/// For so long; and each time for twice as long, up to a bound, while neither is anything removed
/// between them nor a row found that is to be passed over from now on.
const BREATH: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(60)];

/// Rows that are remembered because they cannot be removed, and of these so many are left out of one
/// stretch.
const REMEMBERED: usize = 10_000;
const LEFT_OUT: usize = 1000;

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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Rows looked at.
    pub looked: usize,
    /// Id of the last of them.
    pub last: Option<i64>,
    /// Rows removed.
    pub removed: usize,
    /// Rows that could have been removed, had not somebody held their locks.
    pub held: usize,
    /// Rows that the database kept although their removal was asked for and not refused: a trigger's
    /// doing.
    pub kept: Vec<i64>,
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
    /// Since the last rest; one that named nothing counts [`UNNAMED`] times.
    refusals: u32,
    /// Since the last rest: was anything removed?
    removed: bool,
    /// Since the last rest: was a row found that cannot be?
    learned: bool,
    /// Rests in a row before which nothing was removed.
    fruitless: u32,
    /// Rows that cannot be removed.
    kept: BTreeSet<i64>,
    /// When they are tried again.
    retry_kept: Moment,
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
            learned: false,
            fruitless: 0,
            kept: BTreeSet::new(),
            retry_kept: Moment::ORIGIN,
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
            if now >= self.retry_kept {
                self.kept.clear();
            }
        }
        let up_to = self.after.saturating_add(self.span);
        let mut kept = self.kept.range(self.after.saturating_add(1)..=up_to);
        Stretch {
            after: self.after,
            up_to: kept.nth(LEFT_OUT).map_or(up_to, |id| id - 1),
            retention: self.retention,
        }
    }

    /// Rows of the stretch that are to be left out: they could not be removed.
    #[must_use]
    pub fn left_out(&self, stretch: Stretch) -> Vec<i64> {
        let kept = self
            .kept
            .range(stretch.after.saturating_add(1)..=stretch.up_to);
        kept.copied().collect()
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
        if swept.removed > 0 {
            (self.removed, self.fruitless) = (true, 0);
        }
        for id in &swept.kept {
            self.remember(*id, now);
        }
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
    /// `now`. If the server `named` the row, the next stretch leaves it out; else it is much shorter.
    /// Returns the row, if it is known.
    pub fn refused(
        &mut self,
        stretch: Stretch,
        named: Option<i64>,
        took: Duration,
        now: Moment,
    ) -> Option<i64> {
        self.due = now + took * SHARE;
        let in_it = |id: &i64| *id > stretch.after && *id <= stretch.up_to;
        let row = match named.filter(in_it) {
            Some(id) if self.remember(id, now) => {
                self.refusals += 1;
                // It is the first: those before it go.
                self.span = (id - 1 - stretch.after).max(1);
                Some(id)
            }
            Some(_) | None => {
                self.refusals += UNNAMED;
                self.close_in(stretch, now)
            }
        };
        if self.refusals >= REFUSALS * UNNAMED {
            let fruitful = self.removed || std::mem::take(&mut self.learned);
            let fruitless = if fruitful { 0 } else { self.fruitless + 1 };
            self.rest(now);
            self.fruitless = fruitless;
            self.due = self.due.min(now + breath(fruitless));
        }
        row
    }

    /// Takes a much shorter stretch, or passes the row, if it is the only one.
    fn close_in(&mut self, stretch: Stretch, now: Moment) -> Option<i64> {
        let length = stretch.up_to.saturating_sub(stretch.after);
        self.span = (length.min(USUAL) / 4).max(1);
        let row = (length <= 1).then_some(stretch.up_to)?;
        self.remember(row, now);
        (self.after, self.met) = (row, self.met.max(row));
        Some(row)
    }

    /// Is that news, and is there room for it?
    fn remember(&mut self, id: i64, now: Moment) -> bool {
        if self.kept.len() >= REMEMBERED {
            return false;
        }
        if self.kept.is_empty() {
            self.retry_kept = now + ANEW[1];
        }
        let new = self.kept.insert(id);
        self.learned |= new;
        new
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

/// How long to rest after so many rests in a row that came of nothing.
fn breath(fruitless: u32) -> Duration {
    let [shortest, longest] = BREATH;
    (shortest * 2_u32.pow(fruitless.min(5))).min(longest)
}

#[cfg(test)]
mod tests;
