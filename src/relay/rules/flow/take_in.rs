//! Taking in what a read brought.

use std::sync::Arc;
use std::time::Duration;

use super::super::coverage::Step;
use super::super::gate::{Traveller, gates_of};
use super::super::lane::Shelf;
use super::super::ledger::{Content, Entry, Fate, State};
use super::super::{Found, Lane, Reading, Tenet, Verdict, holds};
use super::Flow;
use crate::message::{OutboxRow, Publication, RowId, Unfit};
use crate::runtime::Moment;

/// How a row was found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    News,
    Page,
    Due,
}

/// To look costs much the same for few rows as for many, the server and us: where a read finds
/// rows, the next one gathers more. Little is waited for where they come singly, though not
/// nothing: where they go on coming, the relay would else lie down and be woken for each.
const SEVERAL: usize = 10;
const FEW: Duration = Duration::from_millis(1);
const SOME: Duration = Duration::from_millis(4);
const MANY: Duration = Duration::from_millis(8);

/// A read that takes longer shows a server that has much else to do.
const SWIFT: Duration = Duration::from_millis(1);

/// No read is put off for longer where rows come singly, and where there are several to gather.
const LONGEST: Duration = Duration::from_millis(10);
const LONGEST_OF_SEVERAL: Duration = Duration::from_millis(30);

/// How long the next read is put off: not after one that found nothing, or nearly a batch. A
/// server that is slow is read from for half of the time at the most, and for a quarter where rows
/// gather meanwhile: it is the application that it is slow for, too.
fn breath(rows: usize, took: Duration, batch: usize) -> Duration {
    if rows >= batch - batch / 4 {
        return Duration::ZERO;
    }
    let gather = match rows {
        0 => Duration::ZERO,
        1..SEVERAL => FEW,
        _ if rows < batch / 8 => SOME,
        _ => MANY,
    };
    let ease = match rows {
        _ if took < SWIFT => Duration::ZERO,
        0..SEVERAL => took.min(LONGEST),
        _ => (took * 3).min(LONGEST_OF_SEVERAL),
    };
    gather.max(ease)
}

impl Flow {
    /// A read has arrived.
    pub fn took_in(&mut self, reading: Reading, now: Moment) {
        if self.reading != Some(reading.seq) {
            return;
        }
        self.reading = None;
        let stale = std::mem::take(&mut self.stale);
        self.last_read = Some(now);
        let rows = reading.news.len() + reading.page.len() + reading.due.len();
        self.breath = match reading.walked_to {
            Some(_) => Duration::ZERO,
            None => breath(rows, reading.took, self.limits.batch_size),
        };
        self.heard = true;
        if let Some(from) = self.gates.bar(&reading.pauses) {
            self.coverage.want_all_after(from - 1);
        }
        for (missed, lane) in self.ledger.forget_before(reading.seq) {
            self.look_again(missed, lane);
        }
        self.quiet = reading.news.is_empty() && reading.due.is_empty() && !reading.more_due;
        self.barren = reading.walked_to.is_some() && reading.page.is_empty();
        let step = Step::from(&reading);
        let Reading {
            news,
            page,
            due,
            more_news_from,
            ..
        } = reading;
        let mut found: Vec<(Origin, Found)> =
            Vec::with_capacity(news.len() + page.len() + due.len());
        found.extend(news.into_iter().map(|row| (Origin::News, row)));
        found.extend(page.into_iter().map(|row| (Origin::Page, row)));
        found.extend(due.into_iter().map(|row| (Origin::Due, row)));
        // What lies beyond undelivered news is walked over again, after it.
        found.retain(|(_, row)| more_news_from.is_none_or(|first| row.id().0 < first));
        found.retain(|(_, row)| !stale.contains(row.partition));
        if holds(Tenet::OrderById) {
            found.sort_by_key(|(_, row)| row.id());
        }
        for (origin, row) in found {
            self.consider(origin, row, now);
        }
        if let Some((start, no)) = self.coverage.advance(step, &self.owned) {
            self.lanes.pass_ended(start, no);
        }
        if !self.gates.is_empty() {
            self.replace_probes(now);
        }
        self.coverage.begin_pass();
        self.see_clog(now);
    }

