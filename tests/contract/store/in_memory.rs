//! The table in memory as a stage.

use std::time::Duration;

use outbox_relay::message::{Body, OutboxRow, RowId};
use outbox_relay::store::Announcement;
use outbox_relay::store::memory::{MemoryStore, Table};

use uuid::Uuid;

use super::{Due, MAX_MESSAGE_SIZE, New, Quarantined, Stage, Stored};

pub struct InMemory(MemoryStore);

impl Stage for InMemory {
    type Store = MemoryStore;
    type Transaction = u64;
    type Lock = RowId;

    async fn new() -> Self {
        let store = MemoryStore::default().of(Uuid::from_u128(1));
        store.with(|table| {
            table.max_message_size = MAX_MESSAGE_SIZE;
            table.successors_wait = true;
        });
        Self(store)
    }

    fn store(&self) -> &MemoryStore {
        &self.0
    }

    async fn begin(&self) -> u64 {
        self.0.with(Table::begin)
    }

    async fn insert(&self, transaction: &mut u64, new: New) -> RowId {
        self.0.with(|table| {
            let available_at = new.scheduled.map(|from_now| table.now() + from_now);
            let row = OutboxRow {
                ordering_key: new.key.map(str::to_owned),
                payload: Body::Bytes(new.payload.into()),
                ..crate::rows::row(0, "", "q")
            };
            table.insert(*transaction, row, available_at)
        })
    }

    async fn insert_in_savepoint(&self, transaction: &mut u64, new: New) -> RowId {
        // PostgreSQL notes the id of the whole transaction, which is all that the twin knows.
        self.insert(transaction, new).await
    }

    async fn commit(&self, transaction: u64) {
        self.0.with(|table| table.commit(transaction));
    }

    async fn roll_back(&self, transaction: u64) {
        self.0.with(|table| table.rollback(transaction));
    }

    async fn lock(&self, id: RowId) -> RowId {
        self.set_lock(id, true);
        id
    }

    async fn unlock(&self, id: RowId) {
        self.set_lock(id, false);
    }

    async fn delete(&self, id: RowId) {
        self.0.with(|table| table.delete(id));
    }

    async fn fall_due(&self, due: Due, ids: &[RowId]) {
        self.0.with(|table| {
            table.advance(Duration::from_secs(1));
            let now = Some(table.now());
            for id in ids {
                let row = table.row_mut(*id).expect("a committed row");
                match due {
                    Due::RetryAt => row.retry_at = now,
                    Due::AvailableAt => row.available_at = now,
                }
            }
        });
    }

    async fn stored(&self, id: RowId) -> Option<Stored> {
        self.0.with(|table| {
            let now = table.now();
            let row = table.row_mut(id)?;
            Some(Stored {
                sent: row.sent_at.is_some(),
                waits: row.retry_at.is_some_and(|at| at > now),
                attempts: row.row.attempts,
                last_error: row.last_error.clone(),
            })
        })
    }

    async fn quarantined(&self, id: RowId) -> Option<Quarantined> {
        self.0.with(|table| {
            let (stored, unfit) = table.quarantined.get(&id.0)?;
            let Body::Bytes(payload) = &stored.row.payload else {
                panic!("a body was inserted")
            };
            Some(Quarantined {
                class: unfit.class.as_str().to_owned(),
                reason: unfit.reason.clone(),
                key: stored.row.ordering_key.clone(),
                payload: payload.to_vec(),
            })
        })
    }

    async fn settler_of(&self, relay: u128) -> MemoryStore {
        self.0.of(Uuid::from_u128(relay))
    }

    async fn reader_of(&self, relay: u128) -> MemoryStore {
        self.0.of(Uuid::from_u128(relay))
    }

    async fn alive(&self) -> Vec<Announcement> {
        self.0.with(|table| table.leases.signs().cloned().collect())
    }
}

impl InMemory {
    fn set_lock(&self, id: RowId, locked: bool) {
        self.0
            .with(|table| table.row_mut(id).expect("a committed row").locked = locked);
    }
}
