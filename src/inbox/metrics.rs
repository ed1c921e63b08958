//! The observer that counts into a Prometheus registry, under the documented names.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::observer::{DeadEntries, Observer, RetryReason};

/// Most different values of a label whose values come from outside; the rest is `other`.
const MOST_VALUES: usize = 100;
const OTHER: &str = "other";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfConsumer {
    consumer: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfType {
    consumer: String,
    r#type: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfReason {
    consumer: String,
    reason: String,
}

/// Counters of all consumers of a process, with the prefix `outbox_inbox_`.
#[derive(Debug)]
pub struct Metrics {
    completed: Family<OfType, Counter>,
    retries: Family<OfReason, Counter>,
    redeliveries: Family<OfConsumer, Counter>,
    duplicates: Family<OfConsumer, Counter>,
    claim_conflicts: Family<OfConsumer, Counter>,
    handler_duration: Family<OfConsumer, Histogram, fn() -> Histogram>,
    dead_rows: Family<OfReason, Gauge>,
    dead_oldest_age: Family<OfConsumer, Gauge<f64, AtomicU64>>,
    types: Bounded,
    reasons: Bounded,
    /// What each consumer had dead when last counted.
    shown: Mutex<HashMap<String, HashSet<OfReason>>>,
}

impl Metrics {
    /// Registers everything.
    pub fn register(registry: &mut Registry) -> Self {
        let registry = registry.sub_registry_with_prefix("outbox_inbox");
        let metrics = Self {
            completed: Family::default(),
            retries: Family::default(),
            redeliveries: Family::default(),
            duplicates: Family::default(),
            claim_conflicts: Family::default(),
            handler_duration: Family::new_with_constructor(durations),
            dead_rows: Family::default(),
            dead_oldest_age: Family::default(),
            types: Bounded::default(),
            reasons: Bounded::default(),
            shown: Mutex::default(),
        };
        metrics.name(registry);
        metrics
    }

    fn name(&self, registry: &mut Registry) {
        registry.register(
            "completed",
            "Messages whose result is durable",
            self.completed.clone(),
        );
        registry.register(
            "retries",
            "Attempts that failed and are repeated",
            self.retries.clone(),
        );
        registry.register(
            "redeliveries",
            "Deliveries that the broker repeated",
            self.redeliveries.clone(),
        );
        registry.register(
            "duplicates",
            "Deliveries of what was done already",
            self.duplicates.clone(),
        );
        registry.register(
            "claim_conflicts",
            "Deliveries of what another works on",
            self.claim_conflicts.clone(),
        );
        registry.register(
            "handler_duration_seconds",
            "How long handlers ran",
            self.handler_duration.clone(),
        );
        registry.register(
            "dead_rows",
            "Messages that were given up",
            self.dead_rows.clone(),
        );
        registry.register(
            "dead_oldest_age_seconds",
            "Age of the oldest message given up",
            self.dead_oldest_age.clone(),
        );
    }
}

/// 1 ms to 65 s.
fn durations() -> Histogram {
    Histogram::new(prometheus_client::metrics::histogram::exponential_buckets(
        0.001, 2.0, 17,
    ))
}

/// Lets only so many different values through.
#[derive(Debug, Default)]
struct Bounded(Mutex<HashSet<String>>);

impl Bounded {
    fn pass(&self, value: &str) -> String {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.contains(value) || seen.len() < MOST_VALUES {
            seen.insert(value.to_owned());
            value.to_owned()
        } else {
            OTHER.to_owned()
        }
    }
}

fn of(consumer: &str) -> OfConsumer {
    OfConsumer {
        consumer: consumer.to_owned(),
    }
}

impl Observer for Metrics {
    fn completed(&self, consumer: &str, kind: Option<&str>) {
        let labels = OfType {
            consumer: consumer.to_owned(),
            r#type: self.types.pass(kind.unwrap_or_default()),
        };
        self.completed.get_or_create(&labels).inc();
    }

    fn retried(&self, consumer: &str, reason: RetryReason) {
        let labels = OfReason {
            consumer: consumer.to_owned(),
            reason: reason.as_str().to_owned(),
        };
        self.retries.get_or_create(&labels).inc();
    }

    fn redelivered(&self, consumer: &str) {
        self.redeliveries.get_or_create(&of(consumer)).inc();
    }

    fn duplicate(&self, consumer: &str) {
        self.duplicates.get_or_create(&of(consumer)).inc();
    }

    fn claim_conflict(&self, consumer: &str) {
        self.claim_conflicts.get_or_create(&of(consumer)).inc();
    }

    fn handled(&self, consumer: &str, took: Duration) {
        let histogram = self.handler_duration.get_or_create(&of(consumer));
        histogram.observe(took.as_secs_f64());
    }

    fn dead(&self, consumer: &str, entries: &[DeadEntries]) {
        let mut rows: HashMap<OfReason, u64> = HashMap::new();
        for entry in entries {
            let labels = OfReason {
                consumer: consumer.to_owned(),
                reason: self.reasons.pass(&entry.reason),
            };
            *rows.entry(labels).or_default() += entry.rows;
        }
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let now = rows.keys().cloned().collect();
        let before = shown.insert(consumer.to_owned(), now).unwrap_or_default();
        // Classes that are gone must not stay as they were.
        for gone in before.iter().filter(|labels| !rows.contains_key(labels)) {
            self.dead_rows.remove(gone);
        }
        for (labels, rows) in rows {
            let rows = i64::try_from(rows).unwrap_or(i64::MAX);
            self.dead_rows.get_or_create(&labels).set(rows);
        }
        let oldest = entries.iter().map(|entry| entry.oldest_age).max();
        let age = self.dead_oldest_age.get_or_create(&of(consumer));
        age.set(oldest.unwrap_or_default().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).expect("memory");
        text
    }

    #[test]
    fn names_are_those_of_the_documentation() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        metrics.completed("pay", Some("paid"));
        metrics.retried("pay", RetryReason::RetryAfter);
        metrics.redelivered("pay");
        metrics.duplicate("pay");
        metrics.claim_conflict("pay");
        metrics.handled("pay", Duration::from_millis(3));
        let dead = |reason: &str, rows| DeadEntries {
            reason: reason.to_owned(),
            rows,
            oldest_age: Duration::from_secs(5),
        };
        metrics.dead("pay", &[dead("abandoned", 7)]);
        metrics.dead("pay", &[dead("permanent", 2)]);
        let text = text(&registry);
        for line in [
            "outbox_inbox_completed_total{consumer=\"pay\",type=\"paid\"} 1",
            "outbox_inbox_retries_total{consumer=\"pay\",reason=\"retry_after\"} 1",
            "outbox_inbox_redeliveries_total{consumer=\"pay\"} 1",
            "outbox_inbox_duplicates_total{consumer=\"pay\"} 1",
            "outbox_inbox_claim_conflicts_total{consumer=\"pay\"} 1",
            "outbox_inbox_handler_duration_seconds_count{consumer=\"pay\"} 1",
            "outbox_inbox_dead_rows{consumer=\"pay\",reason=\"permanent\"} 2",
            "outbox_inbox_dead_oldest_age_seconds{consumer=\"pay\"} 5.0",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("abandoned"), "{text}");
        let documentation = include_str!("../../docs/metrics.md");
        let rows = documentation.lines();
        let rows = rows.filter_map(|line| line.strip_prefix("| `outbox_inbox_"));
        let mut documented = 0;
        for row in rows {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            let name = cells[0].trim_end_matches('`').trim_end_matches("_total");
            let told = format!("outbox_inbox_{name}");
            let help = format!("# HELP {told} {}.\n", cells[3]);
            let kind = format!("# TYPE {told} {}\n", cells[1]);
            assert!(text.contains(&help) && text.contains(&kind), "{help}{text}");
            documented += 1;
        }
        assert_eq!(documented, text.matches("# TYPE ").count(), "{text}");
    }

    #[test]
    fn labels_from_outside_are_bounded() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        for number in 0..1000 {
            metrics.completed("pay", Some(&format!("type {number}")));
        }
        let text = text(&registry);
        assert!(text.contains("type=\"other\"} 900"), "{text}");
    }
}
