//! What a consumer is called, and how much it does at once.

use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// PostgreSQL's timeouts are 32-bit numbers of milliseconds: 24.8 days.
const LONGEST_RUN: Duration = Duration::from_secs(20 * DAY.as_secs());
/// Further times cannot be counted with.
const LONGEST: Duration = Duration::from_secs(36_525 * DAY.as_secs());
/// Each transactional handler has a session of its own.
const MOST_AT_ONCE: usize = 10_000;
const SLOWEST: f64 = 0.0001;
const FASTEST: f64 = 1e9;

/// A consumer's settings. [`Settings::new`] fills in the documented defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The consumer's name, half of the idempotency key. Processes that share a queue share it.
    pub consumer: String,
    /// The queue.
    pub queue: String,
    /// Most deliveries unacknowledged at once.
    pub prefetch: u16,
    /// Most handlers at once; first deliveries and due entries share them.
    pub concurrency: usize,
    /// Most handlers started per second, if limited.
    pub max_rate: Option<f64>,
    /// How long a claim holds without a renewal.
    pub lease: Duration,
    /// Attempts before a message is dead.
    pub max_attempts: u32,
    /// Pause after the first failed attempt.
    pub retry_initial: Duration,
    /// By what each further pause is longer.
    pub retry_multiplier: f64,
    /// Longest pause.
    pub retry_max_delay: Duration,
    /// Share of a pause by which it may differ, 0 to 1.
    pub retry_jitter: f64,
    /// How often due entries are asked for; at most a second.
    pub due_interval: Duration,
    /// How long one handler may run; longer is a temporary failure.
    pub handler_timeout: Duration,
    /// How long finished entries are remembered.
    pub done_retention: Duration,
    /// How old a message may be when somebody publishes it again.
    pub replay_window: Duration,
    /// How long running handlers may go on after being told to stop.
    pub shutdown_grace: Duration,
}

/// Every setting that cannot be used, with its remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("consumer settings: {}", .0.join("; "))]
pub struct SettingsError(pub Vec<String>);

impl Settings {
    /// The defaults for a consumer of a queue.
    #[must_use]
    pub fn new(consumer: impl Into<String>, queue: impl Into<String>) -> Self {
        Self {
            consumer: consumer.into(),
            queue: queue.into(),
            prefetch: 20,
            concurrency: 10,
            max_rate: None,
            lease: Duration::from_secs(60),
            max_attempts: 5,
            retry_initial: Duration::from_secs(1),
            retry_multiplier: 2.0,
            retry_max_delay: Duration::from_secs(300),
            retry_jitter: 0.2,
            due_interval: Duration::from_secs(1),
            handler_timeout: Duration::from_secs(300),
            done_retention: 35 * DAY,
            replay_window: 30 * DAY,
            shutdown_grace: Duration::from_secs(25),
        }
    }

