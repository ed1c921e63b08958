//! Which rows and destinations may cost a connection.
//!
//! A row that ended one is a convict, and its destination is hazardous for a while: its rows go on a
//! connection of their own, one by one, so that the next of their kind costs nobody else's. Where row
//! after row does it, none gets through between, it may be the destination's fault.

use std::time::Duration;

use super::gate::Traveller;
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
    /// This row to this destination alone ended a connection. Returns how often it did, and whether the
    /// destination is to be blamed as well.
    pub(super) fn convict(&mut self, row: Traveller, destination: u64) -> (u32, bool) {
        if self.convicts.len() >= REMEMBERED {
            self.convicts.clear();
        }
        let times = self.convicts.entry(row.id).or_default();
        *times += 1;
        let hazard = self.destinations.entry(destination).or_insert(Hazard {
            until: row.now,
            in_a_row: 0,
        });
        hazard.until = row.now + SUSPICION;
        // Who was one before proves nothing more.
        hazard.in_a_row += u32::from(!row.convict);
        (*times, !row.convict && hazard.in_a_row >= IN_A_ROW)
    }

    /// Did this row end a connection? Of one that was charged nobody remembers for what.
    pub(super) fn is_convict(&self, id: RowId, attempts: u32) -> bool {
        attempts > 0 || self.convicts.contains_key(&id)
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

    fn row(id: i64, convict: bool) -> Traveller {
        let now = Moment::ORIGIN;
        Traveller {
            id: RowId(id),
            waiting_since: now,
            convict,
            now,
        }
    }

    #[test]
    fn a_destination_is_blamed_when_row_after_row_ends_a_connection() {
        let mut hazards = Hazards::default();
        for id in 1..=4 {
            assert_eq!(hazards.convict(row(id, false), 7), (1, false));
        }
        assert_eq!(hazards.convict(row(4, true), 7), (2, false));
        assert_eq!(hazards.convict(row(5, false), 7), (1, true));
        hazards.passed(RowId(6), 7);
        assert_eq!(hazards.convict(row(8, false), 7), (1, false));
    }

    #[test]
    fn a_destination_is_harmless_after_a_while_and_a_row_that_got_through_at_once() {
        let (mut hazards, now) = (Hazards::default(), Moment::ORIGIN);
        hazards.convict(row(1, false), 7);
        assert!(hazards.is_convict(RowId(1), 0));
        assert!(hazards.is_convict(RowId(2), 1), "it was charged");
        assert!(hazards.is_hazardous(7, now));
        assert!(!hazards.is_hazardous(8, now));
        hazards.passed(RowId(1), 7);
        assert!(!hazards.is_convict(RowId(1), 0));
        assert!(hazards.is_hazardous(7, now));
        hazards.expire(now + SUSPICION);
        assert!(!hazards.is_hazardous(7, now));
    }
}
