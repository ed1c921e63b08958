//! Which pending rows have been seen: snapshots for what is new, passes for what was there.
//!
//! The invariant that everything else rests on: after a read with snapshot P has been taken in,
//! every pending row of an owned partition that P sees has either been delivered, or belongs to
//! a lane that is shelved from that row on, or has an id above the cursor of the running pass
//! and belongs to a lane that is catching up. Because news and page of a read come from one
//! snapshot, a row is never delivered ahead of one that was committed before it.

use super::lane::Shelf;
use super::{Lane, Partition, PartitionSet, Position, Reading, Tenet, holds};
use crate::runtime::Set;

/// A walk over the pending rows by ascending id.
#[derive(Debug)]
pub(super) struct Pass {
    /// Counts the passes.
    pub(super) no: u64,
    /// Rows at or below were not walked over.
    pub(super) start: i64,
    /// Rows at or below have been walked over.
    pub(super) cursor: i64,
    /// All lanes of these partitions are catching up.
    scope: PartitionSet,
    /// These lanes are catching up, too.
    catching: Set<Lane>,
    /// Lanes whose rows this pass was begun for; `None` if only the end will do.
    targets: Option<Set<Lane>>,
}

/// What of a reading moves the coverage on.
pub(super) struct Step {
    position: Position,
    walked_to: Option<i64>,
    /// There was more news; what was delivered went up to this id.
    more_news_after: Option<i64>,
}

impl From<&Reading> for Step {
    fn from(reading: &Reading) -> Self {
        Self {
            position: reading.position.clone(),
            walked_to: reading.walked_to,
            more_news_after: reading.more_news_from.map(|first| first - 1),
        }
    }
}

/// What is wanted of the next pass.
#[derive(Debug)]
struct Wanted {
    after: i64,
    scope: PartitionSet,
    targets: Option<Set<Lane>>,
}

/// How far the outbox has been seen.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    position: Option<Position>,
    pass: Option<Pass>,
    wanted: Option<Wanted>,
    passes: u64,
}

impl Coverage {
    /// Nothing that was seen counts any more: the next read starts from nothing, and a pass over
    /// these partitions follows.
    pub(super) fn restart(&mut self, scope: PartitionSet) {
        self.position = None;
        self.pass = None;
        self.wanted = None;
        self.want(0, scope, None);
    }

    pub(super) fn position(&self) -> Option<&Position> {
        self.position.as_ref()
    }

    pub(super) fn pass(&self) -> Option<&Pass> {
        self.pass.as_ref()
    }

    /// Is there anything left to walk over?
    pub(super) fn walking(&self) -> bool {
        self.pass.is_some() || self.wanted.is_some()
    }

    /// Rows after this id are to be walked over, to the end.
    pub(super) fn want_all_after(&mut self, after: i64) {
        self.want(after, PartitionSet::NONE, None);
    }

    /// All rows of these partitions are to be walked over, and until that pass has begun none of
    /// them is to be taken in: others may come before it.
    pub(super) fn gain(&mut self, partitions: PartitionSet) {
        self.want(0, partitions, None);
    }

    /// Is a pass wanted, and not begun, that will bring the rows of this partition?
    pub(super) fn awaits(&self, partition: Partition) -> bool {
        let wanted = self.wanted.as_ref();
        wanted.is_some_and(|wanted| wanted.scope.contains(partition)) && holds(Tenet::WalkFirst)
    }

    /// This lane's rows from its shelf on are to be walked over.
    pub(super) fn want_lane(&mut self, lane: Lane, shelf: Shelf) {
        match &mut self.pass {
            // The running pass will come by there.
            Some(pass) if shelf.pass < pass.no && pass.cursor < shelf.from => {
                if let Some(targets) = &mut pass.targets {
                    targets.insert(lane);
                }
            }
            Some(_) | None => {
                let targets = Some(Set::from_iter([lane]));
                self.want(shelf.from - 1, PartitionSet::NONE, targets);
            }
        }
    }

    /// Does the running pass decide anew about a lane that is shelved so?
    pub(super) fn reconsiders(&self, shelf: Shelf) -> bool {
        let pass = self.pass.as_ref();
        pass.is_some_and(|pass| shelf.pass < pass.no && pass.start < shelf.from)
    }

