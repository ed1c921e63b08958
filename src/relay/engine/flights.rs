//! Publications under way, for telling how long they took. Decides nothing.

use std::sync::Arc;
use std::time::SystemTime;

use super::observer::{Fate, Observer};
use crate::broker::Outcome;
use crate::message::{Publication, RowId};
use crate::runtime::{Map, Moment};

/// What was handed to channels and has not met its fate.
pub(super) struct Flights {
    observer: Arc<dyn Observer>,
    under_way: Map<RowId, (Arc<Publication>, Moment)>,
}

impl Flights {
    pub(super) fn new(observer: Arc<dyn Observer>) -> Self {
        Self {
            observer,
            under_way: Map::default(),
        }
    }

    /// A batch is handed to a channel.
    pub(super) fn take_off(&mut self, batch: &[Arc<Publication>], now: Moment) {
        let flights = batch
            .iter()
            .map(|publication| (publication.id(), (Arc::clone(publication), now)));
        self.under_way.extend(flights);
    }

    /// These are certain. `wall` is for the time since a row was written. Tells whether any was
    /// routed and confirmed.
    pub(super) fn land(
        &mut self,
        outcomes: &[(RowId, Outcome)],
        now: Moment,
        wall: SystemTime,
    ) -> bool {
        let mut any = false;
        for (id, outcome) in outcomes {
            let fate = match outcome {
                Outcome::Confirmed(_) => Fate::Confirmed,
                Outcome::Returned { .. } => Fate::Returned,
                Outcome::Nacked => Fate::Nacked,
            };
            let Some(publication) = self.end(*id, fate, now) else {
                continue;
            };
            if fate == Fate::Confirmed {
                any = true;
                // Two machines' clocks: one that is ahead makes no negative time.
                let since = wall.duration_since(publication.created_at());
                self.observer.delivered(*id, since.unwrap_or_default());
            }
        }
        any
    }

    /// Nobody knows what became of these.
    pub(super) fn lose(&mut self, unknown: &[RowId], now: Moment) {
        for id in unknown {
            self.end(*id, Fate::Unknown, now);
        }
    }

    fn end(&mut self, id: RowId, fate: Fate, now: Moment) -> Option<Arc<Publication>> {
        let (publication, since) = self.under_way.remove(&id)?;
        let exchange = publication.exchange().as_str();
        self.observer.published(exchange, fate, now.since(since));
        Some(publication)
    }
}