    fn consider(&mut self, origin: Origin, found: Found, now: Moment) {
        let (id, lane) = (found.id(), found.lane(self.limits.ordered));
        if !self.owned.contains(found.partition) || self.coverage.awaits(found.partition) {
            return;
        }
        if self.ledger.contains(id) {
            self.met_again(origin, id, lane);
            return;
        }
        let shelf = self.lanes.shelf(lane).filter(|shelf| shelf.from <= id.0);
        let ahead = self.coverage.is_ahead(lane, found.partition, id.0);
        let will_be_met = shelf.is_none_or(|shelf| self.coverage.reconsiders(shelf));
        if origin != Origin::Page && ahead && will_be_met {
            return;
        }
        if let Some(shelf) = shelf {
            // A late commit that the pass has walked past counts as met by it: what follows it
            // on the page must not go ahead.
            let met = origin == Origin::Page || self.coverage.has_passed(id.0);
            match origin {
                _ if met && self.coverage.reconsiders(shelf) => {
                    self.lanes.unshelve(lane);
                    self.coverage.catch_up(lane);
                }
                // It fell due, or an operator let it go: then it is news, left to the page perhaps.
                _ if lane.is_ordered() && shelf.from == id.0 && found.wait.is_none() => {
                    self.lanes.unshelve(lane);
                    let rest = Shelf {
                        from: id.0 + 1,
                        pass: self.coverage.pass_no(),
                    };
                    self.lanes.waiting_or_new(lane).shelf = Some(rest);
                }
                Origin::Due if !lane.is_ordered() => {}
                Origin::Due => {
                    // A row before it was not kept either, though nothing holds that one.
                    self.coverage.want_lane(lane, shelf);
                    return;
                }
                Origin::Page | Origin::News => return,
            }
        }
        self.admit(found, lane, now);
    }

    /// The row is in memory already.
    fn met_again(&mut self, origin: Origin, id: RowId, lane: Lane) {
        let Some(entry) = self.ledger.get_mut(id) else {
            return;
        };
        match entry.fate {
            Fate::Open | Fate::Sent => return,
            // Pending still in an older snapshot, or put back already by an operator.
            Fate::Condemned => {
                entry.missed = true;
                return;
            }
            Fate::Waits => entry.missed = true,
        }
        let held = self.lanes.shelf(lane).is_some_and(|shelf| {
            shelf.from <= id.0 && !(origin == Origin::Page && self.coverage.reconsiders(shelf))
        });
        if lane.is_ordered() && !held {
            // It goes on holding its key, whatever was taken in before it.
            self.lanes.unshelve(lane);
            self.shelve(lane, id);
        }
    }

    /// The row was missed when it was read. With it goes what is not kept of its lane before it:
    /// a row that came late, and lost its place when this one was set aside.
    pub(super) fn look_again(&mut self, id: RowId, lane: Lane) {
        let shelf = self.lanes.shelf(lane).filter(|_| lane.is_ordered());
        let from = shelf.map_or(id.0, |shelf| shelf.from.min(id.0));
        self.coverage.want_all_after(from - 1);
    }

    /// From this row on nothing of the lane is kept.
    pub(super) fn shelve(&mut self, lane: Lane, id: RowId) {
        let pass = self.coverage.pass_no();
        self.lanes.shelve(lane, Shelf { from: id.0, pass });
        self.coverage.give_up(lane);
    }

    /// The same, until one of these gates opens: it remembers the lowest row of the lane that
    /// is not kept, which may be one that came late and stood behind this one.
    pub(super) fn shelve_behind(&mut self, gates: [u64; 2], lane: Lane, id: RowId) {
        self.shelve(lane, id);
        let from = self.lanes.shelf(lane).map_or(id.0, |shelf| shelf.from);
        self.gates.shelve(gates, from.min(id.0));
    }

    fn admit(&mut self, found: Found, lane: Lane, now: Moment) {
        let id = found.id();
        if let Some(wait) = found.wait {
            // Comes back as due. Until then it holds its key.
            self.expect_due(now + wait);
            if lane.is_ordered() {
                self.shelve(lane, id);
            }
            return;
        }
        if let Some(since) = found.held.filter(|_| lane.is_ordered()) {
            self.wait_behind(&found, lane, since, now);
            return;
        }
        let gates = gates_of(found.exchange(), found.routing_key());
        let waiting_since = now.checked_sub(found.age).unwrap_or(Moment::ORIGIN);
        if self.gates.shut_out(
            gates,
            Traveller {
                id,
                waiting_since,
                convict: self.hazards.is_convict(id, found.attempts()),
                now,
            },
        ) {
            self.shelve_behind(gates, lane, id);
            return;
        }
        let full = self.max_lane();
        if lane.is_ordered() && self.lanes.waiting_or_new(lane).len() >= full {
            self.shelve(lane, id);
            return;
        }
        self.enter(found, lane, gates, waiting_since);
    }

