//! The only place that asks the operating system what time it is.
//!
//! Everything else takes `now` as a parameter or holds a [`Clock`]; a lint forbids std's clocks.

use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

use super::Moment;

/// The machine's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock;

impl Clock {
    /// Now, by `CLOCK_BOOTTIME`: steady, untouched by changes of the wall clock, and, unlike
    /// `CLOCK_MONOTONIC`, running on while the machine is suspended (clock_gettime(2)). A lease
    /// judged by a clock that sleeps would still look valid after a resume.
    #[must_use]
    pub fn now(self) -> Moment {
        let time = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
        Moment::from_origin(Duration::new(seconds, nanos))
    }

    /// Processor time of this process so far, for measuring.
    #[must_use]
    pub fn cpu(self) -> Duration {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
        Duration::new(seconds, nanos)
    }

    /// The wall clock, for what people and other systems read. Never for deciding anything: it
    /// may jump.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "this is the one place")]
    pub fn wall(self) -> SystemTime {
        SystemTime::now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn now_never_goes_back() {
        let mut last = Clock.now();
        for _ in 0..10_000 {
            let now = Clock.now();
            assert!(now >= last);
            last = now;
        }
        assert!(last > Moment::ORIGIN);
    }
}
