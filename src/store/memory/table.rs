//! A table with transactions, snapshots, row locks and a clock. Plain and synchronous, so that
//! the seeded simulation can step it.

mod measure;
mod quarantine;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use super::leases::LeaseTable;
use crate::message::{Body, OutboxRow, RowId, Unfit};
use crate::relay::rules::{
    DueMark, Fetched, Fingerprint, Found, Partition, Pause, Position, ReadRequest, Reading,
    Snapshot, Tenet, Wanted, holds,
};

/// A row of the table, with the columns that the relay's rules depend on.
#[derive(Clone, Debug)]
pub struct StoredRow {
    /// What the application wrote.
    pub row: OutboxRow,
    /// The transaction that inserted it.
    pub xid: u64,
    /// `available_at`.
    pub available_at: Option<SystemTime>,
    /// `retry_at`.
    pub retry_at: Option<SystemTime>,
    /// `last_error`.
    pub last_error: Option<String>,
    /// `sent_at`.
    pub sent_at: Option<SystemTime>,
    /// The application holds the row's lock.
    pub locked: bool,
}

/// A table with transactions.
#[derive(Debug)]
pub struct Table {
    pub(super) rows: BTreeMap<i64, StoredRow>,
    /// Rows that were moved to quarantine, with the reason.
    pub quarantined: BTreeMap<i64, (StoredRow, Unfit)>,
    /// What an operator paused.
    pub pauses: Vec<Pause>,
    /// Who is alive, and who owns which partition.
    pub leases: LeaseTable,
    open: BTreeMap<u64, Vec<StoredRow>>,
    next_xid: u64,
    next_id: i64,
    now: SystemTime,
    /// Rows behind a quarantined one of their key are to wait.
    pub successors_wait: bool,
    /// Bodies above this many bytes are not brought along by a read.
    pub inline_limit: usize,
    /// Bodies above this many bytes are never brought.
    pub max_message_size: usize,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            rows: BTreeMap::new(),
            quarantined: BTreeMap::new(),
            pauses: Vec::new(),
            leases: LeaseTable::default(),
            open: BTreeMap::new(),
            next_xid: 100,
            next_id: 1,
            now: SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000),
            successors_wait: false,
            inline_limit: 2000,
            max_message_size: 16 << 20,
        }
    }
}

