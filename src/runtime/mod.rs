//! Time, waiting, stopping, and telling how one is doing: what every task needs and no task should
//! invent for itself.
//!
//! Below everything else; knows no row, no client crate, no setting.

pub mod backoff;
pub mod clock;
pub mod condition;
pub mod executor;
pub mod health;
pub mod map;
pub mod moment;
pub mod readiness;
pub mod shutdown;

pub use backoff::{Jitter, RetryPolicy};
pub use clock::Clock;
pub use executor::executor;
pub use health::{Backlog, Health};
pub use map::{Map, Set};
pub use moment::Moment;
pub use shutdown::Shutdown;
