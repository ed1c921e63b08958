//! When rows that wait are to be looked for.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use crate::runtime::Moment;

/// Times within such a span count as one, its end, so that many rows take little room.
const GRAIN: Duration = Duration::from_millis(50);

/// Times at which rows fall due that this relay made wait. A hint: others may have made some wait,
/// and polls find those.
#[derive(Debug, Default)]
pub(super) struct Dues(BTreeSet<Moment>);

impl Dues {
    /// A row falls due then.
    pub(super) fn expect(&mut self, at: Moment) {
        let nanos = at.since(Moment::ORIGIN).as_nanos();
        let spans = u32::try_from(nanos.div_ceil(GRAIN.as_nanos())).unwrap_or(u32::MAX);
        self.0.insert(Moment::ORIGIN + GRAIN * spans);
    }

    /// The first of them.
    pub(super) fn next(&self) -> Option<Moment> {
        self.0.first().copied()
    }

    /// The first that is still to come.
    pub(super) fn next_after(&self, now: Moment) -> Option<Moment> {
        self.0.range((Excluded(now), Unbounded)).next().copied()
    }

    /// A look begins that finds what fell due until now. One that rests first may be woken before
    /// what it would have found.
    pub(super) fn looked(&mut self, now: Moment) {
        while self.next().is_some_and(|due| due <= now) {
            self.0.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(millis))
    }

    #[test]
    fn each_is_looked_for_and_those_near_each_other_together() {
        let mut dues = Dues::default();
        for millis in [1_000, 990, 2_001, 2_010] {
            dues.expect(at(millis));
        }
        assert_eq!(dues.next(), Some(at(1_000)));
        dues.looked(at(999));
        assert_eq!(dues.next(), Some(at(1_000)));
        assert_eq!(dues.next_after(at(1_000)), Some(at(2_050)));
        dues.looked(at(1_000));
        assert_eq!(dues.next(), Some(at(2_050)));
        dues.looked(at(2_050));
        assert_eq!(dues.next(), None);
    }
}
