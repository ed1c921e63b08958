//! The last quarter of an hour in steps of two seconds, and the latency within each step.

use std::collections::VecDeque;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::runtime::Moment;

/// Between two samples, at the least.
pub(super) const STEP: Duration = Duration::from_secs(2);

/// Samples kept: a quarter of an hour.
const KEPT: usize = 450;

/// Latencies are told in microseconds, up to a day.
const LONGEST: u64 = 24 * 3600 * 1_000_000;

/// One step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) at: Moment,
    /// Confirmed rows in a second.
    pub(super) rate: f64,
    /// Median and 99th percentile from `created_at` to the confirm; `None` if nothing was
    /// confirmed.
    pub(super) latency: Option<[Duration; 2]>,
    /// Pending rows; `None` if this relay does not know.
    pub(super) pending: Option<i64>,
    /// Age of the oldest due row.
    pub(super) oldest: Option<Duration>,
}

/// The steps so far.
#[derive(Debug)]
pub(super) struct History {
    begun: Moment,
    confirmed: u64,
    latency: Option<Histogram<u64>>,
    samples: VecDeque<Sample>,
}

impl History {
    pub(super) fn new(now: Moment) -> Self {
        Self {
            begun: now,
            confirmed: 0,
            // Two significant digits in some kilobytes; these bounds are always accepted.
            latency: Histogram::new_with_bounds(1, LONGEST, 2).ok(),
            samples: VecDeque::with_capacity(KEPT),
        }
    }

    pub(super) fn confirmed(&mut self, took: Duration) {
        self.confirmed += 1;
        if let Some(latency) = &mut self.latency {
            latency.saturating_record(u64::try_from(took.as_micros()).unwrap_or(LONGEST));
        }
    }

    /// Ends a step, if it has lasted long enough.
    pub(super) fn step(&mut self, now: Moment, outbox: impl FnOnce() -> Outbox) {
        let lasted = now.since(self.begun);
        if lasted < STEP {
            return;
        }
        let latency = self.latency.as_mut().filter(|latency| !latency.is_empty());
        let latency = latency.map(|latency| {
            let at = [0.5, 0.99].map(|q| Duration::from_micros(latency.value_at_quantile(q)));
            latency.reset();
            at
        });
        if self.samples.len() == KEPT {
            self.samples.pop_front();
        }
        let Outbox { pending, oldest } = outbox();
        #[allow(clippy::cast_precision_loss, reason = "for a chart")]
        let confirmed = self.confirmed as f64;
        self.samples.push_back(Sample {
            at: now,
            rate: confirmed / lasted.as_secs_f64(),
            latency,
            pending,
            oldest,
        });
        (self.begun, self.confirmed) = (now, 0);
    }

    pub(super) fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter()
    }
}

/// What is known of the outbox as a whole.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outbox {
    pub(super) pending: Option<i64>,
    pub(super) oldest: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(seconds))
    }

    #[test]
    fn a_step_tells_the_rate_and_the_latency_within_it() {
        let mut history = History::new(at(0));
        for millis in 1..=100 {
            history.confirmed(Duration::from_millis(millis));
        }
        history.step(at(1), Outbox::default);
        assert_eq!(history.samples().count(), 0, "too soon");
        history.step(at(4), Outbox::default);
        history.step(at(6), Outbox::default);
        let samples: Vec<_> = history.samples().collect();
        let [median, worst] = samples[0].latency.expect("known").map(|d| d.as_millis());
        assert!((49..=52).contains(&median) && (98..=101).contains(&worst));
        assert_eq!(samples[0].rate, 25.0);
        assert_eq!((samples[1].rate, samples[1].latency), (0.0, None));
    }

    #[test]
    fn only_so_many_steps_are_kept() {
        let mut history = History::new(at(0));
        for step in 1..=1000 {
            history.step(at(step * 2), Outbox::default);
        }
        assert_eq!(history.samples().count(), KEPT);
        assert_eq!(history.samples().last().map(|s| s.at), Some(at(2000)));
    }

    #[test]
    fn a_latency_may_be_anything() {
        let mut history = History::new(at(0));
        history.confirmed(Duration::ZERO);
        history.confirmed(Duration::MAX);
        history.step(at(2), Outbox::default);
        let sample = history.samples().next().expect("one");
        let [_, worst] = sample.latency.expect("known");
        assert!(worst.as_secs() >= 24 * 3600, "{worst:?}");
    }
}
