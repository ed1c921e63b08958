//! Tells what is paused, and what that makes of this relay. The flow is what obeys.

use tracing::info;

use crate::relay::rules::Pause;
use crate::runtime::condition::Role;

/// What is paused, by the last read.
#[derive(Default)]
pub(super) struct Obedience(Vec<Pause>);

impl Obedience {
    /// A read came. Returns this relay's new part if something has changed.
    pub(super) fn heard(&mut self, pauses: &[Pause]) -> Option<Role> {
        if self.0 == pauses {
            return None;
        }
        for pause in pauses.iter().filter(|pause| !self.0.contains(pause)) {
            let (by, reason) = (&pause.by, &pause.reason);
            info!(what = what(pause), by, reason, "paused");
        }
        for pause in self.0.iter().filter(|pause| !pauses.contains(pause)) {
            info!(what = what(pause), "resumed");
        }
        self.0 = pauses.to_vec();
        let everything = pauses.iter().find(|pause| pause.exchange.is_none());
        let told = |pause: &Pause| format!("paused by {}: {}", pause.by, pause.reason);
        Some(everything.map_or(Role::Active, |pause| Role::Paused(told(pause))))
    }
}

fn what(pause: &Pause) -> String {
    match pause.exchange.as_deref() {
        None => "everything".to_owned(),
        Some("") => "the default exchange".to_owned(),
        Some(exchange) => format!("exchange {exchange}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pause_of_everything_changes_the_relay_s_part_and_only_once() {
        let pause = |exchange: Option<&str>| Pause {
            exchange: exchange.map(str::to_owned),
            by: "ann".to_owned(),
            reason: "upgrade".to_owned(),
        };
        let mut obedience = Obedience::default();
        assert_eq!(obedience.heard(&[]), None);
        let one = [pause(Some("orders"))];
        assert_eq!(obedience.heard(&one), Some(Role::Active));
        let all = [pause(Some("orders")), pause(None)];
        let paused = Role::Paused("paused by ann: upgrade".to_owned());
        assert_eq!(obedience.heard(&all), Some(paused));
        assert_eq!(obedience.heard(&all), None);
        assert_eq!(obedience.heard(&[]), Some(Role::Active));
    }
}
