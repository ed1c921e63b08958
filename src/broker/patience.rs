//! How long a confirm may take, on a clock that stands while the broker blocks the connection.
//!
//! Pure: `now` is a parameter.

use std::time::Duration;

use tokio::time::Instant;

/// A deadline for confirms, and the clock it goes by.
#[derive(Debug)]
pub(in crate::broker) struct Patience {
    timeout: Duration,
    /// How long the clock has stood in all.
    stood: Duration,
    standing_since: Option<Instant>,
}

impl Patience {
    pub(in crate::broker) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            stood: Duration::ZERO,
            standing_since: None,
        }
    }

    /// The broker blocks: nothing that waits grows older.
    pub(in crate::broker) fn stop(&mut self, now: Instant) {
        self.standing_since.get_or_insert(now);
    }

    /// The broker blocks no more.
    pub(in crate::broker) fn go_on(&mut self, now: Instant) {
        if let Some(since) = self.standing_since.take() {
            self.stood += now.saturating_duration_since(since);
        }
    }

    /// What the clock shows.
    pub(in crate::broker) fn clock(&self, now: Instant) -> Instant {
        let shown = self.standing_since.unwrap_or(now);
        shown.checked_sub(self.stood).unwrap_or(shown)
    }

    /// When a wait that began at `since` by this clock becomes too long; never while it stands.
    pub(in crate::broker) fn deadline(&self, since: Instant) -> Option<Instant> {
        match self.standing_since {
            Some(_) => None,
            None => Some(since + self.stood + self.timeout),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_grows_older_only_while_the_broker_does_not_block() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut patience = Patience::new(Duration::from_secs(30));
        let first = patience.clock(at(0));
        assert_eq!(patience.deadline(first), Some(at(30)));
        patience.stop(at(10));
        patience.stop(at(12));
        let second = patience.clock(at(500));
        assert_eq!(patience.deadline(first), None);
        patience.go_on(at(1000));
        patience.go_on(at(1001));
        assert_eq!(patience.deadline(first), Some(at(1020)));
        assert_eq!(patience.deadline(second), Some(at(1030)));
        let third = patience.clock(at(1005));
        assert_eq!(patience.deadline(third), Some(at(1035)));
    }
}
