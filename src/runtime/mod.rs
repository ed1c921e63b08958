//! Time, waiting and stopping: what every task needs and no task should invent for itself.
//!
//! Knows nothing of rows, brokers or databases.

pub mod backoff;
pub mod clock;
pub mod moment;
pub mod shutdown;

pub use backoff::{Jitter, RetryPolicy};
pub use clock::Clock;
pub use moment::Moment;
pub use shutdown::Shutdown;
