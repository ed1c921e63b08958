//! What every store must do, run against PostgreSQL and against the table in memory.

mod alive;
mod bodies;
mod due;
mod in_memory;
mod leasing;
mod on_postgres;
mod postgres_only;
mod reading;
mod settling;
mod sweeping;
mod waking;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use outbox_relay::message::{Body, RowId};
use outbox_relay::relay::rules::{
    Fetched, Found, PartitionSet, Position, ReadRequest, Reading, Take, Wanted,
};
use outbox_relay::store::{Announcement, Reader, Settler, Store};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::support::PATIENCE;

/// Bodies above this many bytes are oversized in these tests.
pub const MAX_MESSAGE_SIZE: usize = 100_000;

/// A row that a test inserts.
#[derive(Clone, Debug, Default)]
pub struct New {
    pub key: Option<&'static str>,
    pub payload: Vec<u8>,
    /// `available_at`, from now.
    pub scheduled: Option<Duration>,
}

impl New {
    /// A small row without a key.
    pub fn small() -> Self {
        Self {
            payload: b"{}".to_vec(),
            ..Self::default()
        }
    }

    /// A row of this key.
    pub fn of(key: &'static str) -> Self {
        Self {
            key: Some(key),
            ..Self::small()
        }
    }

    /// A row whose body has this many bytes, which do not compress.
    pub fn large(bytes: usize) -> Self {
        Self {
            payload: noise(bytes),
            ..Self::default()
        }
    }
}

/// Bytes that do not compress, the same every time.
pub fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..bytes).map(next).collect()
}

/// The columns that say when a row's time comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    RetryAt,
    AvailableAt,
}

/// What the table says about a row that is still in it.
#[derive(Debug, PartialEq, Eq)]
pub struct Stored {
    pub sent: bool,
    /// `retry_at` lies ahead.
    pub waits: bool,
    pub attempts: u32,
    pub last_error: Option<String>,
}

/// What the quarantine says about a row.
#[derive(Debug, PartialEq, Eq)]
pub struct Quarantined {
    pub class: String,
    pub reason: String,
    pub key: Option<String>,
    pub payload: Vec<u8>,
}

/// A store and what tests need to do behind its back.
pub trait Stage: Sized {
    type Store: Store;
    type Transaction;
    type Lock;

    async fn new() -> Self;
    fn store(&self) -> &Self::Store;
    /// Begins a transaction that has its id from the start.
    async fn begin(&self) -> Self::Transaction;
    async fn insert(&self, transaction: &mut Self::Transaction, row: New) -> RowId;
    /// The same inside a savepoint that is released.
    async fn insert_in_savepoint(&self, transaction: &mut Self::Transaction, row: New) -> RowId;
    async fn commit(&self, transaction: Self::Transaction);
    async fn roll_back(&self, transaction: Self::Transaction);
    /// Locks a row as an application's transaction does.
    async fn lock(&self, id: RowId) -> Self::Lock;
    async fn unlock(&self, lock: Self::Lock);
    async fn delete(&self, id: RowId);
    /// The time of all these rows comes at one instant, which is now.
    async fn fall_due(&self, due: Due, ids: &[RowId]);
    async fn stored(&self, id: RowId) -> Option<Stored>;
    async fn quarantined(&self, id: RowId) -> Option<Quarantined>;
    /// A settler of the relay with this number.
    async fn settler_of(&self, relay: u128) -> SettlerOf<Self>;
    /// A reader of the relay with this number.
    async fn reader_of(&self, relay: u128) -> ReaderOf<Self>;
    /// Signs of life, by instance.
    async fn alive(&self) -> Vec<Announcement>;

    /// Inserts and commits one row after the other.
    async fn commit_each(&self, rows: impl IntoIterator<Item = New>) -> Vec<RowId> {
        let mut ids = Vec::new();
        for row in rows {
            let mut transaction = self.begin().await;
            ids.push(self.insert(&mut transaction, row).await);
            self.commit(transaction).await;
        }
        ids
    }

    /// Commits so many small rows.
    async fn commit_small(&self, count: usize) -> Vec<RowId> {
        self.commit_each((0..count).map(|_| New::small())).await
    }
}

