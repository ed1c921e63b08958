//! Settlements between the engine and the settler: kept until there is enough for a commit, so that
//! the settler is not woken for each.

use tokio::sync::mpsc;

use super::event::tell;
use super::pace::Pace;
use crate::relay::rules::Settlement;
use crate::runtime::Moment;

/// Settlements that are decided and not handed over yet.
pub(super) struct Tray {
    pace: Pace,
    waiting: Vec<Settlement>,
    settler: mpsc::UnboundedSender<Vec<Settlement>>,
}

impl Tray {
    pub(super) fn new(pace: Pace, settler: mpsc::UnboundedSender<Vec<Settlement>>) -> Self {
        Self {
            pace,
            waiting: Vec::new(),
            settler,
        }
    }

    pub(super) fn add(&mut self, mut settlements: Vec<Settlement>) {
        self.waiting.append(&mut settlements);
    }

    /// When they are to be handed over; `None` if there are none.
    pub(super) fn due(&self) -> Option<Moment> {
        self.pace.due(&self.waiting)
    }

    /// Hands them over if it is time to.
    pub(super) fn hand_over(&mut self, now: Moment) {
        if self.due().is_some_and(|due| due <= now) {
            self.pace.begins(now);
            tell(&self.settler, std::mem::take(&mut self.waiting));
        }
    }

    /// From here on nothing waits for more.
    pub(super) fn hurry(&mut self) {
        self.pace.hurry();
    }
}
