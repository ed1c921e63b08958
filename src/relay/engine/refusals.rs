//! Tells the log of rows that were refused, a bounded number a minute: a million bad rows are
//! one fault.

use std::time::Duration;

use tracing::warn;

use crate::relay::rules::{Settlement, Verdict};
use crate::runtime::Moment;

const LINES: u32 = 10;
const SPAN: Duration = Duration::from_secs(60);

/// How much was said lately.
#[derive(Debug)]
pub(super) struct Refusals {
    since: Moment,
    said: u32,
    unsaid: u64,
}

impl Refusals {
    pub(super) fn new() -> Self {
        Self {
            since: Moment::ORIGIN,
            said: 0,
            unsaid: 0,
        }
    }

    /// Names the row, the reason and what becomes of it. The reasons quote no payload.
    pub(super) fn tell(&mut self, settlement: &Settlement, now: Moment) {
        if matches!(settlement.verdict, Verdict::Sent(_)) || !self.may_speak(now) {
            return;
        }
        let row = settlement.id.0;
        match &settlement.verdict {
            Verdict::Sent(_) => {}
            Verdict::RetryAt { delay, error, .. } => {
                warn!(
                    row,
                    retry_in_ms = delay.as_millis(),
                    reason = error,
                    "a row waits"
                );
            }
            Verdict::Quarantine(unfit) => {
                let class = unfit.class.as_str();
                warn!(
                    row,
                    class,
                    reason = unfit.reason,
                    "a row goes to quarantine"
                );
            }
        }
    }

    fn may_speak(&mut self, now: Moment) -> bool {
        if now.since(self.since) >= SPAN {
            if self.unsaid > 0 {
                warn!(
                    rows = self.unsaid,
                    "more rows were refused; see outbox-relay status"
                );
            }
            *self = Self {
                since: now,
                ..Self::new()
            };
        }
        if self.said < LINES {
            self.said += 1;
            return true;
        }
        self.unsaid += 1;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_is_a_few_lines_a_minute() {
        let mut refusals = Refusals::new();
        let start = Moment::from_origin(SPAN * 5);
        let spoken = (0..1000).filter(|_| refusals.may_speak(start)).count();
        assert_eq!(spoken, LINES as usize);
        assert!(refusals.may_speak(start + SPAN));
        assert_eq!(refusals.unsaid, 0);
    }
}