    fn enter(&mut self, found: Found, lane: Lane, gates: [u64; 2], waiting_since: Moment) {
        let [exchange, destination] = gates;
        let (id, partition, fingerprint) = (found.id(), found.partition, found.fingerprint);
        let (content, attempts, unfit) = match found.into_row() {
            Ok(row) => self.validate(row),
            Err((row, stored)) => {
                let attempts = row.attempts;
                (Content::Bodiless(row, stored), attempts, None)
            }
        };
        let state = State::Queued;
        let (missed, fate) = (false, Fate::Open);
        let entry = Entry {
            lane,
            partition,
            fingerprint,
            state,
            content,
            exchange,
            destination,
            attempts,
            waiting_since,
            missed,
            fate,
        };
        self.ledger.insert(id, entry);
        if let Some(unfit) = unfit {
            self.quarantine(id, unfit);
        }
        if lane.is_ordered() {
            self.lanes.waiting_or_new(lane).enqueue(id);
            self.give_turn(lane);
        } else {
            self.turn_of(id);
        }
    }

    pub(super) fn validate(&self, row: OutboxRow) -> (Content, u32, Option<Unfit>) {
        let attempts = row.attempts;
        match Publication::from_row(row, &self.rules) {
            Ok(publication) => (Content::Publication(Arc::new(publication)), attempts, None),
            Err(unfit) => (Content::Spent, attempts, Some(unfit)),
        }
    }

    /// The row can never be sent as it is.
    pub(super) fn quarantine(&mut self, id: RowId, why: Unfit) {
        let attempts = self.ledger.get(id).map_or(0, |entry| entry.attempts);
        self.hazards.forget(id);
        let ticket = self.settle(id, Verdict::Quarantine { attempts, why });
        self.ledger.decide(id, ticket, Fate::Condemned);
        if let Some(entry) = self.ledger.get(id) {
            self.withdraw([entry.exchange, entry.destination], id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::PartitionSet;
    use super::super::super::simulation::limits;
    use super::super::Request;
    use super::*;
    use crate::message::rules;
    use crate::runtime::Jitter;
    use crate::store::memory::Table;

    #[test]
    fn after_a_slow_read_the_next_one_is_put_off() {
        let at = |millis| Moment::from_origin(Duration::from_millis(millis));
        for (took, next) in [(0, 100), (3, 103)] {
            let mut flow = Flow::new(limits(false), rules(), Jitter::seeded(1));
            flow.reader_ready("application/json");
            flow.settler(true);
            flow.link_up(131_072);
            flow.hold(PartitionSet::ALL, Moment::NEVER);
            let Some(Request::Read(request)) = flow.next_read(at(0)) else {
                panic!("nothing to read")
            };
            let took = Duration::from_millis(took);
            let reading = Reading {
                took,
                ..Table::default().read(&request)
            };
            flow.took_in(reading, at(100));
            assert_eq!(flow.read_due(), Some(at(next)), "{took:?}");
        }
    }

    #[test]
    fn the_more_rows_come_the_longer_they_are_gathered() {
        let [swift, slow, stuck] = [300, 2_500, 60_000].map(Duration::from_micros);
        for (rows, took, put_off) in [
            (0, swift, Duration::ZERO),
            (1, swift, FEW),
            (9, swift, FEW),
            (10, swift, SOME),
            (61, swift, SOME),
            (62, swift, MANY),
            (374, swift, MANY),
            (375, swift, Duration::ZERO),
            (0, slow, slow),
            (1, slow, slow),
            (9, stuck, LONGEST),
            (10, slow, slow * 3),
            (10, stuck, LONGEST_OF_SEVERAL),
            (375, stuck, Duration::ZERO),
        ] {
            assert_eq!(breath(rows, took, 500), put_off, "{rows} rows in {took:?}");
        }
    }
}
