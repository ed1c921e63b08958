//! A point in time as the pure rules see it: a number that only grows, handed in by the caller.
//!
//! Reads no clock; that is `clock`'s work. Two moments compare only if they come from one clock
//! of one process: the origin is arbitrary and means nothing elsewhere.

use std::ops::Add;
use std::time::Duration;

/// A point on one process's own time line. The rules take one as `now`; tests make them up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// The arbitrary beginning.
    pub const ORIGIN: Self = Self(Duration::ZERO);
    /// Later than everything: a deadline that never comes.
    pub const NEVER: Self = Self(Duration::MAX);

    /// The moment so long after the origin.
    #[must_use]
    pub const fn from_origin(elapsed: Duration) -> Self {
        Self(elapsed)
    }

    /// How long after the origin this is.
    #[must_use]
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// `None` when the sum cannot be expressed.
    #[must_use]
    pub fn checked_add(self, span: Duration) -> Option<Self> {
        self.0.checked_add(span).map(Self)
    }

    /// `None` when the result would lie before the origin.
    #[must_use]
    pub fn checked_sub(self, span: Duration) -> Option<Self> {
        self.0.checked_sub(span).map(Self)
    }

    /// Time from `earlier` to this moment, `None` if `earlier` is in fact later.
    #[must_use]
    pub fn checked_since(self, earlier: Self) -> Option<Duration> {
        self.0.checked_sub(earlier.0)
    }

    /// Time from `earlier` to this moment, zero if `earlier` is in fact later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Time from this moment until `later`, zero once it has come.
    #[must_use]
    pub fn until(self, later: Self) -> Duration {
        later.since(self)
    }
}

/// Stops at [`Moment::NEVER`], so a deadline made from a huge setting is simply never reached.
impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_span_added_is_the_span_measured() {
        let start = Moment::from_origin(Duration::from_millis(250));
        let end = start + SECOND;
        assert_eq!(end.since(start), SECOND);
        assert_eq!(start.until(end), SECOND);
        assert_eq!(end.checked_sub(SECOND), Some(start));
    }

    #[test]
    fn time_never_runs_backwards() {
        let earlier = Moment::ORIGIN;
        let later = earlier + SECOND;
        assert_eq!(earlier.since(later), Duration::ZERO);
        assert_eq!(earlier.checked_since(later), None);
        assert_eq!(earlier.checked_sub(SECOND), None);
    }

    #[test]
    fn a_deadline_beyond_the_end_of_time_is_never() {
        assert_eq!(Moment::ORIGIN + SECOND + Duration::MAX, Moment::NEVER);
        assert_eq!(Moment::NEVER.checked_add(SECOND), None);
    }
}
