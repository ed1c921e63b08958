//! Publications by exchange and fate, with a bounded number of exchanges.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use crate::relay::{Fate, Landing};

/// Exchanges told by name; the rest is `other`.
const NAMED: usize = 100;

/// In place of the empty name, which as a label would be none at all.
const DEFAULT_EXCHANGE: &str = "(default)";

type Labels = [(&'static str, String); 2];

/// One counter for each exchange and fate.
#[derive(Default)]
pub(super) struct Exchanges {
    family: Family<Labels, Counter>,
    /// The same counters, found without making labels.
    known: Mutex<HashMap<String, [Counter; Fate::ALL.len()]>>,
}

impl Exchanges {
    pub(super) fn family(&self) -> Family<Labels, Counter> {
        self.family.clone()
    }

    pub(super) fn count(&self, landings: &[Landing<'_>]) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // Most go where the one before went.
        for alike in landings.chunk_by(|one, next| one.exchange == next.exchange) {
            let Some(exchange) = alike.first().map(|landing| landing.exchange) else {
                continue;
            };
            if !known.contains_key(exchange) && known.len() < NAMED {
                let counters = Fate::ALL.map(|fate| self.counter(shown(exchange), fate));
                known.insert(exchange.to_owned(), counters);
            }
            let counters = known.get(exchange);
            for Landing { fate, .. } in alike {
                match counters {
                    Some(counters) => counters[place(*fate)].inc(),
                    None => self.counter("other", *fate).inc(),
                };
            }
        }
    }

    fn counter(&self, exchange: &str, fate: Fate) -> Counter {
        let labels = [
            ("exchange", exchange.to_owned()),
            ("outcome", fate.as_str().to_owned()),
        ];
        self.family.get_or_create(&labels).clone()
    }
}

/// An exchange as a label.
fn shown(exchange: &str) -> &str {
    if exchange.is_empty() {
        DEFAULT_EXCHANGE
    } else {
        exchange
    }
}

fn place(fate: Fate) -> usize {
    match fate {
        Fate::Confirmed => 0,
        Fate::Returned => 1,
        Fate::Nacked => 2,
        Fate::Unknown => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::landing;
    use super::*;

    fn count(exchanges: &Exchanges, exchange: &str, fate: Fate) {
        exchanges.count(&[landing(exchange, fate)]);
    }

    fn value(exchanges: &Exchanges, exchange: &str, fate: Fate) -> u64 {
        exchanges.counter(exchange, fate).get()
    }

    #[test]
    fn places_are_those_of_the_list() {
        for (at, fate) in Fate::ALL.into_iter().enumerate() {
            assert_eq!(place(fate), at);
        }
    }

    #[test]
    fn beyond_a_hundred_exchanges_the_rest_is_one() {
        let exchanges = Exchanges::default();
        for round in 0..2 {
            for number in 0..150 {
                count(&exchanges, &format!("e{number}"), Fate::Confirmed);
            }
            assert_eq!(value(&exchanges, "e99", Fate::Confirmed), round + 1);
        }
        assert_eq!(value(&exchanges, "e100", Fate::Confirmed), 0);
        assert_eq!(value(&exchanges, "other", Fate::Confirmed), 100);
        count(&exchanges, "e0", Fate::Nacked);
        assert_eq!(value(&exchanges, "e0", Fate::Nacked), 1);
    }

    #[test]
    fn the_default_exchange_has_a_name() {
        let exchanges = Exchanges::default();
        count(&exchanges, "", Fate::Returned);
        assert_eq!(value(&exchanges, DEFAULT_EXCHANGE, Fate::Returned), 1);
    }
}
