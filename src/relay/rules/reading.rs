//! What a read asks for and what it brings.

use std::time::{Duration, SystemTime};

use super::{Lane, Partition, PartitionSet, Pause, Snapshot};
use crate::message::{Body, OutboxRow, RowId};

/// Up to where a due index has been read: everything at or before `(at, id)` was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DueMark {
    /// `retry_at` or `available_at` of the last row taken, or the time of the read.
    pub at: SystemTime,
    /// Id of the last row taken; `i64::MAX` when the whole instant was read.
    pub id: i64,
}

/// Where the previous read stood. Everything committed since is new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The snapshot of that read.
    pub snapshot: Snapshot,
    /// How far rows waiting for `retry_at` were read.
    pub retry: DueMark,
    /// How far rows waiting for `available_at` were read.
    pub available: DueMark,
}

impl Position {
    /// Was it reached at an earlier time, by the database's clock?
    pub(super) fn is_behind(&self, other: &Self) -> bool {
        self.retry.at < other.retry.at || self.available.at < other.available.at
    }
}

/// One read, to be answered from one snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Counts the reads; an answer carries the number of its request.
    pub seq: u64,
    /// Where the previous read stood; `None` for a first read, which has no news, only a page.
    pub since: Option<Position>,
    /// News above this id is not wanted, because a pass over everything will come by there.
    pub news_up_to: i64,
    /// Page through pending rows with a greater id; `None` when no pass is running.
    pub page_after: Option<i64>,
    /// At most so many rows of news, and so many due of each kind.
    pub limit: usize,
    /// At most so many rows walked by the page.
    pub page_limit: usize,
    /// Rows of other partitions are walked over.
    pub partitions: PartitionSet,
    /// Nothing is known to be waiting: before reading, sleep until somebody wakes us or this
    /// much time has passed.
    pub rest: Option<Duration>,
}

/// The answer to a [`ReadRequest`].
#[derive(Debug)]
pub struct Reading {
    /// How long the answer took, rest not counted.
    pub took: Duration,
    /// The request's number.
    pub seq: u64,
    /// Where this read stood.
    pub position: Position,
    /// Pending rows that `since` did not see, by ascending id.
    pub news: Vec<Found>,
    /// There is more news than was asked for, beginning with this id.
    pub more_news_from: Option<i64>,
    /// Pending rows after `page_after`, by ascending id.
    pub page: Vec<Found>,
    /// How far the page walked; `None` when it came to the end of what is pending.
    pub walked_to: Option<i64>,
    /// Rows whose time came since the previous read.
    pub due: Vec<Found>,
    /// More rows are due already than this read was allowed to bring.
    pub more_due: bool,
    /// There are partitions that nobody owns.
    pub orphans: bool,
    /// Everything that is paused.
    pub pauses: Vec<Pause>,
}

/// Tells a row from another that has its id: after TRUNCATE … RESTART IDENTITY, or on a server that
/// was promoted before it had received everything, ids are given away again. A hash of the
/// `message_id`, made by the store that compares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(pub i64);

/// A row whose body is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Which row.
    pub id: RowId,
    /// What tells it from another with its id; `None` where the store cannot tell.
    pub fingerprint: Option<Fingerprint>,
}

/// A pending row that a read found.
#[derive(Debug)]
pub struct Found {
    row: OutboxRow,
    /// Size as stored, in bytes, when the body was too large to bring along.
    deferred: Option<u64>,
    /// Hash of the ordering key; `None` for a row without one.
    pub key: Option<u64>,
    /// What tells it from another with its id, where the store can tell.
    pub fingerprint: Option<Fingerprint>,
    /// Who has to own it.
    pub partition: Partition,
    /// Time until `retry_at`, by the database's clock, if that lies ahead.
    pub wait: Option<Duration>,
    /// How long it could have been sent, by the database's clock.
    pub age: Duration,
    /// How long an earlier row of its key has been in quarantine, if one is and rows behind such
    /// a row are to wait.
    pub held: Option<Duration>,
}

impl Found {
    /// A row with its body.
    #[must_use]
    pub fn whole(
        row: OutboxRow,
        key: Option<u64>,
        partition: Partition,
        wait: Option<Duration>,
        age: Duration,
    ) -> Self {
        Self {
            row,
            deferred: None,
            key,
            fingerprint: None,
            partition,
            wait,
            age,
            held: None,
        }
    }

    /// The same with what tells it from another that has its id.
    #[must_use]
    pub fn known_by(mut self, fingerprint: Fingerprint) -> Self {
        self.fingerprint = Some(fingerprint);
        self
    }

    /// The same behind a row of its key that has been in quarantine for so long.
    #[must_use]
    pub fn held(mut self, since: Option<Duration>) -> Self {
        self.held = since;
        self
    }

    /// A row whose body is to be fetched once there is room for it. `stored` is its size in
    /// the table, compressed or not.
    #[must_use]
    pub fn deferred(mut self, stored: u64) -> Self {
        self.row.payload = Body::Null;
        self.deferred = Some(stored);
        self
    }

    /// The row's id.
    #[must_use]
    pub fn id(&self) -> RowId {
        self.row.id
    }

    /// The lane it runs in. `ordered` is false when the configuration asks for no order.
    #[must_use]
    pub fn lane(&self, ordered: bool) -> Lane {
        match self.key {
            Some(key) if ordered => Lane::key(key),
            Some(_) | None => Lane::destination(&self.row.exchange, &self.row.routing_key),
        }
    }

    /// The exchange it goes to.
    #[must_use]
    pub fn exchange(&self) -> &str {
        &self.row.exchange
    }

    /// Charged attempts so far.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.row.attempts
    }

    /// The routing key.
    #[must_use]
    pub fn routing_key(&self) -> &str {
        &self.row.routing_key
    }

    /// The row with its body, or the row without it and the size of what is missing.
    ///
    /// # Errors
    /// The body was deferred.
    pub fn into_row(self) -> Result<OutboxRow, (Box<OutboxRow>, u64)> {
        match self.deferred {
            None => Ok(self.row),
            Some(stored) => Err((Box::new(self.row), stored)),
        }
    }
}

/// A body that was fetched, or measured and found not to fit.
#[derive(Debug)]
pub enum Fetched {
    /// Here it is; [`Body::Oversized`] if it exceeds `max_message_size`.
    Body(Body),
    /// It did not fit into the room given; its true size in bytes.
    NoRoom(u64),
    /// The row is no longer pending.
    Gone,
}
