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
mod tests {
    use super::*;

    const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);
    const INSTANT: Duration = Duration::from_millis(1);

    fn at(millis: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(millis))
    }

    /// A table as the walk sees it: ids, and what became of the rows.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Row {
        Pending,
        Young,
        Old,
        /// Old, and something refuses its removal.
        Referred,
    }

    struct Table {
        rows: std::collections::BTreeMap<i64, Row>,
        now: Moment,
        statements: usize,
        /// Named as what cannot be removed.
        passed: Vec<i64>,
    }

    impl Table {
        fn of(rows: impl IntoIterator<Item = (i64, Row)>) -> Self {
            let (rows, now) = (rows.into_iter().collect(), at(1));
            Self {
                rows,
                now,
                statements: 0,
                passed: Vec::new(),
            }
        }

        /// `None` if it is refused.
        fn sweep(&mut self, stretch: Stretch) -> Option<Swept> {
            self.statements += 1;
            let range = stretch.after.saturating_add(1)..=stretch.up_to;
            let looked: Vec<_> = self.rows.range(range).take(SWEEP_ROWS).collect();
            if looked.iter().any(|(_, row)| **row == Row::Referred) {
                return None;
            }
            let mut swept = Swept {
                looked: looked.len(),
                last: looked.last().map(|(id, _)| **id),
                top: self.rows.keys().next_back().copied().unwrap_or(0),
                ..Swept::default()
            };
            swept.young = looked.iter().any(|(_, row)| **row == Row::Young);
            let old: Vec<i64> = looked
                .iter()
                .filter(|(_, row)| **row == Row::Old)
                .map(|(id, _)| **id)
                .collect();
            swept.removed = old.len();
            self.rows.retain(|id, _| !old.contains(id));
            Some(swept)
        }

        /// Walks until it rests.
        fn walk(&mut self, walk: &mut Walk) {
            for _ in 0..10_000 {
                self.now = self.now.max(walk.due_at());
                let stretch = walk.stretch(self.now);
                let swept = self.sweep(stretch);
                self.now = self.now + INSTANT;
                match swept {
                    Some(swept) => walk.swept(stretch, &swept, INSTANT, self.now),
                    None => {
                        self.passed.extend(walk.refused(stretch, INSTANT, self.now));
                    }
                }
                if walk.due_at() >= self.now + PAUSE[0] {
                    return;
                }
            }
            panic!("no rest");
        }
    }

    fn each(ids: impl IntoIterator<Item = i64>, row: Row) -> impl Iterator<Item = (i64, Row)> {
        ids.into_iter().map(move |id| (id, row))
    }

    #[test]
    fn what_is_old_goes_and_everything_else_stays() {
        let rows = each(1..=5, Row::Pending)
            .chain(each(6..=9_000, Row::Old))
            .chain(each(9_001..=9_010, Row::Pending))
            .chain(each(9_011..=20_000, Row::Old))
            .chain(each(20_001..=25_000, Row::Young));
        let (mut table, mut walk) = (Table::of(rows), Walk::new(WEEK));
        table.walk(&mut walk);
        assert!(table.rows.values().all(|row| *row != Row::Old));
        assert_eq!(table.rows.len(), 15 + 5_000);
        assert!(table.statements < 60, "{}", table.statements);
    }

    #[test]
    fn a_walk_goes_on_where_the_last_one_ended() {
        let young = each(100_001..=110_000, Row::Young);
        let rows = each(1..=3_000, Row::Pending).chain(young);
        let (mut table, mut walk) = (Table::of(rows), Walk::new(WEEK));
        table.walk(&mut walk);
        table.statements = 0;
        for id in 100_001..=100_500 {
            table.rows.insert(id, Row::Old);
        }
        table.walk(&mut walk);
        assert!(
            table.statements <= 2,
            "the pending rows are not met again: {}",
            table.statements
        );
        assert!(!table.rows.contains_key(&100_001));
    }

    #[test]
    fn what_was_pending_when_the_walk_passed_is_found_by_a_later_one() {
        let rows = each([1], Row::Pending).chain(each(2..=50, Row::Old));
        let (mut table, mut walk) = (Table::of(rows), Walk::new(WEEK));
        table.walk(&mut walk);
        table.rows.insert(1, Row::Old);
        table.walk(&mut walk);
        assert!(table.rows.contains_key(&1), "not yet");
        table.now = table.now + ANEW[1];
        table.walk(&mut walk);
        assert!(table.rows.is_empty());
    }

    #[test]
    fn gaps_between_ids_are_passed_in_few_steps() {
        let far = 1_000_000_000_000_i64;
        let rows = each(far..far + 10, Row::Old);
        let (mut table, mut walk) = (Table::of(rows), Walk::new(WEEK));
        table.walk(&mut walk);
        assert!(table.rows.is_empty());
        assert!(table.statements < 60, "{}", table.statements);
        table.rows.extend(each(far + 10..far + 20, Row::Old));
        table.walk(&mut walk);
        assert!(table.rows.is_empty(), "rows written since are met");
    }

    #[test]
    fn rows_that_cannot_be_removed_are_named_and_hold_back_no_other() {
        let rows = each(1..=5_000, Row::Old)
            .chain(each([700, 701, 4_000], Row::Referred))
            .chain(each(5_001..=5_010, Row::Young));
        let (mut table, mut walk) = (Table::of(rows), Walk::new(WEEK));
        for _ in 0..3 {
            table.walk(&mut walk);
        }
        assert_eq!(table.passed, [700, 701, 4_000]);
        assert_eq!(table.rows.len(), 3 + 10);
        assert!(table.statements < 120, "{}", table.statements);
    }

    #[test]
    fn where_nothing_can_be_removed_the_walk_soon_rests() {
        let mut table = Table::of(each(1..=100_000, Row::Referred));
        let mut walk = Walk::new(WEEK);
        table.walk(&mut walk);
        assert_eq!(table.statements, 20);
        assert!(walk.due_at() >= table.now + PAUSE[1], "for long");
    }

    #[test]
    fn what_is_slow_to_remove_is_removed_in_ever_smaller_pieces() {
        let (mut walk, mut now) = (Walk::new(WEEK), at(1));
        let each = Duration::from_millis(80);
        let limit = Duration::from_secs(1);
        for _ in 0..30 {
            let stretch = walk.stretch(now);
            let rows = usize::try_from(stretch.up_to - stretch.after).unwrap();
            let took = (each * u32::try_from(rows).unwrap()).min(limit);
            now = now + took;
            if took == limit {
                assert_eq!(walk.refused(stretch, took, now), None);
            } else {
                let swept = Swept {
                    looked: rows,
                    removed: rows,
                    top: i64::MAX,
                    last: Some(stretch.up_to),
                    ..Swept::default()
                };
                walk.swept(stretch, &swept, took, now);
            }
            assert_eq!(walk.due_at(), now + took * SHARE);
            now = walk.due_at();
        }
        let stretch = walk.stretch(now);
        assert_eq!(stretch.up_to - stretch.after, 1);
        assert!(stretch.after > 20, "it gets on");
    }

    #[test]
    fn a_row_that_somebody_held_is_met_again_soon() {
        let (mut walk, now) = (Walk::new(WEEK), at(1));
        let first = walk.stretch(now);
        let held = Swept {
            looked: 1,
            held: 1,
            top: i64::MAX,
            ..Swept::default()
        };
        walk.swept(first, &held, INSTANT, now);
        assert_eq!(walk.stretch(now).after, first.up_to);
        assert_eq!(walk.stretch(now + ANEW[0]).after, 0);
    }

    #[test]
    fn a_slow_sweep_takes_a_shorter_stretch_and_a_longer_pause() {
        let mut walk = Walk::new(WEEK);
        let now = at(1);
        let nothing = Swept {
            top: i64::MAX,
            ..Swept::default()
        };
        for _ in 0..5 {
            let stretch = walk.stretch(now);
            walk.swept(stretch, &nothing, INSTANT, now);
        }
        let quick = walk.stretch(now);
        assert_eq!(quick.up_to - quick.after, USUAL * 1024);
        let took = Duration::from_millis(200);
        walk.swept(quick, &nothing, took, now);
        let slow = walk.stretch(now);
        assert_eq!(slow.up_to - slow.after, USUAL * 512);
        assert_eq!(walk.due_at(), now + took * SHARE);
    }

    #[test]
    fn a_failed_sweep_is_not_repeated_at_once() {
        let mut walk = Walk::new(Duration::from_secs(60));
        let stretch = walk.stretch(at(1));
        walk.failed(at(1));
        assert_eq!(walk.due_at(), at(1) + PAUSE[0]);
        assert_eq!(walk.stretch(at(2)), stretch);
    }
}
