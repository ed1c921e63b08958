//! The outbox schema: how it is made, changed, inspected and named.

mod apply;
mod catalog;
mod definition;
mod expected;
mod migration;
mod pending;
mod wake;

pub use apply::{MigrateError, Migrated, check, migrate};
pub use catalog::Catalog;
pub use definition::{Definition, Payload, Wake};
pub use migration::{Index, script};
pub use pending::{Pending, Refusal, Remedy, Wanted, pending, resolve};
pub use wake::{migrate_key, wake_channel, wake_key};
