//! The library's own odd rows.

pub use outbox_relay::message::{Body, OutboxRow, RowId};

#[path = "../../src/message/any_row.rs"]
pub mod any_row;
