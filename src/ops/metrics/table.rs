//! Gauges of the outbox as a whole. Only the relay that speaks for it tells them; the others
//! tell nothing, rather than something old.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::runtime::{Clock, Moment};
use crate::store::Measures;
use crate::store::measures::PinKind;

/// Where rows are due it is measured every five seconds. Older measures are of a database that cannot
/// be asked any more: what waits grows older.
const FRESH: Duration = Duration::from_secs(15);

/// Exchanges whose pauses are told by name.
const PAUSES: usize = 100;

/// The last measures.
#[derive(Debug)]
pub(super) struct Table {
    clock: Clock,
    last: Mutex<Option<Measured>>,
}

struct Measured {
    at: Moment,
    measures: Measures,
    /// When what holds vacuum back and does not tell since when was first seen.
    first_seen: HashMap<String, Moment>,
}

impl fmt::Debug for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.measures.fmt(f)
    }
}

impl Table {
    pub(super) fn new(clock: Clock) -> Self {
        let last = Mutex::new(None);
        Self { clock, last }
    }

    pub(super) fn measured(&self, measures: Measures) {
        let now = self.clock.now();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let before = last.take().map(|last| last.first_seen).unwrap_or_default();
        let first_seen = measures.pins.iter().map(|pin| {
            let since = before.get(&pin.who).copied().unwrap_or(now);
            (pin.who.clone(), since)
        });
        *last = Some(Measured {
            at: now,
            first_seen: first_seen.collect(),
            measures,
        });
    }

    /// Another relay speaks now.
    pub(super) fn forget(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Measured {
    /// Age of the oldest due row. While the database cannot be asked it grows.
    fn oldest(&self, now: Moment) -> Duration {
        let silent = now.since(self.at);
        let grown = if silent > FRESH {
            silent
        } else {
            Duration::ZERO
        };
        self.measures
            .oldest_due
            .map_or(Duration::ZERO, |age| age + grown)
    }

    fn pin_age(&self, kind: PinKind, now: Moment) -> Duration {
        let pins = self.measures.pins.iter().filter(|pin| pin.kind == kind);
        let ages = pins.map(|pin| {
            let since = self.first_seen.get(&pin.who);
            pin.age
                .or_else(|| since.map(|since| now.since(*since)))
                .unwrap_or_default()
        });
        ages.max().unwrap_or_default()
    }

    fn pauses(&self) -> BTreeMap<String, f64> {
        let name = |exchange: &Option<String>| match exchange.as_deref() {
            None => "*".to_owned(),
            Some("") => "(default)".to_owned(),
            Some(exchange) => exchange.to_owned(),
        };
        let pauses = self.measures.pauses.iter().take(PAUSES);
        pauses.map(|pause| (name(&pause.exchange), 1.0)).collect()
    }
}

impl Collector for Table {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(last) = &*last else {
            return Ok(());
        };
        let (mut page, now) = (Page(encoder), self.clock.now());
        last.pending(&mut page, now)?;
        last.quarantine(&mut page)?;
        last.vacuum(&mut page, now)
    }
}

#[allow(clippy::cast_precision_loss, reason = "metrics are floats")]
fn float(count: i64) -> f64 {
    count as f64
}

impl Measured {
    fn pending(&self, page: &mut Page<'_>, now: Moment) -> fmt::Result {
        let measures = &self.measures;
        for (name, help, value) in [
            (
                "oldest_pending_age_seconds",
                "Age of the oldest row that should have been sent: since it was written or fell \
                 due; 0 if there is none",
                self.oldest(now).as_secs_f64(),
            ),
            (
                "pending_rows",
                "Rows that are not sent, whatever they wait for; beyond 10,000 an estimate",
                float(measures.pending.value()),
            ),
            (
                "scheduled_rows",
                "Pending rows whose available_at lies ahead; beyond 10,000 an estimate",
                float(measures.scheduled.value()),
            ),
            (
                "blocked_keys",
                "Ordering keys held back by a row that waits after a failure; at most 10,001 are \
                 counted",
                float(measures.blocked_keys.value()),
            ),
        ] {
            page.gauge(name, help, value)?;
        }
        let help = "1 for each exchange that is paused; * is everything";
        page.family("paused", help, "exchange", self.pauses())
    }

    fn quarantine(&self, page: &mut Page<'_>) -> fmt::Result {
        let given_up = self.measures.quarantine.iter();
        let rows = given_up
            .clone()
            .map(|one| (one.reason.clone(), float(one.rows.value())));
        let help = "Rows in quarantine, by reason; at most 10,001 of each are counted";
        page.family("quarantine_rows", help, "reason", rows.collect())?;
        let oldest = given_up.map(|one| one.oldest).max().unwrap_or_default();
        let help = "How long the oldest row has been in quarantine; 0 if there is none";
        page.gauge("quarantine_oldest_age_seconds", help, oldest.as_secs_f64())
    }

    fn vacuum(&self, page: &mut Page<'_>, now: Moment) -> fmt::Result {
        let pins = PinKind::ALL.map(|kind| {
            let age = self.pin_age(kind, now).as_secs_f64();
            (kind.as_str().to_owned(), age)
        });
        let help = "For how long vacuum has been held back, by what kind of holder; 0 if by none";
        page.family("vacuum_pin_age_seconds", help, "kind", BTreeMap::from(pins))?;
        let help = "Versions of rows that vacuum has yet to remove, as the statistics have it";
        match self.measures.dead_tuples {
            Some(dead) => page.gauge("dead_tuples", help, float(dead)),
            None => Ok(()),
        }
    }
}

/// Gauges on their way to the page.
struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let name = format!("outbox_relay_{name}");
        let help = format!("{help}.");
        let encoder = self
            .0
            .encode_descriptor(&name, &help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(encoder)
    }

    fn family(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: BTreeMap<String, f64>,
    ) -> fmt::Result {
        let name = format!("outbox_relay_{name}");
        let help = format!("{help}.");
        let mut encoder = self
            .0
            .encode_descriptor(&name, &help, None, MetricType::Gauge)?;
        for (value, number) in values {
            let labels = [(label, value)];
            let one = encoder.encode_family(&labels)?;
            ConstGauge::new(number).encode(one)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::measures::Pin;

    fn at(seconds: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(seconds))
    }

    fn measured(pins: Vec<Pin>) -> Measured {
        Measured {
            at: at(1000),
            first_seen: pins.iter().map(|pin| (pin.who.clone(), at(400))).collect(),
            measures: Measures {
                oldest_due: Some(Duration::from_secs(5)),
                pins,
                ..Measures::default()
            },
        }
    }

    #[test]
    fn what_waits_grows_older_while_the_database_cannot_be_asked() {
        let measured = measured(Vec::new());
        assert_eq!(measured.oldest(at(1015)).as_secs(), 5);
        assert_eq!(measured.oldest(at(1600)).as_secs(), 605);
    }

    #[test]
    fn a_slot_that_does_not_tell_since_when_is_timed_from_when_it_was_first_seen() {
        let pin = |kind, who: &str, age: Option<u64>| Pin {
            kind,
            who: who.to_owned(),
            state: String::new(),
            since: None,
            age: age.map(Duration::from_secs),
            transactions: 1,
        };
        let measured = measured(vec![
            pin(PinKind::Session, "pid 1", Some(70)),
            pin(PinKind::Session, "pid 2", Some(90)),
            pin(PinKind::Slot, "slot backup", None),
        ]);
        let ages = PinKind::ALL.map(|kind| measured.pin_age(kind, at(1000)).as_secs());
        assert_eq!(ages, [90, 0, 600, 0]);
    }
}