/// The reader of a stage.
pub type ReaderOf<S> = <<S as Stage>::Store as Store>::Reader;
/// The settler of a stage.
pub type SettlerOf<S> = <<S as Stage>::Store as Store>::Settler;

/// A read as the first one is: nothing is known, everything is wanted.
pub fn first() -> ReadRequest {
    ReadRequest {
        seq: 1,
        since: None,
        news_up_to: i64::MAX,
        page_after: Some(0),
        limit: 100,
        page_limit: 100,
        partitions: PartitionSet::ALL,
        rest: None,
    }
}

/// A read that asks what is new since another.
pub fn since(position: &Position) -> ReadRequest {
    ReadRequest {
        seq: 2,
        since: Some(position.clone()),
        page_after: None,
        ..first()
    }
}

pub async fn reader<S: Stage>(stage: &S) -> ReaderOf<S> {
    let opening = timeout(PATIENCE, stage.store().open_reader()).await;
    opening.expect("in time").expect("a reader")
}

pub async fn settler<S: Stage>(stage: &S) -> SettlerOf<S> {
    let opening = timeout(PATIENCE, stage.store().open_settler()).await;
    opening.expect("in time").expect("a settler")
}

/// The settler of a relay that owns everything.
pub async fn owner<S: Stage>(stage: &S) -> SettlerOf<S> {
    let mut settler = settler(stage).await;
    settler.announce(&alive::sign(1)).await.expect("a sign");
    let all = Take {
        dead: Vec::new(),
        limit: PartitionSet::ALL.len(),
    };
    settler.take(&all).await.expect("everything");
    settler
}

pub async fn read<R: Reader>(reader: &mut R, request: &ReadRequest) -> Reading {
    let nudge = Arc::new(Notify::new());
    let reading = timeout(PATIENCE, reader.read(request, &nudge)).await;
    let reading = reading.expect("in time").expect("a reading");
    assert_eq!(reading.seq, request.seq);
    reading
}

/// Where a reader stands that has seen all there is.
pub async fn position<R: Reader>(reader: &mut R) -> Position {
    let nothing_wanted = ReadRequest {
        page_after: None,
        ..first()
    };
    read(reader, &nothing_wanted).await.position
}

/// The ids of found rows, in the order found.
pub fn ids(found: &[Found]) -> Vec<RowId> {
    found.iter().map(Found::id).collect()
}

/// Rows, known by their ids alone, whose bodies are wanted.
pub fn wanted(ids: &[RowId]) -> Vec<Wanted> {
    let known = |id: &RowId| Wanted {
        id: *id,
        fingerprint: None,
    };
    ids.iter().map(known).collect()
}

/// The ids of found rows, each once.
pub fn id_set(found: &[Found]) -> BTreeSet<RowId> {
    let set: BTreeSet<RowId> = found.iter().map(Found::id).collect();
    assert_eq!(set.len(), found.len(), "a row came twice");
    set
}

/// What was fetched, in words that can be compared.
pub fn told(fetched: &[(RowId, Fetched)]) -> Vec<String> {
    let tell = |(_, fetched): &(RowId, Fetched)| match fetched {
        Fetched::Body(Body::Bytes(bytes)) => format!("body {}", bytes.len()),
        Fetched::Body(Body::Null) => "null".to_owned(),
        Fetched::Body(Body::Oversized(size)) => format!("oversized {size}"),
        Fetched::NoRoom(size) => format!("no room {size}"),
        Fetched::Gone => "gone".to_owned(),
    };
    fetched.iter().map(tell).collect()
}

/// Runs each of these functions against both stores.
macro_rules! suite {
    ($($test:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test]
            async fn $test() {
                let stage = <super::super::in_memory::InMemory as super::super::Stage>::new();
                super::$test(&stage.await).await;
            })*
        }

        mod postgres {
            $(#[tokio::test]
            async fn $test() {
                let stage = <super::super::on_postgres::OnPostgres as super::super::Stage>::new();
                super::$test(&stage.await).await;
            })*
        }
    };
}
pub(crate) use suite;
