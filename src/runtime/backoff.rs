//! How long to wait before trying again: a pure value and its arithmetic.
//!
//! Does not sleep, count, cancel or decide whether to retry. The growth of the delay is
//! `backoff::ExponentialBackoff`'s; nothing else of that crate is used, and no other file uses
//! it, so replacing it is a change of this file. Three of its habits are kept out on purpose: it
//! gives up after 15 minutes, it jitters *after* the cap (a 60 s cap yields 90 s), and its jitter
//! cannot be seeded.

use std::time::Duration;

use backoff::ExponentialBackoffBuilder;
use backoff::backoff::Backoff;
use uuid::Uuid;

/// Below this a retry is a busy loop.
const SHORTEST: Duration = Duration::from_millis(1);

/// Exponential growth from `initial` by `multiplier` up to `max_delay`, each delay spread by
/// plus and minus `jitter` (a share, 0 to 1) so that many waiters do not come back together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    initial: Duration,
    multiplier: f64,
    max_delay: Duration,
    jitter: f64,
}

impl RetryPolicy {
    /// The configuration refuses senseless values by name; whatever still arrives here is brought
    /// into range, so that the arithmetic has no failing case: delays of at least 1 ms, a
    /// multiplier of at least 1, jitter between 0 and 1, `initial` no longer than `max_delay`.
    #[must_use]
    pub fn new(initial: Duration, multiplier: f64, max_delay: Duration, jitter: f64) -> Self {
        let max_delay = max_delay.max(SHORTEST);
        Self {
            initial: initial.clamp(SHORTEST, max_delay),
            multiplier: if multiplier >= 1.0 { multiplier } else { 1.0 },
            max_delay,
            jitter: if jitter >= 0.0 { jitter.min(1.0) } else { 0.0 },
        }
    }

    /// The longest delay there can be.
    #[must_use]
    pub fn max_delay(&self) -> Duration {
        self.max_delay
    }

    /// How long to wait after `attempt` failed attempts (1 is the first; 0 counts as 1). Depends
    /// on the arguments alone, lies within plus and minus `jitter` of the undisturbed delay, and
    /// never exceeds `max_delay`: near it the spread lies below, not above.
    #[must_use]
    pub fn delay(&self, attempt: u32, jitter: &mut Jitter) -> Duration {
        let highest = self.max_delay.as_secs_f64() / (1.0 + self.jitter);
        let centre = self.undisturbed(attempt).as_secs_f64().min(highest);
        let seconds = centre * (1.0 + self.jitter * jitter.next());
        // Out of range for a Duration only when max_delay itself is at the edge.
        Duration::try_from_secs_f64(seconds)
            .unwrap_or(self.max_delay)
            .min(self.max_delay)
    }

    fn undisturbed(&self, attempt: u32) -> Duration {
        let mut growth = ExponentialBackoffBuilder::new()
            .with_initial_interval(self.initial)
            .with_multiplier(self.multiplier)
            .with_max_interval(self.max_delay)
            .with_randomization_factor(0.0)
            .with_max_elapsed_time(None)
            .build();
        for _ in 1..attempt {
            let before = growth.current_interval;
            let _ = growth.next_backoff();
            if growth.current_interval <= before {
                break;
            }
        }
        growth.current_interval
    }
}

/// A source of jitter: a small generator (SplitMix64) that can be seeded, so that a simulated run
/// can be repeated. Not for secrets.
#[derive(Clone, Debug)]
pub struct Jitter(u64);