    /// Judges the settings together.
    ///
    /// # Errors
    /// [`SettingsError`] names all that cannot be used.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let rules = self.amounts().into_iter().chain(self.times());
        let faults: Vec<_> = rules
            .filter(|(holds, _)| !holds)
            .map(|(_, fault)| fault.to_owned())
            .collect();
        if faults.is_empty() {
            Ok(())
        } else {
            Err(SettingsError(faults))
        }
    }

    fn amounts(&self) -> [(bool, &'static str); 9] {
        [
            (
                !self.consumer.is_empty(),
                "consumer is empty: name it, for instance after its queue",
            ),
            (
                self.consumer.len() <= 255 && !self.consumer.contains('\0'),
                "consumer is longer than 255 bytes or contains U+0000",
            ),
            (!self.queue.is_empty(), "queue is empty"),
            (
                self.prefetch > 0,
                "prefetch is 0, which RabbitMQ takes for no limit: use at least 1",
            ),
            (
                (1..=MOST_AT_ONCE).contains(&self.concurrency),
                "concurrency must be from 1 to 10000",
            ),
            (
                self.max_rate
                    .is_none_or(|rate| (SLOWEST..=FASTEST).contains(&rate)),
                "max_rate must be from 0.0001 to 1000000000 per second",
            ),
            (
                self.max_attempts > 0 && i32::try_from(self.max_attempts).is_ok(),
                "max_attempts must be from 1 to 2147483647",
            ),
            (
                (1.0..=100.0).contains(&self.retry_multiplier),
                "retry_multiplier must be from 1 to 100",
            ),
            (
                (0.0..=1.0).contains(&self.retry_jitter),
                "retry_jitter must be from 0 to 1",
            ),
        ]
    }

    fn times(&self) -> [(bool, &'static str); 9] {
        let second = Duration::from_secs(1);
        [
            (
                self.lease >= second,
                "lease is below 1s: a slow moment would lose it",
            ),
            (
                self.lease <= DAY,
                "lease is above 1 day: a crash would be noticed only then",
            ),
            (
                self.retry_initial > Duration::ZERO,
                "retry_initial is 0: use at least 1ms",
            ),
            (
                self.retry_max_delay >= self.retry_initial,
                "retry_max_delay is shorter than retry_initial",
            ),
            (
                self.due_interval > Duration::ZERO && self.due_interval <= second,
                "due_interval must be above 0 and at most 1s",
            ),
            (
                self.handler_timeout > Duration::ZERO && self.handler_timeout <= LONGEST_RUN,
                "handler_timeout must be above 0 and at most 20 days",
            ),
            (
                self.retry_max_delay <= LONGEST && self.shutdown_grace <= LONGEST,
                "retry_max_delay or shutdown_grace is above 100 years",
            ),
            (
                self.done_retention <= LONGEST,
                "done_retention is above 100 years",
            ),
            (
                self.done_retention >= self.replay_window,
                "done_retention is shorter than replay_window: a copy published again would run twice; lengthen done_retention",
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_the_documentation() {
        let settings = Settings::new("billing", "billing");
        assert_eq!(settings.validate(), Ok(()));
        assert_eq!(
            (
                settings.lease.as_secs(),
                settings.max_attempts,
                settings.prefetch
            ),
            (60, 5, 20)
        );
        assert_eq!(settings.done_retention.as_secs(), 35 * 24 * 3600);
    }

    /// Whoever wants no limit says so by a number that no clock can count to.
    #[test]
    fn what_cannot_be_counted_with_is_refused() {
        let fault = |change: fn(&mut Settings)| {
            let mut settings = Settings::new("billing", "billing");
            change(&mut settings);
            settings.validate().expect_err("a fault").0.concat()
        };
        assert!(fault(|s| s.lease = Duration::MAX).contains("lease"));
        assert!(fault(|s| s.handler_timeout = Duration::MAX).contains("handler_timeout"));
        assert!(fault(|s| s.retry_max_delay = Duration::MAX).contains("retry_max_delay"));
        assert!(fault(|s| s.shutdown_grace = Duration::MAX).contains("shutdown_grace"));
        assert!(fault(|s| s.done_retention = Duration::MAX).contains("done_retention"));
        assert!(fault(|s| s.concurrency = usize::MAX).contains("concurrency"));
        assert!(fault(|s| s.max_rate = Some(1e-300)).contains("max_rate"));
        assert!(fault(|s| s.consumer = "a\0b".to_owned()).contains("U+0000"));
    }

    #[test]
    fn all_faults_are_told_at_once() {
        let settings = Settings {
            prefetch: 0,
            max_rate: Some(f64::NAN),
            done_retention: Duration::from_secs(1),
            due_interval: Duration::from_secs(2),
            ..Settings::new("", "q")
        };
        let faults = settings.validate().expect_err("five faults").0;
        assert_eq!(faults.len(), 5, "{faults:?}");
        assert!(faults[4].contains("shorter than replay_window"));
    }
}
