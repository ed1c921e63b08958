//! Publications by exchange and fate, with a bounded number of exchanges.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use crate::relay::Fate;

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

    pub(super) fn count(&self, exchange: &str, fate: Fate) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(counters) = known.get(exchange) {
            counters[place(fate)].inc();
            return;
        }
        if known.len() >= NAMED {
            self.counter("other", fate).inc();
            return;
        }
        let shown = if exchange.is_empty() {
            DEFAULT_EXCHANGE
        } else {
            exchange
        };
        let counters = Fate::ALL.map(|fate| self.counter(shown, fate));
        counters[place(fate)].inc();
        known.insert(exchange.to_owned(), counters);
    }

    fn counter(&self, exchange: &str, fate: Fate) -> Counter {
        let labels = [
            ("exchange", exchange.to_owned()),
            ("outcome", fate.as_str().to_owned()),
        ];
        self.family.get_or_create(&labels).clone()
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
    use super::*;

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
                exchanges.count(&format!("e{number}"), Fate::Confirmed);
            }
            assert_eq!(value(&exchanges, "e99", Fate::Confirmed), round + 1);
        }
        assert_eq!(value(&exchanges, "e100", Fate::Confirmed), 0);
        assert_eq!(value(&exchanges, "other", Fate::Confirmed), 100);
        exchanges.count("e0", Fate::Nacked);
        assert_eq!(value(&exchanges, "e0", Fate::Nacked), 1);
    }

    #[test]
    fn the_default_exchange_has_a_name() {
        let exchanges = Exchanges::default();
        exchanges.count("", Fate::Returned);
        assert_eq!(value(&exchanges, DEFAULT_EXCHANGE, Fate::Returned), 1);
    }
}
