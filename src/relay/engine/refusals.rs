//! Tells the log of rows that were refused and of channels that were lost over them, a bounded
//! number a minute: a million bad rows are one fault.

use tracing::{debug, warn};

use super::ration::Ration;
use super::retry::in_ms;
use crate::broker::ChannelLost;
use crate::relay::rules::{ChannelNo, Settlement, Verdict};
use crate::runtime::Moment;

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
                    retry_in_ms = in_ms(*delay),
                    reason = error,
                    "a row waits"
                );
            }
            Verdict::Quarantine { why, .. } => {
                let class = why.class.as_str();
                warn!(row, class, reason = why.reason, "a row goes to quarantine");
            }
        }
    }

    /// Counts what was not named. To be called now and then.
    pub(super) fn count(&mut self, now: Moment) {
        self.rows.count(now);
        self.channels.count(now);
    }

    /// Names the channel, the cause and how many rows are in doubt. One that ended with none has no
    /// consequence.
    pub(super) fn tell_of_loss(&mut self, no: ChannelNo, lost: &ChannelLost, now: Moment) {
        let ChannelLost { cause, unknown } = lost;
        let (cause, unknown) = (cause.to_string(), unknown.len());
        if unknown == 0 {
            debug!(
                channel = no.0,
                cause, "a channel ended, with nothing under way"
            );
        } else if self.channels.may_speak(now) {
            warn!(channel = no.0, cause, unknown, "a channel ended");
        }
    }
}
