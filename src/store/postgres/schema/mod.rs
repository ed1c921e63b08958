//! The outbox schema: how it is made, changed, inspected and named.

mod definition;
mod migration;
mod wake;

pub use definition::{Definition, Payload, Wake};
pub use migration::{Index, script};
pub use wake::{migrate_key, wake_channel, wake_key};
