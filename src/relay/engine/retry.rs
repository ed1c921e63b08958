//! Waiting between attempts to connect.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::runtime::{Clock, Jitter, Moment, RetryPolicy};

/// Attempts to reach one server, or to open one channel: a delay that grows with each, and
/// starts again small after a connection or channel that lasted.
pub(super) struct Attempts {
    policy: RetryPolicy,
    /// What lived so long was a good one: the next attempts are quick again.
    stable: Duration,
    jitter: Jitter,
    failures: u32,
    connected: Option<Moment>,
}

impl Attempts {
    pub(super) fn new() -> Self {
        let (first, longest) = (Duration::from_millis(200), Duration::from_secs(10));
        Self::between(first, longest, Duration::from_secs(20))
    }

    /// For a channel. What makes the broker close it is itself asked ever more seldom; rows
    /// that have nothing to do with it should not wait for that.
    pub(super) fn of_channel() -> Self {
        let (first, longest) = (Duration::from_millis(20), Duration::from_secs(1));
        Self::between(first, longest, longest)
    }

    /// For the connection on which is tried what costs connections: it has to be made again and
    /// again.
    pub(super) fn apart() -> Self {
        let (first, longest) = (Duration::from_millis(50), Duration::from_secs(2));
        Self::between(first, longest, Duration::from_secs(5))
    }

    fn between(first: Duration, longest: Duration, stable: Duration) -> Self {
        Self {
            policy: RetryPolicy::new(first, 2.0, longest, 0.3),
            stable,
            jitter: Jitter::random(),
            failures: 0,
            connected: None,
        }
    }

    pub(super) fn succeeded(&mut self) {
        self.connected = Some(Clock.now());
    }

    /// It did what it was there for, however soon it ended: the next attempts are quick again.
    pub(super) fn worked(&mut self) {
        self.failures = 0;
    }

    /// How long to wait before the next attempt.
    pub(super) fn failed(&mut self) -> Duration {
        let lasted = self.connected.take().map(|since| Clock.now().since(since));
        if lasted.is_some_and(|lasted| lasted >= self.stable) {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        self.policy.delay(self.failures, &mut self.jitter)
    }
}

/// For the log, whose numbers are 64 bits wide.
pub(super) fn in_ms(delay: Duration) -> u64 {
    u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)
}

/// Waits, unless it is time to stop. False if it is.
pub(super) async fn pause(delay: Duration, stop: &CancellationToken) -> bool {
    stop.run_until_cancelled(tokio::time::sleep(delay))
        .await
        .is_some()
}
