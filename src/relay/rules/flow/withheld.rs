//! What the flow holds back, for those who ask.

use super::super::gate::Sign;
use super::super::held_back::{HeldBack, Withheld};
use super::super::ledger::{Content, State};
use super::Flow;
use crate::message::RowId;
use crate::runtime::{Map, Moment};

/// Rows of one destination that wait for their turn on a connection apart.
struct Crowd {
    sign: Sign,
    rows: usize,
    since: Moment,
}

impl Flow {
    /// What is held back on purpose, and why: of what is paused others tell. `trouble` is why no
    /// connection apart can be made, if none can.
    #[must_use]
    pub fn held_back(&self, trouble: Option<&str>, now: Moment) -> Vec<HeldBack> {
        let mut all = self.gates.held_back(now);
        all.extend(self.clogged().then(|| HeldBack {
            what: Withheld::Everything { unmarked: self.stuck },
            for_seconds: now.since(self.clogged_since.unwrap_or(now)).as_secs(),
            why: "the fate of so many rows is decided and cannot be written down that no others are read until \
                  some are (outbox-relay status says why)"
                .to_owned(),
        }));
        let trouble =
            trouble.map_or_else(String::new, |why| format!(", but it cannot be made: {why}"));
        all.extend(self.crowds().map(|crowd| {
            let Crowd { sign, rows, since } = crowd;
            let why = format!(
                "one of those that were under way with them ended the broker's connection, so that these go one by \
                 one on another\
                 {trouble}; {rows} wait for their turn"
            );
            HeldBack {
                what: Withheld::Destination {
                    exchange: sign.exchange,
                    routing_key: sign.routing_key,
                    tried_by: None,
                },
                for_seconds: now.since(since).as_secs(),
                why,
            }
        }));
        all
    }

    fn crowds(&self) -> impl Iterator<Item = Crowd> {
        let mut crowds: Map<u64, Crowd> = Map::default();
        for id in self.channels.waiting_apart() {
            let entry = self.ledger.get(id);
            let Some(entry) = entry.filter(|entry| entry.state == State::Ready) else {
                continue;
            };
            let crowd = crowds.entry(entry.destination).or_insert_with(|| Crowd {
                sign: self.sign(id, entry.destination, ""),
                rows: 0,
                since: entry.waiting_since,
            });
            crowd.rows += 1;
            crowd.since = crowd.since.min(entry.waiting_since);
        }
        crowds.into_values()
    }

    /// What this gate of the row shuts, and why.
    pub(super) fn sign(&self, id: RowId, gate: u64, why: &str) -> Sign {
        let Some(entry) = self.ledger.get(id) else {
            return Sign::default();
        };
        let (exchange, routing_key) = match &entry.content {
            Content::Publication(publication) => (
                publication.exchange().as_str(),
                publication.routing_key().as_str(),
            ),
            Content::Bodiless(row, _) => (row.exchange.as_str(), row.routing_key.as_str()),
            Content::Spent => ("", ""),
        };
        Sign {
            exchange: exchange.to_owned(),
            routing_key: (gate == entry.destination).then(|| routing_key.to_owned()),
            why: why.to_owned(),
        }
    }
}
