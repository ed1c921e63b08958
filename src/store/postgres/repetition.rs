//! What is news in a relation without `xid`. There every pending row looks new at every read; told
//! again and again the engine would never rest, nor come to the end of a walk.
//!
//! A row is told once for as long as it stays among the first of what is pending. What lies behind
//! them is walked over now and then.

use std::collections::HashSet;
use std::time::Duration;

use crate::relay::rules::{ReadRequest, Reading};
use crate::runtime::Moment;

/// Walking takes at most one part in so many of the time.
const SHARE: u32 = 10;
/// Between two walks, at the least.
const PAUSE: Duration = Duration::from_millis(500);

/// What the last reads brought.
#[derive(Debug, Default)]
pub(super) struct Repetition {
    told: HashSet<i64>,
    walk_began: Option<Moment>,
    /// When what lies behind the first rows is to be walked over again.
    walk_at: Option<Moment>,
}

impl Repetition {
    /// Takes out of the answer what was told by the one before.
    pub(super) fn strip(&mut self, request: &ReadRequest, reading: &mut Reading, now: Moment) {
        let ids: HashSet<i64> = reading.news.iter().map(|found| found.id().0).collect();
        reading
            .news
            .retain(|found| !self.told.contains(&found.id().0));
        self.told = ids;
        let walking = request.page_after.is_some() && reading.walked_to.is_some();
        if walking {
            self.walk_began.get_or_insert(now);
        } else if let Some(began) = self.walk_began.take() {
            self.walk_at = Some(now + (now.since(began) * SHARE).max(PAUSE));
        }
        let due = self.walk_at.is_none_or(|at| now >= at);
        if walking || !due {
            reading.more_news_from = None;
        } else if reading.more_news_from.is_some() {
            self.walk_at = Some(now + PAUSE);
        }
    }
}
