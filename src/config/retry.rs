//! `[retry]`: when to try again and when to stop.

use std::time::Duration;

use super::duration;
use super::reader::{Reader, within};
use crate::runtime::RetryPolicy;

/// The keys of `[retry]`.
#[derive(Clone, Debug)]
pub struct RetrySection {
    /// `initial`: the first delay.
    pub initial: Duration,
    /// `multiplier`: by what each delay grows.
    pub multiplier: f64,
    /// `max_delay`: the longest delay.
    pub max_delay: Duration,
    /// `jitter`: share of a delay by which it may differ, 0 to 1.
    pub jitter: f64,
    /// `max_attempts`: attempts charged to a row before it is quarantined.
    pub max_attempts: u32,
    /// `unroutable_after`: how long a row that reaches no queue is retried.
    pub unroutable_after: Duration,
    /// `destination_after`: how long a row is retried whose destination refuses or is missing.
    pub destination_after: Duration,
}

impl RetrySection {
    /// The delays as a pure value.
    #[must_use]
    pub fn policy(&self) -> RetryPolicy {
        RetryPolicy::new(self.initial, self.multiplier, self.max_delay, self.jitter)
    }
}

impl Default for RetrySection {
    fn default() -> Self {
        Self {
            initial: Duration::from_secs(1),
            multiplier: 2.0,
            max_delay: Duration::from_secs(5 * 60),
            jitter: 0.2,
            max_attempts: 10,
            unroutable_after: Duration::from_secs(3600),
            destination_after: Duration::from_secs(24 * 3600),
        }
    }
}

impl RetrySection {
    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        let defaults = Self::default();
        let shortest = Duration::from_millis(10);
        let year = Duration::from_secs(365 * 24 * 3600);
        let delay = within(shortest, Duration::from_secs(24 * 3600));
        let patience = within(shortest, year);
        let section = Self {
            initial: reader.value("retry.initial", defaults.initial, &delay),
            multiplier: reader.value("retry.multiplier", defaults.multiplier, within(1.0, 100.0)),
            max_delay: reader.value("retry.max_delay", defaults.max_delay, &delay),
            jitter: reader.value("retry.jitter", defaults.jitter, within(0.0, 1.0)),
            max_attempts: reader.value(
                "retry.max_attempts",
                defaults.max_attempts,
                within(1, 1_000_000),
            ),
            unroutable_after: reader.value(
                "retry.unroutable_after",
                defaults.unroutable_after,
                &patience,
            ),
            destination_after: reader.value(
                "retry.destination_after",
                defaults.destination_after,
                &patience,
            ),
        };
        let (initial, max) = (section.initial, section.max_delay);
        reader.rule(
            &["retry.initial", "retry.max_delay"],
            initial <= max,
            || {
                format!(
                    "initial ({}) must not be longer than max_delay ({})",
                    duration::shown(initial),
                    duration::shown(max)
                )
            },
        );
        section
    }
}