    fn want(&mut self, after: i64, scope: PartitionSet, targets: Option<Set<Lane>>) {
        let Some(wanted) = &mut self.wanted else {
            self.wanted = Some(Wanted {
                after,
                scope,
                targets,
            });
            return;
        };
        wanted.after = wanted.after.min(after);
        wanted.scope = wanted.scope.union(&scope);
        wanted.targets = match (wanted.targets.take(), targets) {
            (Some(mut ours), Some(theirs)) => {
                ours.extend(theirs);
                Some(ours)
            }
            (None, _) | (_, None) => None,
        };
    }

    /// Begins the pass that is wanted, if none is running.
    pub(super) fn begin_pass(&mut self) {
        if self.pass.is_some() {
            return;
        }
        if let Some(Wanted {
            after,
            scope,
            targets,
        }) = self.wanted.take()
        {
            self.passes += 1;
            let (no, start, cursor) = (self.passes, after, after);
            self.pass = Some(Pass {
                no,
                start,
                cursor,
                scope,
                catching: Set::default(),
                targets,
            });
        }
    }

    /// Is this row one that the running pass has yet to come to, so that news of it is early?
    pub(super) fn is_ahead(&self, lane: Lane, partition: Partition, id: i64) -> bool {
        self.pass.as_ref().is_some_and(|pass| {
            id > pass.cursor && (pass.scope.contains(partition) || pass.catching.contains(&lane))
        })
    }

    /// Has the running pass walked past this id?
    pub(super) fn has_passed(&self, id: i64) -> bool {
        self.pass.as_ref().is_some_and(|pass| id <= pass.cursor)
    }

    /// News above this id would be early whatever lane they belong to.
    pub(super) fn news_up_to(&self, owned: &PartitionSet) -> i64 {
        match &self.pass {
            Some(pass) if owned.minus(&pass.scope).is_empty() => pass.cursor,
            Some(_) | None => i64::MAX,
        }
    }

    /// The lane's rows are being taken in again from here on.
    pub(super) fn catch_up(&mut self, lane: Lane) {
        if let Some(pass) = &mut self.pass {
            pass.catching.insert(lane);
        }
    }

    /// The lane was shelved: this pass has nothing more to do for it.
    pub(super) fn give_up(&mut self, lane: Lane) {
        if let Some(pass) = &mut self.pass {
            pass.catching.remove(&lane);
            if let Some(targets) = &mut pass.targets {
                targets.remove(&lane);
            }
        }
    }

    /// The number under which rows shelved now are noted.
    pub(super) fn pass_no(&self) -> u64 {
        self.passes
    }

    /// Moves on after a read has been taken in. Returns the pass that came to the end, if one
    /// did: its start and number.
    pub(super) fn advance(&mut self, step: Step, owned: &PartitionSet) -> Option<(i64, u64)> {
        let before = self.position.replace(step.position);
        let clock_went_back = self
            .position
            .as_ref()
            .zip(before)
            .is_some_and(|(now, before)| now.is_behind(&before));
        if clock_went_back {
            // What was to fall due between the two times may have done so unseen.
            self.want_all_after(0);
        }
        let ended = self.advance_pass(step.walked_to);
        if let Some(delivered) = step.more_news_after {
            self.retreat(delivered, owned);
            return None;
        }
        ended
    }

    fn advance_pass(&mut self, walked_to: Option<i64>) -> Option<(i64, u64)> {
        let pass = self.pass.as_mut()?;
        if let Some(walked_to) = walked_to {
            pass.cursor = pass.cursor.max(walked_to);
            let pointless = pass.targets.as_ref().is_some_and(Set::is_empty);
            if pointless && pass.catching.is_empty() {
                self.pass = None;
            }
            return None;
        }
        let (start, no) = (pass.start, pass.no);
        self.pass = None;
        Some((start, no))
    }

    /// There was more news than a read may bring: all above `delivered` is walked over instead,
    /// whatever lane it belongs to. A running pass goes on from there: it has met what it met.
    fn retreat(&mut self, delivered: i64, owned: &PartitionSet) {
        if self.pass.is_none() {
            self.passes += 1;
        }
        let pass = self.pass.get_or_insert_with(|| Pass {
            no: self.passes,
            start: delivered,
            cursor: delivered,
            scope: PartitionSet::NONE,
            catching: Set::default(),
            targets: None,
        });
        pass.cursor = pass.cursor.min(delivered);
        pass.start = pass.start.min(delivered);
        pass.scope = *owned;
        pass.targets = None;
        pass.catching.clear();
    }
}
