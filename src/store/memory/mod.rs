//! The in-memory twin of the PostgreSQL store: a table with transactions and snapshots, and the
//! store seam over it.
//!
//! [`Table`] models what the relay relies on (visibility by snapshot, row locks, the database's
//! clock) and nothing else. [`MemoryStore`] puts the async seam around it for the contract suite
//! and the engine's tests.

mod sweep;
mod table;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use uuid::Uuid;

pub use table::{StoredRow, Table};

use super::{Announcement, Measures, Reader, Settler, Store, StoreError};
use crate::message::RowId;
use crate::relay::rules::{
    Fetched, ReadRequest, Reading, SettleReport, Settlement, Stretch, Swept,
};

/// The store seam over a shared [`Table`].
#[derive(Clone, Default)]
pub struct MemoryStore {
    table: Arc<Mutex<Table>>,
    committed: Arc<Notify>,
}

impl MemoryStore {
    /// Works on the table; afterwards resting readers look again.
    pub fn with<R>(&self, work: impl FnOnce(&mut Table) -> R) -> R {
        let result = work(&mut lock(&self.table));
        self.committed.notify_one();
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

    async fn take_watch(&mut self) -> Result<bool, StoreError> {
        Ok(true)
    }

    async fn read(
        &mut self,
        request: &ReadRequest,
        nudge: &Arc<Notify>,
    ) -> Result<Reading, StoreError> {
        if let Some(rest) = request.rest {
            tokio::select! {
                () = tokio::time::sleep(rest) => {}
                () = self.committed.notified() => {}
                () = nudge.notified() => {}
            }
        }
        Ok(lock(&self.table).read(request))
    }

    async fn fetch(
        &mut self,
        ids: &[RowId],
        room: usize,
    ) -> Result<Vec<(RowId, Fetched)>, StoreError> {
        Ok(lock(&self.table).fetch(ids, room))
    }

    async fn ended(&mut self) -> StoreError {
        std::future::pending().await
    }
}

impl Settler for MemoryStore {
    async fn settle(&mut self, batch: &[Settlement]) -> Result<SettleReport, StoreError> {
        Ok(lock(&self.table).settle(batch))
    }

    async fn announce(&mut self, sign: &Announcement) -> Result<(), StoreError> {
        lock(&self.table)
            .instances
            .insert(sign.instance, sign.clone());
        Ok(())
    }

    async fn sweep(&mut self, stretch: Stretch) -> Result<Swept, StoreError> {
        Ok(lock(&self.table).sweep(stretch))
    }

    async fn measure(&mut self) -> Result<Measures, StoreError> {
        Ok(lock(&self.table).measure())
    }

    async fn withdraw(&mut self, instance: Uuid) -> Result<(), StoreError> {
        lock(&self.table).instances.remove(&instance);
        Ok(())
    }

    async fn ended(&mut self) -> StoreError {
        std::future::pending().await
    }
}
