//! The store seam: what the relay needs from a database, and nothing of how it is done.
//!
//! Two implementations exist, the real one (`postgres`) and an in-memory twin (`memory`);
//! `tests/contract` runs one suite against both.

mod announcement;
pub mod error;
pub mod measures;
pub mod memory;
pub mod postgres;

use std::future::Future;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::message::RowId;
use crate::relay::rules::{
    Fetched, Leases, PartitionSet, ReadRequest, Reading, SettleReport, Settlement, Stretch, Swept,
    Take, Wanted,
};

pub use announcement::Announcement;
pub use error::{Fault, StoreError};
pub use measures::Measures;

/// A database that holds an outbox.
pub trait Store: Send + Sync + 'static {
    /// A connection that looks for rows.
    type Reader: Reader;
    /// A connection that writes down what became of them.
    type Settler: Settler;

    /// Connects for reading, within its deadline.
    ///
    /// # Errors
    /// [`StoreError`] says what to do about it.
    fn open_reader(&self) -> impl Future<Output = Result<Self::Reader, StoreError>> + Send;

    /// Connects for settling, within its deadline.
    ///
    /// # Errors
    /// [`StoreError`] says what to do about it.
    fn open_settler(&self) -> impl Future<Output = Result<Self::Settler, StoreError>> + Send;
}

/// Looks for rows. After an error it is to be thrown away.
pub trait Reader: Send + 'static {
    /// Content type of a message that names none: follows from the payload's SQL type.
    fn content_type(&self) -> &'static str;

    /// Answers the request from one snapshot, after resting as long as it allows. The rest ends
    /// early when rows are committed, or when `nudge` is notified.
    ///
    /// # Errors
    /// [`StoreError`]; nothing was taken.
    fn read(
        &mut self,
        request: &ReadRequest,
        nudge: &Arc<Notify>,
    ) -> impl Future<Output = Result<Reading, StoreError>> + Send;

    /// Brings bodies, in the order asked for, as far as they fit into `room` bytes; the first
    /// one in any case. Every row is answered; another that has the id of one is not that row.
    ///
    /// # Errors
    /// [`StoreError`]; nothing was taken.
    fn fetch(
        &mut self,
        rows: &[Wanted],
        room: usize,
    ) -> impl Future<Output = Result<Vec<(RowId, Fetched)>, StoreError>> + Send;

    /// Leaves for good. Others that rest are told, so that none of them relies on this reader.
    ///
    /// # Errors
    /// [`StoreError`]; the others find out by themselves when their rest is over.
    fn leave(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Waits for the end of the connection and tells why. Cancel safe.
    fn ended(&mut self) -> impl Future<Output = StoreError> + Send;
}

/// Writes down what became of rows. After an error it is to be thrown away, and what it was
/// given is to be settled again by another: settling twice is harmless.
pub trait Settler: Send + 'static {
    /// Settles a batch. What it reports as written is durable. Only the owner of a row's partition
    /// decides that it waits or is given up; that it was sent is true whoever says so.
    ///
    /// # Errors
    /// [`StoreError`]; any part of the batch may or may not have been written.
    fn settle(
        &mut self,
        batch: &[Settlement],
    ) -> impl Future<Output = Result<SettleReport, StoreError>> + Send;

    /// Writes a sign of life, which renews the lease on what this relay owns, and removes what
    /// relays left behind that died long ago. Never waits for a lock: false if it was not written
    /// for that.
    ///
    /// # Errors
    /// [`StoreError`]; one that does not say that the connection is gone leaves it usable.
    fn announce(
        &mut self,
        sign: &Announcement,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Looks who is alive and who owns what. Asked after a renewal it tells what that renewed.
    ///
    /// # Errors
    /// [`StoreError`]; one that does not say that the connection is gone leaves it usable.
    fn leases(&mut self) -> impl Future<Output = Result<Leases, StoreError>> + Send;

    /// Takes partitions, as far as they are still to be had. A sign of life must have been
    /// written before.
    ///
    /// # Errors
    /// [`StoreError`]; they may or may not have been taken.
    fn take(&mut self, take: &Take) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Gives partitions back.
    ///
    /// # Errors
    /// [`StoreError`]; they may or may not have been given back.
    fn release(
        &mut self,
        partitions: &PartitionSet,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Removes rows of the stretch that were sent long enough ago, of the first
    /// [`SWEEP_ROWS`](crate::relay::rules::SWEEP_ROWS) that are in it. Never waits for a row's
    /// lock, and leaves what is pending alone, and these.
    ///
    /// # Errors
    /// [`StoreError`]; one that does not say that the connection is gone leaves it usable. It holds the
    /// row that a foreign key keeps, if that is why.
    fn sweep(
        &mut self,
        stretch: Stretch,
        left_out: &[i64],
    ) -> impl Future<Output = Result<Swept, StoreError>> + Send;

    /// Measures the outbox as a whole, at a bounded cost.
    ///
    /// # Errors
    /// [`StoreError`]; one that does not say that the connection is gone leaves it usable.
    fn measure(&mut self) -> impl Future<Output = Result<Measures, StoreError>> + Send;

    /// Removes the sign of life of a relay that stops; what it owned is free.
    ///
    /// # Errors
    /// [`StoreError`]; the sign then grows old by itself.
    fn withdraw(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Waits for the end of the connection and tells why. Cancel safe.
    fn ended(&mut self) -> impl Future<Output = StoreError> + Send;
}
