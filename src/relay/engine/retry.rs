//! Waiting between attempts to connect.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::runtime::{Clock, Jitter, Moment, RetryPolicy};

const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(10);

/// A connection that lived so long was a good one: the next attempts are quick again.
const STABLE: Duration = Duration::from_secs(20);

/// Attempts to reach one server: a delay that grows with each, and starts again small after a
/// connection that lasted.
pub(super) struct Attempts {
    policy: RetryPolicy,
    jitter: Jitter,
    failures: u32,
    connected: Option<Moment>,
}

impl Attempts {
    pub(super) fn new() -> Self {
        let policy = RetryPolicy::new(FIRST, 2.0, LONGEST, 0.3);
        Self {
            policy,
            jitter: Jitter::random(),
            failures: 0,
            connected: None,
        }
    }

    pub(super) fn succeeded(&mut self) {
        self.connected = Some(Clock.now());
    }

    /// Is this failure worth a line in the log? The first is, and those that come slowly; the
    /// quick ones between would fill it.
    pub(super) fn worth_telling(&self) -> bool {
        self.failures == 1 || self.failures > 4
    }

    /// How long to wait before the next attempt.
    pub(super) fn failed(&mut self) -> Duration {
        let lasted = self.connected.take().map(|since| Clock.now().since(since));
        if lasted.is_some_and(|lasted| lasted >= STABLE) {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        self.policy.delay(self.failures, &mut self.jitter)
    }
}

/// Waits, unless it is time to stop. False if it is.
pub(super) async fn pause(delay: Duration, stop: &CancellationToken) -> bool {
    stop.run_until_cancelled(tokio::time::sleep(delay))
        .await
        .is_some()
}
