//! Tells the log of rows that were refused and of channels that were lost over them, a bounded
//! number a minute: a million bad rows are one fault.

use std::time::Duration;

use tracing::warn;

use crate::broker::ChannelLost;
use crate::relay::rules::{ChannelNo, Settlement, Verdict};
use crate::runtime::Moment;

const LINES: u32 = 8;
const SPAN: Duration = Duration::from_secs(60);

/// What was said lately.
#[derive(Debug)]
pub(super) struct Refusals {
    rows: Ration,
    channels: Ration,
}

impl Refusals {
    pub(super) fn new() -> Self {
        Self {
            rows: Ration::new("more rows were refused; see outbox-relay status"),
            channels: Ration::new("more channels were lost"),
        }
    }

    /// Names the row, the reason and what becomes of it. The reasons quote no payload.
    pub(super) fn tell(&mut self, settlement: &Settlement, now: Moment) {
        if matches!(settlement.verdict, Verdict::Sent(_)) || !self.rows.may_speak(now) {
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

    /// Names the channel, the cause and how many rows are in doubt.
    pub(super) fn tell_of_loss(&mut self, no: ChannelNo, lost: &ChannelLost, now: Moment) {
        if self.channels.may_speak(now) {
            let ChannelLost { cause, unknown } = lost;
            let unknown = unknown.len();
            warn!(channel = no.0, ?cause, unknown, "a channel ended");
        }
    }
}

/// How much may be said about one thing.
#[derive(Debug)]
struct Ration {
    /// Said of what was left unsaid.
    rest: &'static str,
    since: Moment,
    said: u32,
    unsaid: u64,
}

impl Ration {
    fn new(rest: &'static str) -> Self {
        Self {
            rest,
            since: Moment::ORIGIN,
            said: 0,
            unsaid: 0,
        }
    }

    fn may_speak(&mut self, now: Moment) -> bool {
        if now.since(self.since) >= SPAN {
            if self.unsaid > 0 {
                warn!(count = self.unsaid, "{}", self.rest);
            }
            *self = Self {
                since: now,
                ..Self::new(self.rest)
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
        let mut ration = Ration::new("more");
        let start = Moment::from_origin(SPAN * 5);
        let spoken = (0..1000).filter(|_| ration.may_speak(start)).count();
        assert_eq!(spoken, LINES as usize);
        assert!(ration.may_speak(start + SPAN));
        assert_eq!(ration.unsaid, 0);
    }
}
