//! The outbox schema: how it is made, changed, inspected and named.

mod wake;

pub use wake::{wake_channel, wake_key};