impl Jitter {
    /// The same seed gives the same sequence.
    #[must_use]
    pub const fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// A different sequence in every process and every call.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4().as_u64_pair().0)
    }

    /// The next value, evenly spread over -1 (included) to 1 (excluded).
    #[allow(
        clippy::cast_precision_loss,
        reason = "53 bits are what an f64 can hold"
    )]
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let unit = (z >> 11) as f64 / (1_u64 << 53) as f64;
        unit.mul_add(2.0, -1.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_duration() -> impl Strategy<Value = Duration> {
        prop_oneof![
            Just(Duration::ZERO),
            Just(Duration::from_nanos(1)),
            Just(Duration::MAX),
            (0_u64..10_000_000).prop_map(Duration::from_millis),
            any::<Duration>(),
        ]
    }

    fn any_factor() -> impl Strategy<Value = f64> {
        prop_oneof![
            Just(f64::NAN),
            Just(f64::INFINITY),
            Just(f64::NEG_INFINITY),
            Just(0.0),
            1.0..10.0,
            any::<f64>(),
        ]
    }

    proptest! {
        #[test]
        fn no_input_panics_or_exceeds_the_cap(
            initial in any_duration(),
            multiplier in prop_oneof![any_factor().prop_filter("slow growth only costs time",
                |m| !(1.0..1.01).contains(m)), Just(1.0)],
            max_delay in any_duration(),
            jitter in any_factor(),
            attempt in any::<u32>(),
            seed in any::<u64>(),
        ) {
            let policy = RetryPolicy::new(initial, multiplier, max_delay, jitter);
            let delay = policy.delay(attempt, &mut Jitter::seeded(seed));
            prop_assert!(delay <= policy.max_delay());
            prop_assert!(policy.max_delay() == max_delay.max(SHORTEST));
        }

        #[test]
        fn a_delay_stays_within_its_jitter_and_the_jitter_stays_under_the_cap(
            initial in 10_u64..5_000,
            multiplier in 1.0_f64..8.0,
            extra in 0_u64..1_000_000,
            jitter in 0.0_f64..=1.0,
            attempt in 0_u32..40,
            seed in any::<u64>(),
        ) {
            let (initial, max) = (initial as f64 / 1e3, (initial + extra) as f64 / 1e3);
            let policy = RetryPolicy::new(
                Duration::from_secs_f64(initial), multiplier, Duration::from_secs_f64(max), jitter);
            let steps = i32::try_from(attempt.saturating_sub(1)).unwrap();
            let plain = (initial * multiplier.powi(steps)).min(max).min(max / (1.0 + jitter));
            let delay = policy.delay(attempt, &mut Jitter::seeded(seed)).as_secs_f64();
            let slack = plain * 1e-6 + 1e-6;
            prop_assert!(delay >= plain * (1.0 - jitter) - slack, "{delay} too short for {plain}");
            prop_assert!(delay <= plain * (1.0 + jitter) + slack, "{delay} too long for {plain}");
        }

        #[test]
        fn without_jitter_delays_never_shrink_and_reach_the_cap(
            initial in 1_u64..1_000,
            multiplier in 1.5_f64..8.0,
            max in 1_000_u64..1_000_000,
        ) {
            let policy = RetryPolicy::new(
                Duration::from_millis(initial), multiplier, Duration::from_millis(max), 0.0);
            let mut source = Jitter::seeded(1);
            let delays: Vec<_> = (1..60).map(|n| policy.delay(n, &mut source)).collect();
            prop_assert!(delays.windows(2).all(|pair| pair[0] <= pair[1]), "{delays:?}");
            prop_assert_eq!(delays[0], Duration::from_millis(initial));
            prop_assert_eq!(*delays.last().unwrap(), Duration::from_millis(max));
        }

        #[test]
        fn jitter_is_repeatable_and_covers_its_range(seed in any::<u64>()) {
            let draw = |seed| {
                let mut source = Jitter::seeded(seed);
                std::iter::repeat_with(move || source.next()).take(400).collect::<Vec<_>>()
            };
            let values = draw(seed);
            prop_assert_eq!(&values, &draw(seed));
            prop_assert!(values.iter().all(|v| (-1.0..1.0).contains(v)));
            prop_assert!(values.iter().any(|v| *v < -0.8) && values.iter().any(|v| *v > 0.8));
        }
    }

    #[test]
    fn the_documented_defaults_double_up_to_five_minutes() {
        let policy = RetryPolicy::new(Duration::from_secs(1), 2.0, Duration::from_secs(300), 0.0);
        let seconds: Vec<_> = (0..12)
            .map(|n| policy.delay(n, &mut Jitter::seeded(7)).as_secs())
            .collect();
        assert_eq!(seconds, [1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    }

    #[test]
    fn two_processes_do_not_share_their_jitter() {
        assert_ne!(Jitter::random().next(), Jitter::random().next());
    }
}
