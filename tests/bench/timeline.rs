//! How many rows relays have confirmed at which time, as their own metrics tell.

use std::time::Duration;

use outbox_relay::runtime::{Clock, Moment};
use tokio::time::{MissedTickBehavior, interval};

use crate::figure::median;
use crate::support::PATIENCE;
use crate::support::relay::Relay;

/// How often is asked.
const LOOK: Duration = Duration::from_millis(50);
/// Over how many looks a rate is taken.
const WINDOW: usize = 10;
/// Of the usual rate: what counts as full speed.
const FULL: f64 = 0.9;

/// Looks at relays, one after the other.
pub struct Timeline(Vec<(Duration, f64)>);

impl Timeline {
    /// Looks until so many rows are confirmed; times count from `begun`.
    ///
    /// # Panics
    /// If no row is for a long time.
    pub async fn until(relays: &[&Relay], rows: i64, begun: Moment) -> Self {
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut looks, mut last, mut moved) = (Vec::new(), 0.0, Clock.now());
        while last < rows as f64 {
            ticks.tick().await;
            let confirmed = confirmed(relays).await;
            let now = Clock.now();
            looks.push((now.since(begun), confirmed));
            if confirmed > last {
                (last, moved) = (confirmed, now);
            }
            assert!(now.since(moved) < PATIENCE, "stuck at {last} rows");
        }
        Self(looks)
    }

    /// When something was confirmed.
    pub fn first(&self) -> f64 {
        self.since(|confirmed| confirmed > 0.0)
    }

    /// When all was confirmed.
    pub fn last(&self) -> f64 {
        let (at, _) = self.0.last().expect("a look");
        at.as_secs_f64()
    }

    fn since(&self, reached: impl Fn(f64) -> bool) -> f64 {
        let look = self.0.iter().find(|(_, confirmed)| reached(*confirmed));
        look.expect("a confirm").0.as_secs_f64()
    }

    /// From where on it first went about as fast as it usually did.
    pub fn full_speed(&self) -> f64 {
        let first = self.0.iter().position(|(_, confirmed)| *confirmed > 0.0);
        let looks = &self.0[first.expect("a confirm")..];
        let rate = |window: &[(Duration, f64)]| {
            let (from, to) = (window[0], window[window.len() - 1]);
            (to.1 - from.1) / (to.0 - from.0).as_secs_f64()
        };
        let windows = || looks.windows(WINDOW.min(looks.len()));
        if looks.len() < 2 {
            return self.first();
        }
        let usual = median(&windows().map(rate).collect::<Vec<_>>());
        let full = windows().find(|window| rate(window) >= FULL * usual);
        full.expect("the usual is reached")[0].0.as_secs_f64()
    }
}

/// By all of them together.
async fn confirmed(relays: &[&Relay]) -> f64 {
    let mut sum = 0.0;
    for relay in relays {
        // Nobody answers before it has started.
        let page = relay.get("/metrics").await;
        let page = page.map(|(_, page)| page).unwrap_or_default();
        let wanted = |line: &&str| {
            line.starts_with("outbox_relay_publishes_total{")
                && line.contains("outcome=\"confirmed\"")
        };
        let values = page.lines().filter(wanted);
        sum += values
            .map(|line| line.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok()))
            .map(|value| value.expect("a number"))
            .sum::<f64>();
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_speed_is_where_the_usual_rate_begins() {
        // Nothing for a second, slow for another one, then steady.
        let confirmed = |look: u32| match look {
            0..20 => 0.0,
            20..40 => f64::from(look - 19),
            _ => 20.0 + 100.0 * f64::from(look - 39),
        };
        let looks = (0..200).map(|look| (LOOK * look, confirmed(look)));
        let timeline = Timeline(looks.collect());
        assert!((timeline.first() - 1.0).abs() < 1e-9);
        let full = timeline.full_speed();
        assert!((1.9..2.1).contains(&full), "{full}");
    }
}
