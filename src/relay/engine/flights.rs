//! Publications under way, for telling how long they took. Decides nothing.

use std::sync::Arc;
use std::time::SystemTime;

use super::observer::{Fate, Landing, Observer};
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
        let fates = outcomes.iter().map(|(id, outcome)| match outcome {
            Outcome::Confirmed(_) => (*id, Fate::Confirmed),
            Outcome::Returned { .. } => (*id, Fate::Returned),
            Outcome::Nacked => (*id, Fate::Nacked),
        });
        self.end(fates, now, wall)
    }

    /// Nobody knows what became of these.
    pub(super) fn lose(&mut self, unknown: &[RowId], now: Moment) {
        let fates = unknown.iter().map(|id| (*id, Fate::Unknown));
        self.end(fates, now, SystemTime::UNIX_EPOCH);
    }

    fn end(
        &mut self,
        fates: impl Iterator<Item = (RowId, Fate)>,
        now: Moment,
        wall: SystemTime,
    ) -> bool {
        let known = fates.filter_map(|(id, fate)| Some((self.under_way.remove(&id)?, fate)));
        let ended: Vec<_> = known.collect();
        let mut landings = Vec::with_capacity(ended.len());
        for ((publication, since), fate) in &ended {
            // Two machines' clocks: one that is ahead makes no negative time.
            let written = || {
                wall.duration_since(publication.created_at())
                    .unwrap_or_default()
            };
            landings.push(Landing {
                row: publication.id(),
                exchange: publication.exchange().as_str(),
                fate: *fate,
                took: now.since(*since),
                since_written: (*fate == Fate::Confirmed).then(written),
            });
        }
        self.observer.landed(&landings);
        landings.iter().any(|one| one.fate == Fate::Confirmed)
    }
}
