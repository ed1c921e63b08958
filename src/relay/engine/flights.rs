//! Publications under way, for telling how long they took. Decides nothing.

use std::sync::Arc;

use tracing::trace;

use super::observer::{Fate, Landing, Observer};
use crate::broker::Outcome;
use crate::message::{Publication, RowId};
use crate::runtime::{Map, Moment};

/// What was handed to channels and has not met its fate.
pub(super) struct Flights {
    observer: Arc<dyn Observer>,
    under_way: Map<RowId, Flight>,
}

struct Flight {
    publication: Arc<Publication>,
    began: Moment,
    /// Since when its row could have been sent.
    due: Moment,
}

impl Flights {
    pub(super) fn new(observer: Arc<dyn Observer>) -> Self {
        Self {
            observer,
            under_way: Map::default(),
        }
    }

    /// A batch is handed to a channel. `due` says since when a row could have been sent.
    pub(super) fn take_off(
        &mut self,
        batch: &[Arc<Publication>],
        due: impl Fn(RowId) -> Moment,
        now: Moment,
    ) {
        let flights = batch.iter().map(|publication| {
            trace!(row = publication.id().0, "publishing");
            let flight = Flight {
                publication: Arc::clone(publication),
                began: now,
                due: due(publication.id()),
            };
            (publication.id(), flight)
        });
        self.under_way.extend(flights);
    }

    /// These are certain. Tells whether any was routed and confirmed.
    pub(super) fn land(&mut self, outcomes: &[(RowId, Outcome)], now: Moment) -> bool {
        let fates = outcomes.iter().map(|(id, outcome)| match outcome {
            Outcome::Confirmed(_) => (*id, Fate::Confirmed),
            Outcome::Returned { .. } => (*id, Fate::Returned),
            Outcome::Nacked => (*id, Fate::Nacked),
        });
        self.end(fates, now)
    }

    /// Nobody knows what became of these.
    pub(super) fn lose(&mut self, unknown: &[RowId], now: Moment) {
        let fates = unknown.iter().map(|id| (*id, Fate::Unknown));
        self.end(fates, now);
    }

    fn end(&mut self, fates: impl Iterator<Item = (RowId, Fate)>, now: Moment) -> bool {
        let known = fates.filter_map(|(id, fate)| Some((self.under_way.remove(&id)?, fate)));
        let ended: Vec<_> = known.collect();
        let mut landings = Vec::with_capacity(ended.len());
        for (flight, fate) in &ended {
            let row = flight.publication.id().0;
            trace!(row, fate = fate.as_str(), "a publication met its fate");
            let Flight {
                publication,
                began,
                due,
            } = flight;
            landings.push(Landing {
                row: publication.id(),
                exchange: publication.exchange().as_str(),
                fate: *fate,
                took: now.since(*began),
                since_due: (*fate == Fate::Confirmed).then(|| now.since(*due)),
            });
        }
        self.observer.landed(&landings);
        landings.iter().any(|one| one.fate == Fate::Confirmed)
    }
}
