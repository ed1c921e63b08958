//! The board: what the engine holds back, posted for whoever tells of this relay.

use std::time::Duration;

use tokio::sync::watch;

use crate::relay::rules::{Flow, HeldBack};
use crate::runtime::Moment;

/// At most so often.
const CALM: Duration = Duration::from_secs(1);

/// What is posted, as others see it.
pub(super) type Posted = watch::Receiver<Vec<HeldBack>>;

/// Posts, at most once a second.
pub(super) struct Board {
    posted: watch::Sender<Vec<HeldBack>>,
    at: Moment,
    /// Why there is no connection apart, though there should be.
    apart: Option<String>,
}

impl Board {
    pub(super) fn new() -> (Self, Posted) {
        let (posted, seen) = watch::channel(Vec::new());
        let board = Self {
            posted,
            at: Moment::ORIGIN,
            apart: None,
        };
        (board, seen)
    }

    /// A connection apart could be made, or not, and why.
    pub(super) fn apart(&mut self, trouble: Option<String>) {
        self.apart = trouble;
    }

    /// Posts what is held back.
    pub(super) fn post(&mut self, flow: &Flow, now: Moment) {
        if now < self.at + CALM {
            return;
        }
        self.at = now;
        let all = HeldBack::told(flow.held_back(self.apart.as_deref(), now));
        self.posted.send_if_modified(|posted| {
            let changed = *posted != all;
            *posted = all;
            changed
        });
    }
}
