//! What goes wrong.

use std::collections::HashSet;
use std::time::Duration;

use super::dice::Dice;
use super::node::Node;
use super::world::World;
use crate::message::RowId;
use crate::relay::rules::Pause;

/// A clock that is off by less is taken for a right one.
pub(super) const RIGHT: Duration = Duration::from_secs(10);

impl World {
    pub(super) fn misfortune(&mut self, no: usize, dice: &mut Dice) {
        if self.calm {
            return;
        }
        match dice.below(18) {
            0 => self.cut_link(no, dice),
            1 => self.crash(no, dice),
            2 if !self.nodes[no].stopped => self.nodes[no].lose_reader(),
            3 if !self.nodes[no].stopped => self.nodes[no].lose_settler(&mut self.table, dice),
            2 | 3 => {}
            4 => toggle(&mut self.broker.missing, "absent"),
            5 => toggle(&mut self.broker.unbound, "nowhere"),
            6 => toggle(&mut self.broker.full, "full"),
            7 => self.lock_row(dice),
            8 => toggle(&mut self.broker.silent, "silent"),
            9 => self.pause(Some("events")),
            10 => self.pause(None),
            11 => self.step_clock(dice),
            12 | 13 => self.nodes[no].stopped = !self.nodes[no].stopped,
            14 => self.tell_to_stop(no),
            15 => self.decide(dice),
            16 => toggle(&mut self.broker.broken, "broken"),
            _ => toggle(&mut self.broker.missing, "events"),
        }
    }

    fn cut_link(&mut self, no: usize, dice: &mut Dice) {
        let node = &mut self.nodes[no];
        if node.stopped {
            return;
        }
        node.lose_link();
        for channel in 0..node.connection.channels() {
            if let Some(lost) = node.connection.cut(channel, &mut self.broker, dice) {
                node.lose((channel, lost), &mut self.checks, self.now);
            }
        }
    }

    /// `kill -9` of a relay, and another comes in its place.
    fn crash(&mut self, no: usize, dice: &mut Dice) {
        let new = self.new_node();
        let old = std::mem::replace(&mut self.nodes[no], new);
        old.crash(&mut self.table, &mut self.broker, &mut self.checks, dice);
    }

    /// SIGTERM of one of several: it drains, and is replaced when it has.
    fn tell_to_stop(&mut self, no: usize) {
        let node = &mut self.nodes[no];
        if !node.stopped {
            node.draining = true;
            node.flow.drain();
        }
    }

    /// A relay that has drained gives everything back and goes; another comes.
    pub(super) fn replace_stopped(&mut self, no: usize) {
        if self.nodes[no].is_done() {
            let new = self.new_node();
            let old = std::mem::replace(&mut self.nodes[no], new);
            self.table.leases.withdraw(old.token);
        }
    }

    /// Somebody sets the database's clock. Never by much, so that what waits by it still comes, and
    /// never twice before everybody has looked: only a sweep finds what that hides.
    fn step_clock(&mut self, dice: &mut Dice) {
        if self.now.since(self.stepped) < Duration::from_secs(12) {
            return;
        }
        self.stepped = self.now;
        let by = Duration::from_secs(dice.next() % 30);
        let now = self.table.now();
        let set = if dice.once_in(2) { now + by } else { now - by };
        let wall = self.wall();
        let off = wall
            .duration_since(set)
            .or_else(|_| set.duration_since(wall));
        // Not set right: who starts at that very moment takes signs of life for old ones. That is the
        // one thing about clocks that the rules do not bear.
        if off.is_ok_and(|off| off > RIGHT) {
            self.table.set_clock(set);
        }
    }

    /// An operator pauses, or resumes.
    fn pause(&mut self, exchange: Option<&str>) {
        let pauses = &mut self.table.pauses;
        let before = pauses.len();
        pauses.retain(|pause| pause.exchange.as_deref() != exchange);
        if pauses.len() == before {
            pauses.push(Pause {
                exchange: exchange.map(str::to_owned),
                by: "ann".to_owned(),
                reason: "deploy".to_owned(),
            });
        }
    }

    /// An operator decides about a row in quarantine.
    pub(super) fn decide(&mut self, dice: &mut Dice) {
        let quarantined: Vec<i64> = self.table.quarantined.keys().copied().collect();
        if quarantined.is_empty() {
            return;
        }
        let id = RowId(quarantined[dice.below(quarantined.len())]);
        let replayed = dice.once_in(3) && !self.calm;
        // Where others have gone on meanwhile, its order no longer matters.
        if !replayed || !self.table.successors_wait {
            self.decided.insert(id);
        }
        self.table.release(id, replayed);
    }

    fn lock_row(&mut self, dice: &mut Dice) {
        let pending: Vec<RowId> = self
            .table
            .rows()
            .filter(|row| row.sent_at.is_none())
            .map(|row| row.row.id)
            .collect();
        if !pending.is_empty() {
            let id = pending[dice.below(pending.len())];
            if let Some(row) = self.table.row_mut(id) {
                row.locked = !row.locked;
            }
        }
    }
}

impl Node {
    /// It has drained and written everything down.
    fn is_done(&self) -> bool {
        let idle = self.to_settle.is_empty() && self.settling.is_none();
        self.draining && !self.stopped && idle && self.flow.drained()
    }
}

fn toggle(set: &mut HashSet<String>, name: &str) {
    if !set.remove(name) {
        set.insert(name.to_owned());
    }
}
