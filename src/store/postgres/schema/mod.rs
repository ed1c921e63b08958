//! The schemas of outbox and inbox: how they are made, changed, inspected and named.

mod apply;
mod catalog;
mod column;
mod definition;
mod expected;
mod gate;
mod inbox;
mod migration;
mod owners;
mod pending;
mod subject;
mod waits;
mod wake;

pub use apply::{MigrateError, Migrated, check, check_subject, migrate, migrate_subject};
pub use catalog::{Catalog, Relation};
pub use definition::{Definition, Payload, Wake};
pub use gate::Gate;
pub use inbox::{FUNCTIONS as INBOX_FUNCTIONS, script as inbox_script};
pub use migration::{Index, script};
pub use pending::{Pending, Refusal, Remedy, Wanted, pending, resolve};
pub use subject::Subject;
pub use wake::{beside_key, migrate_key, wake_channel, wake_key};
