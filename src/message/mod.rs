//! What a row says and what may be sent: pure types, no I/O, no client crate.
//!
//! `OutboxRow` is what the store read; `Publication` is what survived validation and may be
//! handed to a channel. Nothing here knows PostgreSQL's or RabbitMQ's client library.

mod direct_reply;
mod field;
mod headers;
mod json;
mod pattern;
mod properties;
mod publication;
mod reason;
mod row;

pub use field::{FieldTable, FieldValue, ShortText, TooLong};
pub use pattern::is_allowed;
pub use properties::{DeliveryMode, Properties};
pub use publication::{Publication, Rules};
pub use reason::{ReasonClass, Unfit};
pub use row::{Body, OutboxRow, RowId};

#[cfg(test)]
mod any_row;
#[cfg(test)]
pub(crate) use {any_row::any_row, publication::tests::rules};
