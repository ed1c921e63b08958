//! The application: transactions that insert, commit late, or never were.

use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::checks::Written;
use super::dice::Dice;
use super::world::World;
use crate::message::{Body, OutboxRow, RowId};

/// An open transaction.
pub(super) struct Writer {
    xid: u64,
    rows: Vec<(RowId, Written)>,
}

impl World {
    pub(super) fn write(&mut self, dice: &mut Dice) {
        if self.writers.is_empty() || (self.writers.len() < 4 && dice.once_in(3)) {
            let xid = self.table.begin();
            self.writers.push(Writer {
                xid,
                rows: Vec::new(),
            });
        }
        let place = dice.below(self.writers.len());
        let xid = self.writers[place].xid;
        let key = (!dice.once_in(4)).then(|| format!("k{}", dice.below(6)));
        if let Some(key) = &key {
            // The key's row lock serialises its writers until their transaction ends.
            if *self.locked_keys.entry(key.clone()).or_insert(xid) != xid {
                return;
            }
        }
        let (row, available_at, written) = self.new_row(key, dice);
        let id = self.table.insert(xid, row, available_at);
        self.writers[place].rows.push((id, written));
    }

    fn new_row(
        &self,
        key: Option<String>,
        dice: &mut Dice,
    ) -> (OutboxRow, Option<SystemTime>, Written) {
        let long = "k".repeat(300);
        let (exchange, routing_key) = match dice.below(26) {
            0 => ("", long.as_str()),
            1 => ("", "poison"),
            2 => ("events", "nowhere"),
            3 => ("events", "full"),
            4 => ("absent", "x"),
            5 => ("events", "silent"),
            24 => ("events", "mixed"),
            25 => ("events", "broken"),
            6..=12 => ("events", "a"),
            13..=16 => ("events", "b"),
            _ => ("", "queue"),
        };
        let troubled = matches!(routing_key, "nowhere" | "full" | "x" | "silent" | "broken");
        let size = if dice.once_in(8) {
            2_001 + dice.below(6_000)
        } else {
            40
        };
        let scheduled = dice.once_in(12);
        let delay = Duration::from_millis(dice.next() % 4_000);
        let row = OutboxRow {
            id: RowId(0),
            message_id: "m".to_owned(),
            exchange: exchange.to_owned(),
            routing_key: routing_key.to_owned(),
            ordering_key: key.clone(),
            payload: Body::Bytes(Bytes::from(vec![b'x'; size])),
            headers: None,
            message_type: None,
            correlation_id: None,
            content_type: None,
            properties: None,
            created_at: SystemTime::UNIX_EPOCH,
            attempts: 0,
        };
        let available_at = scheduled.then(|| self.table.now() + delay);
        (
            row,
            available_at,
            Written {
                key,
                scheduled,
                troubled,
            },
        )
    }

    pub(super) fn end_transaction(&mut self, dice: &mut Dice) {
        if self.writers.is_empty() {
            return;
        }
        let writer = self.writers.swap_remove(dice.below(self.writers.len()));
        if dice.once_in(6) {
            self.table.rollback(writer.xid);
        } else {
            self.table.commit(writer.xid);
            for (id, written) in writer.rows {
                self.checks.committed(id, written);
            }
        }
        self.locked_keys.retain(|_, holder| *holder != writer.xid);
    }
}
