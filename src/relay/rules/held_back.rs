//! What a relay holds back on purpose, told to whoever asks why a row is not sent.

use serde::{Deserialize, Serialize};

/// Things told at the most, those held back for longest first.
pub(super) const TOLD: usize = 20;

/// Ids told of one fate and reason at the most: as many as memory holds of the usual windows.
pub const IDS_TOLD: usize = 4000;

/// Something that is held back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldBack {
    /// What it is.
    #[serde(flatten)]
    pub what: Withheld,
    /// For how long, in seconds.
    pub for_seconds: u64,
    /// Why; quotes no payload.
    pub why: String,
}

/// What is held back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Withheld {
    /// Rows whose fate is decided and cannot be written down.
    Unmarked {
        /// What became of them.
        fate: Unwritten,
        /// The first of them.
        ids: Vec<i64>,
        /// How many there are.
        rows: usize,
    },
    /// What goes to one place.
    Destination {
        /// Its exchange.
        exchange: String,
        /// Its routing key; `None` for all of the exchange.
        routing_key: Option<String>,
        /// The row that tries it, if one does.
        tried_by: Option<i64>,
    },
    /// All that is not in memory yet.
    Everything {
        /// Rows whose fate cannot be written down, and that take all the room.
        unmarked: usize,
    },
    /// More destinations than are told.
    Others {
        /// How many.
        others: usize,
    },
}

/// A fate that cannot be written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unwritten {
    /// Sent: it is in the queue.
    Sent,
    /// Refused: it is to wait for another attempt.
    Waits,
    /// Given up: it is to go to quarantine.
    GivenUp,
}

impl HeldBack {
    /// Those that are told of many: all rows, and the destinations that are held back for longest.
    #[must_use]
    pub fn told(mut all: Vec<Self>) -> Vec<Self> {
        let before = |one: &Self| match &one.what {
            Withheld::Unmarked { .. } => 0,
            Withheld::Everything { .. } => 1,
            Withheld::Destination { .. } => 2,
            Withheld::Others { .. } => 3,
        };
        all.sort_by_key(|one| (before(one), std::cmp::Reverse(one.for_seconds)));
        let number = |one: &Self| match one.what {
            Withheld::Others { others } => others,
            Withheld::Unmarked { .. }
            | Withheld::Everything { .. }
            | Withheld::Destination { .. } => 1,
        };
        let others = all.iter().skip(TOLD).map(number).sum();
        all.truncate(TOLD);
        if others > 0 {
            all.push(Self {
                what: Withheld::Others { others },
                for_seconds: 0,
                why: "not told one by one".to_owned(),
            });
        }
        all
    }

    /// Does this concern a row?
    #[must_use]
    pub fn concerns(&self, id: i64, to: (&str, &str)) -> bool {
        match &self.what {
            Withheld::Unmarked { ids, .. } => ids.contains(&id),
            Withheld::Destination {
                exchange,
                routing_key,
                ..
            } => exchange == to.0 && routing_key.as_deref().is_none_or(|key| key == to.1),
            Withheld::Everything { .. } => true,
            Withheld::Others { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destination(exchange: &str, routing_key: Option<&str>, for_seconds: u64) -> HeldBack {
        HeldBack {
            what: Withheld::Destination {
                exchange: exchange.to_owned(),
                routing_key: routing_key.map(str::to_owned),
                tried_by: None,
            },
            for_seconds,
            why: "404".to_owned(),
        }
    }

    #[test]
    fn rows_are_concerned_by_id_exchange_or_destination() {
        let all = destination("orders", None, 1);
        assert!(all.concerns(1, ("orders", "a")) && !all.concerns(1, ("other", "a")));
        let one = destination("orders", Some("a"), 1);
        assert!(one.concerns(1, ("orders", "a")) && !one.concerns(1, ("orders", "b")));
        let unmarked = HeldBack {
            what: Withheld::Unmarked {
                fate: Unwritten::Sent,
                ids: vec![7],
                rows: 1,
            },
            ..one
        };
        assert!(unmarked.concerns(7, ("", "")) && !unmarked.concerns(8, ("orders", "a")));
    }

    #[test]
    fn the_longest_are_told_and_what_was_told_is_understood() {
        let many = (0..30).map(|age| destination("orders", None, age));
        let told = HeldBack::told(many.collect());
        assert_eq!((told.len(), told[0].for_seconds), (21, 29));
        assert_eq!(told[20].what, Withheld::Others { others: 10 });
        let mut all = told;
        all[20] = HeldBack {
            what: Withheld::Unmarked {
                fate: Unwritten::Sent,
                ids: vec![7],
                rows: 1,
            },
            ..destination("", None, 5)
        };
        let told = HeldBack::told(all);
        assert!(told[0].concerns(7, ("", "")), "rows come first");
        let all = [
            destination("orders", Some("a"), 3),
            HeldBack {
                what: Withheld::Unmarked {
                    fate: Unwritten::GivenUp,
                    ids: vec![7, 8],
                    rows: 2,
                },
                ..destination("", None, 4)
            },
        ];
        let text = serde_json::to_string(&all).expect("JSON");
        let read: Vec<HeldBack> = serde_json::from_str(&text).expect("the same");
        assert_eq!(read, all);
    }
}
