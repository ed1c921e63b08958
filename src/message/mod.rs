//! What a row says and what may be sent: pure types, no I/O, no client crate.
//!
//! `OutboxRow` is what the store read; `Publication` is what survived validation and may be
//! handed to a channel. Nothing here knows PostgreSQL's or RabbitMQ's client library.

mod publication;
mod row;

pub use publication::{Publication, Rules, Unfit};
pub use row::{Body, OutboxRow, RowId};
