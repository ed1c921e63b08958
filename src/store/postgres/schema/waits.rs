//! Patience with locks that applications hold: bounded, jittered, and told to whoever watches.

use std::time::Duration;

use tokio::time::sleep;

use crate::runtime::{Jitter, RetryPolicy};
use crate::store::error::{Fault, StoreError};

/// Requests for a lock before giving up; with the pauses between them about two minutes.
const ATTEMPTS: u32 = 40;
/// Pauses between attempts to get locks that applications hold.
pub(super) struct Waits {
    attempt: u32,
    policy: RetryPolicy,
    jitter: Jitter,
}

impl Waits {
    pub fn new() -> Self {
        let (first, longest) = (Duration::from_millis(200), Duration::from_secs(3));
        Self {
            attempt: 0,
            policy: RetryPolicy::new(first, 1.5, longest, 0.3),
            jitter: Jitter::random(),
        }
    }

    /// Lets others go first, or gives up with what stood in the way.
    pub async fn pause(
        &mut self,
        error: StoreError,
        say: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), StoreError> {
        self.attempt += 1;
        if self.attempt >= ATTEMPTS {
            return Err(error.map_fault(|fault| Fault {
                reason: format!(
                    "{}; {ATTEMPTS} attempts: a long transaction holds the table, see \
                     pg_locks and pg_stat_activity, and run it again",
                    fault.reason
                ),
                ..fault
            }));
        }
        if self.attempt % 10 == 1 {
            say(&format!(
                "the table is in use, trying again: {}",
                error.fault()
            ));
        }
        sleep(self.policy.delay(self.attempt, &mut self.jitter)).await;
        Ok(())
    }
}
