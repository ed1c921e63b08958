//! A bounded number of lines in the log about one thing.

use std::time::Duration;

use tracing::warn;

use crate::runtime::Moment;

/// So many lines in so long.
const LINES: u32 = 6;
const SPAN: Duration = Duration::from_secs(60);

/// How much may be said about one thing.
#[derive(Debug)]
pub(super) struct Ration {
    /// Said of what was left unsaid.
    rest: &'static str,
    since: Moment,
    said: u32,
    unsaid: u64,
}

impl Ration {
    pub(super) fn new(rest: &'static str) -> Self {
        Self {
            rest,
            since: Moment::ORIGIN,
            said: 0,
            unsaid: 0,
        }
    }

    /// Tells how many there were beyond those that were named, once their time is over.
    pub(super) fn count(&mut self, now: Moment) {
        if self.unsaid > 0 && now.since(self.since) >= SPAN {
            warn!(count = self.unsaid, "{}", self.rest);
            self.unsaid = 0;
        }
    }

    /// May one more line be said?
    pub(super) fn may_speak(&mut self, now: Moment) -> bool {
        if now.since(self.since) >= SPAN {
            self.count(now);
            *self = Self {
                since: now,
                ..Self::new(self.rest)
            };
        }
        if self.said < LINES {
            self.said += 1;
            return true;
        }
        self.unsaid += 1;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_is_a_few_lines_a_minute() {
        let mut ration = Ration::new("more");
        let start = Moment::from_origin(SPAN * 5);
        let spoken = (0..1000).filter(|_| ration.may_speak(start)).count();
        assert_eq!(spoken, LINES as usize);
        assert!(ration.may_speak(start + SPAN));
        assert_eq!(ration.unsaid, 0);
    }

    #[test]
    fn what_was_not_named_is_counted_though_nothing_more_comes() {
        let mut ration = Ration::new("more");
        let start = Moment::from_origin(SPAN * 5);
        assert!((0..30).filter(|_| ration.may_speak(start)).count() < 30);
        ration.count(start + SPAN / 2);
        assert!(ration.unsaid > 0, "more may come");
        ration.count(start + SPAN);
        assert_eq!(ration.unsaid, 0);
    }
}
