//! What goes wrong.

use std::collections::HashSet;

use super::dice::Dice;
use super::world::{Settling, World, new_flow};
use crate::message::RowId;
use crate::relay::rules::{Pause, SettleReport, Settlement, Ticket, Verdict};

impl World {
    pub(super) fn misfortune(&mut self, dice: &mut Dice) {
        if self.calm {
            return;
        }
        match dice.below(13) {
            0 => self.cut_link(dice),
            1 => self.crash(dice),
            2 => {
                self.errand = None;
                self.flow.reader_lost();
                self.flow.reader_ready("application/json");
            }
            3 => self.lose_settler(dice),
            4 => toggle(&mut self.broker.missing, "absent"),
            5 => toggle(&mut self.broker.unbound, "nowhere"),
            6 => toggle(&mut self.broker.full, "full"),
            7 => self.lock_row(dice),
            8 => toggle(&mut self.broker.silent, "silent"),
            9 => self.pause(Some("events")),
            10 => self.pause(None),
            11 => self.decide(dice),
            _ => toggle(&mut self.broker.missing, "events"),
        }
    }

    fn cut_link(&mut self, dice: &mut Dice) {
        self.flow.link_lost();
        self.questions.clear();
        self.broker.linked = false;
        for no in 0..self.broker.channels() {
            if let Some(lost) = self.broker.cut(no, dice) {
                self.lose(no, lost);
            }
        }
    }

    /// The settling connection breaks: the batch may have been written or not, and is settled
    /// again.
    fn lose_settler(&mut self, dice: &mut Dice) {
        let batch = match self.settling.take() {
            Some(Settling::Asked(batch)) => {
                if dice.once_in(2) {
                    self.table.settle(&batch);
                }
                batch
            }
            Some(Settling::Done(batch, _)) => batch,
            None => return,
        };
        for settlement in batch.into_iter().rev() {
            self.to_settle.push_front(settlement);
        }
    }

    /// `kill -9` of the relay: all it knew is gone.
    fn crash(&mut self, dice: &mut Dice) {
        match self.settling.take() {
            Some(Settling::Asked(batch)) => {
                let report = if dice.once_in(2) {
                    self.table.settle(&batch)
                } else {
                    SettleReport::default()
                };
                self.unwritten(batch, &report);
            }
            Some(Settling::Done(batch, report)) => self.unwritten(batch, &report),
            None => {}
        }
        for settlement in self.to_settle.drain(..) {
            if matches!(settlement.verdict, Verdict::Sent(_)) {
                self.checks.doubt(settlement.id);
            }
        }
        self.errand = None;
        self.seed += 1_000_000;
        let mut old = std::mem::replace(&mut self.flow, new_flow(self.seed));
        // What the old one had decided but not handed over is gone, too.
        for settlement in old.take_settlements() {
            self.checks.doubt(settlement.id);
        }
        for no in 0..self.broker.channels() {
            if let Some(lost) = self.broker.cut(no, dice) {
                for id in lost.unknown {
                    self.checks.doubt(id);
                }
            }
        }
        self.questions.clear();
        self.broker.linked = false;
    }

    /// What the table did not take of a batch is still to be settled.
    fn unwritten(&mut self, batch: Vec<Settlement>, report: &SettleReport) {
        let done: HashSet<Ticket> = report
            .written
            .iter()
            .chain(&report.gone)
            .map(|(_, ticket)| *ticket)
            .collect();
        self.to_settle
            .extend(batch.into_iter().filter(|s| !done.contains(&s.ticket)));
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

fn toggle(set: &mut HashSet<String>, name: &str) {
    if !set.remove(name) {
        set.insert(name.to_owned());
    }
}
