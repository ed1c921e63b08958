//! When the next settlement is due: a moment's worth of confirms is written down together.
//!
//! Each settlement is a commit in the application's database, with a flush of its log. At a steady
//! thousand rows a second nearly every row would have one of its own, and nobody waits for it: a
//! key's next row follows the confirm. What a key does wait for is never delayed, nor is the first
//! settlement after a pause. Decides; waits for nothing.

use std::time::Duration;

use crate::relay::rules::Settlement;
use crate::runtime::Moment;

/// Two settlements begin so long apart, unless there is enough for another or somebody waits for
/// it. Rows that are confirmed and not marked are sent again after a crash, so it is short.
const APART: Duration = Duration::from_millis(10);

/// So many rows are enough at once; their number hides what a commit costs.
const ENOUGH: usize = 250;

/// Of the rows that may be under way, one part in so many is enough too: rows that are not
/// settled count, and publishing must not wait for this.
const PART: usize = 4;

/// Decides when to settle.
#[derive(Debug)]
pub(super) struct Pace {
    enough: usize,
    last: Moment,
    hurried: bool,
}

impl Pace {
    pub(super) fn new(max_in_flight: usize) -> Self {
        Self {
            enough: ENOUGH.min(max_in_flight / PART),
            last: Moment::ORIGIN,
            hurried: false,
        }
    }

    /// When these are to be settled; `None` if there are none.
    pub(super) fn due(&self, waiting: &[Settlement]) -> Option<Moment> {
        if waiting.is_empty() {
            return None;
        }
        let at_once = self.hurried
            || waiting.len() >= self.enough
            // What waits, or is given up, holds its key until that is durable.
            || waiting.iter().any(|one| !one.verdict.is_anybody_s());
        Some(if at_once {
            Moment::ORIGIN
        } else {
            self.last + APART
        })
    }

    /// A settlement begins.
    pub(super) fn begins(&mut self, now: Moment) {
        self.last = now;
    }

    /// Nothing more will come.
    pub(super) fn hurry(&mut self) {
        self.hurried = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Confirmed;
    use crate::message::{ReasonClass, RowId};
    use crate::relay::rules::{Partition, Ticket, Verdict};

    const BEGUN: Moment = Moment::from_origin(Duration::from_secs(9));

    fn settlement(verdict: Verdict) -> Settlement {
        Settlement {
            id: RowId(1),
            partition: Partition(0),
            fingerprint: None,
            ticket: Ticket(1),
            verdict,
        }
    }

    fn sent(rows: usize) -> Vec<Settlement> {
        let sent = |_| settlement(Verdict::Sent(Confirmed::simulated()));
        (0..rows).map(sent).collect()
    }

    fn begun(max_in_flight: usize) -> Pace {
        let mut pace = Pace::new(max_in_flight);
        pace.begins(BEGUN);
        pace
    }

    #[test]
    fn a_few_rows_wait_for_more_and_the_first_after_a_pause_does_not() {
        assert_eq!(begun(1000).due(&[]), None);
        let due = begun(1000).due(&sent(1)).expect("something waits");
        assert_eq!(due, BEGUN + APART);
        assert!(Pace::new(1000).due(&sent(1)) <= Some(BEGUN));
    }

    #[test]
    fn enough_rows_wait_for_nothing() {
        for (max_in_flight, enough) in [(1, 1), (100, 25), (1000, 250), (100_000, ENOUGH)] {
            let pace = begun(max_in_flight);
            assert_eq!(
                pace.due(&sent(enough)),
                Some(Moment::ORIGIN),
                "{max_in_flight}"
            );
        }
        assert_eq!(begun(1000).due(&sent(249)), Some(BEGUN + APART));
    }

    #[test]
    fn what_a_key_waits_for_takes_everything_along_at_once() {
        let mut waiting = sent(3);
        waiting.push(settlement(Verdict::RetryAt {
            delay: Duration::from_secs(1),
            attempts: 0,
            class: ReasonClass::Unroutable,
            error: "returned".to_owned(),
        }));
        assert_eq!(begun(1000).due(&waiting), Some(Moment::ORIGIN));
    }

    #[test]
    fn at_the_end_nothing_waits() {
        let mut pace = begun(1000);
        pace.hurry();
        assert_eq!(pace.due(&sent(1)), Some(Moment::ORIGIN));
    }
}
