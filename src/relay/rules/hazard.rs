//! Which rows and destinations may cost a connection.
//!
//! A row that ended one is a convict, and its destination is hazardous for a while: its rows go on a
//! connection of their own, one by one, so that the next of their kind costs nobody else's. Where row
//! after row does it, none gets through between, it may be the destination's fault.

use std::time::Duration;

use crate::message::RowId;
use crate::runtime::{Map, Moment};

/// So long after it last cost a connection a destination is taken for harmless.
const SUSPICION: Duration = Duration::from_secs(300);

/// So many new convicts in a row, and it is taken for the destination's fault.
const IN_A_ROW: u32 = 5;

/// Convicts that are remembered. One that is forgotten costs another connection.
const REMEMBERED: usize = 10_000;

#[derive(Debug)]
struct Hazard {
    until: Moment,
    in_a_row: u32,
}

/// What is known of them.
#[derive(Debug, Default)]
pub(super) struct Hazards {
    destinations: Map<u64, Hazard>,
    /// How often each was tried.
    convicts: Map<RowId, u32>,
}

impl Hazards {
    /// This row to this destination alone ended a connection. `known` if it was charged before.
    /// Returns how often it did, and whether the destination is to be blamed as well.
    pub(super) fn convict(
        &mut self,
        id: RowId,
        destination: u64,
        known: bool,
        now: Moment,
    ) -> (u32, bool) {
        if self.convicts.len() >= REMEMBERED {
            self.convicts.clear();
        }
        let times = self.convicts.entry(id).or_default();
        let new = *times == 0 && !known;
        *times += 1;
        let hazard = self.destinations.entry(destination).or_insert(Hazard {
            until: now,
            in_a_row: 0,
        });
        hazard.until = now + SUSPICION;
        hazard.in_a_row += u32::from(new);
        (*times, new && hazard.in_a_row >= IN_A_ROW)
    }

    /// Did this row end a connection?
    pub(super) fn is_convict(&self, id: RowId) -> bool {
        self.convicts.contains_key(&id)
    }

    /// May a row to this destination cost its connection?
    pub(super) fn is_hazardous(&self, destination: u64, now: Moment) -> bool {
        let hazard = self.destinations.get(&destination);
        hazard.is_some_and(|hazard| now < hazard.until)
    }

    /// A row got through.
    pub(super) fn passed(&mut self, id: RowId, destination: u64) {
        if self.destinations.is_empty() {
            return;
        }
        self.forget(id);
        if let Some(hazard) = self.destinations.get_mut(&destination) {
            hazard.in_a_row = 0;
        }
    }

    /// The row is given up.
    pub(super) fn forget(&mut self, id: RowId) {
        self.convicts.remove(&id);
    }

    /// Forgets destinations that have long done no harm.
    pub(super) fn expire(&mut self, now: Moment) {
        self.destinations.retain(|_, hazard| now < hazard.until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_blamed_when_row_after_row_ends_a_connection() {
        let (mut hazards, now) = (Hazards::default(), Moment::ORIGIN);
        for id in 1..=4 {
            assert_eq!(hazards.convict(RowId(id), 7, false, now), (1, false));
        }
        assert_eq!(hazards.convict(RowId(4), 7, false, now), (2, false));
        assert_eq!(hazards.convict(RowId(9), 7, true, now), (1, false));
        assert_eq!(hazards.convict(RowId(5), 7, false, now), (1, true));
        hazards.passed(RowId(6), 7);
        assert_eq!(hazards.convict(RowId(8), 7, false, now), (1, false));
    }

    #[test]
    fn a_destination_is_harmless_after_a_while_and_a_row_that_got_through_at_once() {
        let (mut hazards, now) = (Hazards::default(), Moment::ORIGIN);
        hazards.convict(RowId(1), 7, false, now);
        assert!(hazards.is_convict(RowId(1)));
        assert!(hazards.is_hazardous(7, now));
        assert!(!hazards.is_hazardous(8, now));
        hazards.passed(RowId(1), 7);
        assert!(!hazards.is_convict(RowId(1)));
        assert!(hazards.is_hazardous(7, now));
        hazards.expire(now + SUSPICION);
        assert!(!hazards.is_hazardous(7, now));
    }
}
