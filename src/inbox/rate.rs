//! At most so many starts per second. Pure: `now` is a parameter.

use std::time::Duration;

use crate::runtime::Moment;

/// Spaces starts evenly: a pause is not saved up for a burst.
#[derive(Debug)]
pub(super) struct Rate {
    interval: Duration,
    next: Moment,
}

impl Rate {
    /// So many per second; `None` for no limit.
    pub(super) fn new(per_second: Option<f64>) -> Self {
        let interval =
            per_second.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(1.0 / rate));
        Self {
            interval,
            next: Moment::ORIGIN,
        }
    }

    /// Whether there is a limit at all.
    pub(super) fn limits(&self) -> bool {
        self.interval > Duration::ZERO
    }

    /// How long until the next start is allowed.
    pub(super) fn pause(&self, now: Moment) -> Duration {
        now.until(self.next)
    }

    /// Something was started.
    pub(super) fn started(&mut self, now: Moment) {
        self.next = now.max(self.next) + self.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(millis))
    }

    #[test]
    fn starts_are_spaced_and_a_pause_is_not_saved_up() {
        let mut rate = Rate::new(Some(4.0));
        assert_eq!(rate.pause(at(1000)), Duration::ZERO);
        rate.started(at(1000));
        assert_eq!(rate.pause(at(1100)), Duration::from_millis(150));
        rate.started(at(9000));
        assert_eq!(rate.pause(at(9000)), Duration::from_millis(250));
    }

    #[test]
    fn without_a_limit_nothing_waits() {
        let mut rate = Rate::new(None);
        rate.started(at(5));
        assert_eq!(rate.pause(at(5)), Duration::ZERO);
        assert!(!rate.limits());
    }
}
