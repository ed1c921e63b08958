//! Settings that change while the relay runs.

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::event::{Event, Events};
use crate::relay::rules::FlowLimits;

/// Reaches into a running relay. Clones reach into the same one.
#[derive(Clone, Debug)]
pub struct Adjuster(watch::Sender<FlowLimits>);

impl Adjuster {
    pub(super) fn new(limits: FlowLimits) -> Self {
        Self(watch::Sender::new(limits))
    }

    /// From soon on attempts are repeated by these rules. What bounds memory and channels needs
    /// a restart and is left alone.
    pub fn adjust(&self, limits: FlowLimits) {
        self.0.send_replace(limits);
    }

    /// Tells the engine of each change.
    pub(super) async fn forward(self, events: Events, stop: CancellationToken) {
        let mut limits = self.0.subscribe();
        while let Some(Ok(())) = stop.run_until_cancelled(limits.changed()).await {
            let limits = limits.borrow_and_update().clone();
            events.report(Event::Adjusted(limits));
        }
    }
}
