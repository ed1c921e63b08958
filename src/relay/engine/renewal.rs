//! When a channel on which something was refused is opened anew. Decides; waits for nothing.
//!
//! A quorum queue that is full tells each channel once that it refuses, and the channel refuses from then
//! on by itself until it hears that there is room. Where the limit was taken away and nothing was
//! consumed, it never hears of it (RabbitMQ issue 12206): only a new channel asks the queue.

use std::time::Duration;

use crate::runtime::Moment;

/// A channel lasts so long at least.
const EVERY: Duration = Duration::from_secs(10);

/// So long nothing new is taken, for what is under way to be judged. If it is not by then, the
/// channel goes on for as long as before: nobody is to wait for a queue that does not answer.
const DRAINS_FOR: Duration = Duration::from_millis(200);

/// What the channel is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Go on, and ask again then.
    GoOn(Moment),
    /// Take nothing new, and ask again then or when all is judged.
    Drain(Moment),
    /// End: nothing is under way, and a new one is wanted.
    End,
}

/// One channel's age and whether anything was refused on it.
#[derive(Debug)]
pub(super) struct Renewal {
    at: Moment,
    refused: bool,
}

impl Renewal {
    /// Of a channel that was just opened.
    pub(super) fn opened(now: Moment) -> Self {
        Self {
            at: now + EVERY,
            refused: false,
        }
    }

    pub(super) fn refused(&mut self) {
        self.refused = true;
    }

    pub(super) fn step(&mut self, under_way: usize, now: Moment) -> Step {
        if !self.refused {
            return Step::GoOn(Moment::NEVER);
        }
        if now < self.at {
            return Step::GoOn(self.at);
        }
        if under_way == 0 {
            return Step::End;
        }
        let drained_by = self.at + DRAINS_FOR;
        if now < drained_by {
            return Step::Drain(drained_by);
        }
        self.at = now + EVERY;
        Step::GoOn(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENED: Moment = Moment::from_origin(Duration::from_secs(100));
    const DUE: Moment = Moment::from_origin(Duration::from_secs(110));

    fn refused() -> Renewal {
        let mut renewal = Renewal::opened(OPENED);
        renewal.refused();
        renewal
    }

    #[test]
    fn a_channel_on_which_nothing_was_refused_lasts() {
        let mut renewal = Renewal::opened(OPENED);
        let later = DUE + Duration::from_secs(1_000);
        assert_eq!(renewal.step(0, later), Step::GoOn(Moment::NEVER));
    }

    #[test]
    fn one_that_is_young_goes_on_for_a_while() {
        assert_eq!(refused().step(0, OPENED), Step::GoOn(DUE));
    }

    #[test]
    fn one_with_nothing_under_way_ends_and_others_drain_first() {
        let mut renewal = refused();
        assert_eq!(renewal.step(3, DUE), Step::Drain(DUE + DRAINS_FOR));
        assert_eq!(renewal.step(0, DUE), Step::End);
    }

    #[test]
    fn nobody_waits_long_for_a_queue_that_does_not_answer() {
        let mut renewal = refused();
        let given_up = DUE + DRAINS_FOR;
        let next = given_up + EVERY;
        assert_eq!(renewal.step(1, given_up), Step::GoOn(next));
        assert_eq!(renewal.step(0, given_up), Step::GoOn(next));
        assert_eq!(renewal.step(0, next), Step::End);
    }
}
