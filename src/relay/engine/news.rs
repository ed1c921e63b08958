//! What of an outage is worth a line in the log. Bounded, however often connections are made and
//! lost meanwhile.

use std::time::Duration;

use crate::runtime::Moment;

/// The same reason is told so often, and another one so soon.
const AGAIN: Duration = Duration::from_secs(30);
const CHANGED: Duration = Duration::from_secs(10);

/// What was said of one server lately.
#[derive(Debug, Default)]
pub(super) struct News {
    /// The last failure that was told, and when.
    told: Option<(Moment, String)>,
    /// A success was told after it.
    over: bool,
}

impl News {
    /// Is this failure worth a line in the log? A first one is, one for another reason soon, the
    /// same again now and then.
    pub(super) fn is_failure_news(&mut self, reason: &str, now: Moment) -> bool {
        let news = self.told.as_ref().is_none_or(|(at, before)| {
            let pause = if before == reason { AGAIN } else { CHANGED };
            now.since(*at) >= pause
        });
        if news {
            self.told = Some((now, reason.to_owned()));
            self.over = false;
        }
        news
    }

    /// Is a success worth a line? The first is, and one after a failure that was told.
    pub(super) fn is_success_news(&mut self) -> bool {
        !std::mem::replace(&mut self.over, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(seconds))
    }

    #[test]
    fn an_outage_is_told_at_its_beginning_at_its_end_and_now_and_then() {
        let mut news = News::default();
        assert!(news.is_success_news(), "the start");
        let told: Vec<u64> = (100..220)
            .filter(|now| news.is_failure_news("refused", at(*now)))
            .collect();
        assert_eq!(told, [100, 130, 160, 190]);
        assert!(news.is_success_news(), "the end");
        assert!(!news.is_success_news());
    }

    #[test]
    fn another_reason_is_told_sooner() {
        let mut news = News::default();
        assert!(news.is_failure_news("closed", at(0)));
        let told: Vec<u64> = (1..40)
            .filter(|now| news.is_failure_news("refused", at(*now)))
            .collect();
        assert_eq!(told, [10]);
    }

    #[test]
    fn a_server_that_comes_and_goes_does_not_fill_the_log() {
        let mut news = News::default();
        let lines = (0..600).map(|second| {
            let lost = news.is_failure_news("closed", at(second));
            u32::from(lost) + u32::from(news.is_success_news())
        });
        assert_eq!(lines.sum::<u32>(), 2 * 600 / 30);
    }
}
