//! The in-memory twin of the PostgreSQL store: a table with transactions and snapshots, and the
//! store seam over it.
//!
//! [`Table`] models what the relay relies on (visibility by snapshot, row locks, the database's
//! clock) and nothing else. [`MemoryStore`] puts the async seam around it for the contract suite
//! and the engine's tests.

mod leases;
mod settle;
mod sweep;
mod table;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use uuid::Uuid;

pub use leases::LeaseTable;
pub use table::{StoredRow, Table};

use super::{Announcement, Measures, Reader, Settler, Store, StoreError};
use crate::message::RowId;
use crate::relay::rules::{
    Fetched, Leases, PartitionSet, ReadRequest, Reading, SettleReport, Settlement, Stretch, Swept,
    Take, Wanted,
};

/// The store seam over a shared [`Table`].
#[derive(Clone)]
pub struct MemoryStore {
    table: Arc<Mutex<Table>>,
    changes: Arc<watch::Sender<()>>,
    /// Of which this one has heard some.
    heard: watch::Receiver<()>,
    token: Uuid,
}

impl Default for MemoryStore {
    fn default() -> Self {
        let (changes, heard) = watch::channel(());
        Self {
            table: Arc::default(),
            changes: Arc::new(changes),
            heard,
            token: Uuid::nil(),
        }
    }
}

impl MemoryStore {
    /// The same table, for a relay with this token.
    #[must_use]
    pub fn of(&self, token: Uuid) -> Self {
        Self {
            token,
            ..self.clone()
        }
    }

    /// Works on the table; afterwards resting readers look again.
    pub fn with<R>(&self, work: impl FnOnce(&mut Table) -> R) -> R {
        let result = work(&mut lock(&self.table));
        self.changes.send_replace(());
        result
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    // A panicking test has failed already; the others may still look.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store for MemoryStore {
    type Reader = Self;
    type Settler = Self;

    async fn open_reader(&self) -> Result<Self, StoreError> {
        Ok(self.clone())
    }

    async fn open_settler(&self) -> Result<Self, StoreError> {
        Ok(self.clone())
    }
}

impl Reader for MemoryStore {
    fn content_type(&self) -> &'static str {
        "application/json"
    }

    async fn read(
        &mut self,
        request: &ReadRequest,
        nudge: &Arc<Notify>,
    ) -> Result<Reading, StoreError> {
        if let Some(rest) = request.rest {
            tokio::select! {
                () = tokio::time::sleep(rest) => {}
                _ = self.heard.changed() => {}
                () = nudge.notified() => {}
            }
        }
        Ok(lock(&self.table).read(request))
    }

    async fn fetch(
        &mut self,
        rows: &[Wanted],
        room: usize,
    ) -> Result<Vec<(RowId, Fetched)>, StoreError> {
        Ok(lock(&self.table).fetch(rows, room))
    }

    async fn leave(&mut self) -> Result<(), StoreError> {
        self.changes.send_replace(());
        Ok(())
    }

    async fn ended(&mut self) -> StoreError {
        std::future::pending().await
    }
}

impl Settler for MemoryStore {
    async fn settle(&mut self, batch: &[Settlement]) -> Result<SettleReport, StoreError> {
        Ok(lock(&self.table).settle(self.token, batch))
    }

    async fn announce(&mut self, sign: &Announcement) -> Result<bool, StoreError> {
        let mut table = lock(&self.table);
        // No two signs come at the same time.
        table.advance(Duration::from_micros(1));
        let now = table.now();
        table.leases.announce(sign, now);
        Ok(true)
    }

    async fn leases(&mut self) -> Result<Leases, StoreError> {
        let table = lock(&self.table);
        Ok(table.leases.look(table.now()))
    }

    async fn take(&mut self, take: &Take) -> Result<(), StoreError> {
        lock(&self.table).leases.take(self.token, take);
        Ok(())
    }

    async fn release(&mut self, partitions: &PartitionSet) -> Result<(), StoreError> {
        lock(&self.table).leases.release(self.token, partitions);
        self.changes.send_replace(());
        Ok(())
    }

    async fn sweep(&mut self, stretch: Stretch, left_out: &[i64]) -> Result<Swept, StoreError> {
        Ok(lock(&self.table).sweep(stretch, left_out))
    }

    async fn measure(&mut self) -> Result<Measures, StoreError> {
        Ok(lock(&self.table).measure())
    }

    async fn withdraw(&mut self) -> Result<(), StoreError> {
        lock(&self.table).leases.withdraw(self.token);
        Ok(())
    }

    async fn ended(&mut self) -> StoreError {
        std::future::pending().await
    }
}