impl Table {
    /// The database's clock.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        self.now
    }

    /// Somebody sets the database's clock.
    pub fn set_clock(&mut self, now: SystemTime) {
        self.now = now;
    }

    /// Lets time pass.
    pub fn advance(&mut self, by: Duration) {
        self.now += by;
    }

    /// Begins a transaction that has a transaction id from the start.
    pub fn begin(&mut self) -> u64 {
        self.next_xid += 1;
        self.open.insert(self.next_xid, Vec::new());
        self.next_xid
    }

    /// Inserts within a transaction that [`Self::begin`] began. The id is drawn now, as an
    /// identity column does.
    ///
    /// # Panics
    /// If the transaction is over: a mistake of the test.
    pub fn insert(
        &mut self,
        xid: u64,
        mut row: OutboxRow,
        available_at: Option<SystemTime>,
    ) -> RowId {
        let id = RowId(self.next_id);
        self.next_id += 1;
        row.id = id;
        row.created_at = self.now;
        let (retry_at, last_error, sent_at, locked) = (None, None, None, false);
        let stored = StoredRow {
            row,
            xid,
            available_at,
            retry_at,
            last_error,
            sent_at,
            locked,
        };
        self.open
            .get_mut(&xid)
            .expect("the transaction is open")
            .push(stored);
        id
    }

    /// Makes the transaction's rows visible. Returns their ids.
    pub fn commit(&mut self, xid: u64) -> Vec<RowId> {
        let rows = self.open.remove(&xid).unwrap_or_default();
        let ids = rows.iter().map(|stored| stored.row.id).collect();
        self.rows
            .extend(rows.into_iter().map(|stored| (stored.row.id.0, stored)));
        ids
    }

    /// The transaction never was.
    pub fn rollback(&mut self, xid: u64) {
        self.open.remove(&xid);
    }

    /// Changes a committed row, as an application or an operator might.
    pub fn row_mut(&mut self, id: RowId) -> Option<&mut StoredRow> {
        self.rows.get_mut(&id.0)
    }

    /// Deletes a committed row, as an application or an operator might.
    pub fn delete(&mut self, id: RowId) {
        self.rows.remove(&id.0);
    }

    /// Is the row committed and not yet sent?
    #[must_use]
    pub fn is_pending(&self, id: RowId) -> bool {
        let row = self.rows.get(&id.0);
        row.is_some_and(|row| row.sent_at.is_none())
    }

    /// All committed rows.
    pub fn rows(&self) -> impl Iterator<Item = &StoredRow> {
        self.rows.values()
    }

    fn snapshot(&self) -> Snapshot {
        let xmax = self.next_xid + 1;
        let in_progress: Vec<u64> = self.open.keys().copied().collect();
        let xmin = in_progress.first().copied().unwrap_or(xmax);
        Snapshot {
            xmin,
            xmax,
            in_progress,
        }
    }

    /// Answers a read from one snapshot. `rest` is the caller's business.
    #[must_use]
    pub fn read(&self, request: &ReadRequest) -> Reading {
        let limit = request.limit;
        let read_to = DueMark {
            at: self.now,
            id: i64::MAX,
        };
        let (news, more_news_from) = self.news(request);
        let (page, walked_to) = self.page(request);
        let (retry, available) = request
            .since
            .as_ref()
            .map_or((read_to, read_to), |since| (since.retry, since.available));
        let (mut due, retry, more_retry) = self.due(request, retry, limit, |row| row.retry_at);
        let (more, available, more_available) =
            self.due(request, available, limit, |row| row.available_at);
        due.extend(more);
        Reading {
            took: Duration::ZERO,
            seq: request.seq,
            position: Position {
                snapshot: self.snapshot(),
                retry,
                available,
            },
            news,
            more_news_from,
            page,
            walked_to,
            due,
            more_due: more_retry || more_available,
            orphans: self.leases.has_orphans(),
            pauses: self.pauses.clone(),
        }
    }

    fn pending(&self) -> impl Iterator<Item = &StoredRow> {
        self.rows.values().filter(|row| row.sent_at.is_none())
    }

    fn is_scheduled(&self, row: &StoredRow) -> bool {
        row.available_at.is_some_and(|at| at > self.now)
    }

    fn news(&self, request: &ReadRequest) -> (Vec<Found>, Option<i64>) {
        let Some(since) = &request.since else {
            return (Vec::new(), None);
        };
        let news = self.pending().filter(|row| {
            !since.snapshot.sees(row.xid)
                && row.row.id.0 <= request.news_up_to
                && !self.is_scheduled(row)
                && request.partitions.contains(partition(&row.row))
        });
        let mut rows: Vec<&StoredRow> = news.take(request.limit + 1).collect();
        let more = rows.get(request.limit).map(|row| row.row.id.0);
        rows.truncate(request.limit);
        if !holds(Tenet::OrderById) {
            rows.sort_by_key(|row| row.xid);
        }
        (rows.into_iter().map(|row| self.found(row)).collect(), more)
    }

    fn page(&self, request: &ReadRequest) -> (Vec<Found>, Option<i64>) {
        let Some(after) = request.page_after else {
            return (Vec::new(), None);
        };
        let walked: Vec<&StoredRow> = self
            .pending()
            .filter(|row| row.row.id.0 > after)
            .take(request.page_limit)
            .collect();
        let page = walked
            .iter()
            .filter(|row| {
                !self.is_scheduled(row) && request.partitions.contains(partition(&row.row))
            })
            .map(|row| self.found(row))
            .collect();
        let full = walked.len() == request.page_limit;
        let walked_to = full.then(|| walked.last().map_or(after, |row| row.row.id.0));
        (page, walked_to)
    }

    fn due(
        &self,
        request: &ReadRequest,
        since: DueMark,
        limit: usize,
        column: impl Fn(&StoredRow) -> Option<SystemTime>,
    ) -> (Vec<Found>, DueMark, bool) {
        // A clock that was set back must not hide what falls due from now on.
        let since = since.min(DueMark {
            at: self.now,
            id: i64::MAX,
        });
        let due: BTreeSet<(SystemTime, i64)> = self
            .pending()
            .filter_map(|row| Some((column(row)?, row.row.id.0)))
            .filter(|(at, id)| *at <= self.now && (*at, *id) > (since.at, since.id))
            .collect();
        let full = due.len() > limit;
        let taken: Vec<(SystemTime, i64)> = due.into_iter().take(limit).collect();
        let mark = match taken.last() {
            Some((at, id)) if full => DueMark { at: *at, id: *id },
            None if full => since,
            Some(_) | None => DueMark {
                at: self.now,
                id: i64::MAX,
            },
        };
        let found = taken
            .iter()
            .filter_map(|(_, id)| self.rows.get(id))
            .filter(|row| {
                !self.is_scheduled(row) && request.partitions.contains(partition(&row.row))
            })
            .map(|row| self.found(row))
            .collect();
        (found, mark, full)
    }

    fn found(&self, stored: &StoredRow) -> Found {
        let ahead = |at: SystemTime| at.duration_since(self.now).ok();
        let wait = stored.retry_at.and_then(ahead);
        let wait = wait.filter(|wait| !wait.is_zero());
        let available = stored.available_at.unwrap_or(SystemTime::UNIX_EPOCH);
        let since = stored.row.created_at.max(available);
        let age = self.now.duration_since(since).unwrap_or_default();
        let key = stored.row.ordering_key.as_deref().map(hash);
        let size = stored.row.payload.buffered();
        let found = Found::whole(stored.row.clone(), key, partition(&stored.row), wait, age)
            .held(self.held(&stored.row))
            .known_by(fingerprint(&stored.row));
        if size > self.inline_limit {
            found.deferred(size as u64)
        } else {
            found
        }
    }

    /// Brings bodies as far as they fit.
    #[must_use]
    pub fn fetch(&self, rows: &[Wanted], room: usize) -> Vec<(RowId, Fetched)> {
        // Once one does not fit, none behind it comes: they keep their places.
        let mut total = 0;
        let mut bring = |wanted: &Wanted| {
            let it_is = |stored: &&StoredRow| {
                let print = fingerprint(&stored.row);
                stored.sent_at.is_none() && wanted.fingerprint.is_none_or(|known| known == print)
            };
            let Some(stored) = self.rows.get(&wanted.id.0).filter(it_is) else {
                return Fetched::Gone;
            };
            let size = stored.row.payload.buffered();
            if size > self.max_message_size {
                return Fetched::Body(Body::Oversized(size as u64));
            }
            total += size;
            if total > size && total > room {
                return Fetched::NoRoom(size as u64);
            }
            Fetched::Body(stored.row.payload.clone())
        };
        rows.iter().map(|row| (row.id, bring(row))).collect()
    }
}

/// FNV-1a; the real store lets PostgreSQL hash.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// What tells a row from another that has its id.
pub(super) fn fingerprint(row: &OutboxRow) -> Fingerprint {
    Fingerprint(hash(&row.message_id).cast_signed())
}

fn partition(row: &OutboxRow) -> Partition {
    let hash = row
        .ordering_key
        .as_deref()
        .map_or(row.id.0.unsigned_abs(), hash);
    Partition(hash.to_le_bytes()[0])
}
