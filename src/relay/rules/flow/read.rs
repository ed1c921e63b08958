//! Deciding what to read, and when.

use std::time::Duration;

use super::super::{PartitionSet, ReadRequest, Wanted};
use super::Flow;
use crate::message::RowId;
use crate::runtime::Moment;

/// Where a page found only rows that cannot be sent now, or not by us, the next is so much
/// longer: such rows are walked over without their bodies.
const BARREN_PAGES: usize = 8;

/// Bodies of one fetch: what PostgreSQL must unpack to measure them, and what is in memory twice
/// while they arrive, stays small.
pub(super) const FETCH_ROWS: usize = 4;
pub(super) const FETCH_BYTES: usize = 8 << 20;

/// Of the time, at most one part in so many is spent on walking.
const SWEEP_SHARE: u32 = 20;

/// So many poll intervals without a read make a snapshot stale: what was committed since is
/// walked over by id, in bounded steps, rather than read at once as news.
const STALE_AFTER: u32 = 10;

/// What is decided is written down within such a time, or polls find it.
const LATE: Duration = Duration::from_secs(1);

/// Work for the reading connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Request {
    /// Look for rows.
    Read(ReadRequest),
    /// Bring bodies.
    Fetch {
        /// Of these rows, in this order.
        rows: Vec<Wanted>,
        /// As far as they fit into so many bytes; the first one in any case.
        room: usize,
    },
}

impl Flow {
    /// What the reading connection is to do next; `None` while it is busy or need not read.
    pub fn next_read(&mut self, now: Moment) -> Option<Request> {
        if !self.can_read || self.reading.is_some() || self.fetching || !self.linked {
            return None;
        }
        if !self.to_fetch.is_empty() && !self.draining {
            self.fetching = true;
            let wanted = std::mem::take(&mut self.to_fetch).into_iter();
            let rows = wanted.map(|id| Wanted {
                id,
                fingerprint: self.ledger.get(id).and_then(|entry| entry.fingerprint),
            });
            let rows = rows.collect();
            let room = self
                .limits
                .max_buffered_bytes
                .saturating_sub(self.ledger.buffered_bytes())
                .min(FETCH_BYTES);
            return Some(Request::Fetch { rows, room });
        }
        let waits = self.draining || self.owned.is_empty();
        if waits || self.read_due().is_none_or(|at| at > now) {
            return None;
        }
        Some(Request::Read(self.begin_read(now)))
    }

    /// The rest that the reader is taking is to end: there is something to do.
    #[must_use]
    pub fn wants_reader(&self, now: Moment) -> bool {
        let due = self.dues.next().is_some_and(|due| due <= now);
        let work = due || self.draining || !self.to_fetch.is_empty() || self.coverage.walking();
        self.reading.is_some() && work
    }

    /// Begins a walk over everything pending, some time after the last one ended; the longer that
    /// took, the later.
    fn sweep_when_due(&mut self, now: Moment) {
        let interval = self.limits.sweep_interval;
        if self.next_sweep == Moment::ORIGIN {
            self.next_sweep = now + interval;
        }
        if let Some(began) = self.sweep_began.take() {
            self.next_sweep = now + interval.max(now.since(began) * SWEEP_SHARE);
        } else if now >= self.next_sweep {
            self.sweep_began = Some(now);
            self.coverage.want_all_after(0);
        }
    }

    fn begin_read(&mut self, now: Moment) -> ReadRequest {
        let stale = self.limits.poll_interval * STALE_AFTER;
        if self.last_read.is_some_and(|last| now.since(last) > stale) {
            self.coverage.restart(self.owned);
            self.quiet = false;
        }
        if !self.coverage.walking() {
            self.sweep_when_due(now);
        }
        self.coverage.begin_pass();
        let limit = if self.has_room() {
            self.limits.batch_size
        } else {
            0
        };
        let rest = (self.quiet && !self.coverage.walking()).then(|| {
            let due = self.dues.next().map(|due| now.until(due));
            due.map_or(self.limits.poll_interval, |due| {
                due.min(self.limits.poll_interval)
            })
        });
        self.dues.looked(now);
        self.reads += 1;
        self.reading = Some(self.reads);
        let owned: &PartitionSet = &self.owned;
        ReadRequest {
            seq: self.reads,
            since: self.coverage.position().cloned(),
            news_up_to: self.coverage.news_up_to(owned),
            page_after: self.coverage.pass().map(|pass| pass.cursor),
            limit,
            page_limit: limit * if self.barren { BARREN_PAGES } else { 1 },
            partitions: self.owned,
            rest,
        }
    }

    /// When the next read is due, as far as memory goes: at once while there is room, at the
    /// next poll otherwise, so that the snapshot stays fresh.
    pub(super) fn read_due(&self) -> Option<Moment> {
        let idle = !self.can_read || !self.linked || self.owned.is_empty();
        if self.reading.is_some() || self.fetching || idle {
            return None;
        }
        let Some(last) = self.last_read else {
            return Some(Moment::ORIGIN);
        };
        Some(if self.has_room() {
            last + self.breath
        } else {
            last + self.limits.poll_interval
        })
    }

    fn has_room(&self) -> bool {
        let rows = self.max_rows().saturating_sub(self.ledger.open());
        let bytes = self.ledger.buffered_bytes() < self.limits.max_buffered_bytes;
        rows >= self.limits.batch_size && bytes && self.starved.is_empty() && !self.blocked
    }

    /// A row falls due then: no read rests beyond it.
    pub(super) fn expect_due(&mut self, at: Moment) {
        self.dues.expect(at);
        // The database counts from when it was written down, which may have been later.
        if self.limits.poll_interval > LATE {
            self.dues.expect(at + LATE);
        }
    }

    /// Bodies on their way when the reading connection was lost are asked for again.
    pub(super) fn refetch(&mut self) {
        self.fetching = false;
        self.fetching_bytes = 0;
        self.to_fetch.clear();
        let lost: Vec<RowId> = self.ledger.fetching().collect();
        self.starved = lost.into();
    }
}
