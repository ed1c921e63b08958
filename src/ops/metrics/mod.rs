//! `/metrics`: what a relay counts and measures, in the OpenMetrics text format.
//!
//! The engine tells what happens through its `Observer`; connections and partitions are taken
//! from its health, and the process from `/proc`, when the page is asked for. Labels are bounded.
//! Every name, label and help text stands in `docs/metrics.md`, and a test compares the two.

mod exchanges;
mod process;
mod table;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::http::Page;
use crate::message::ReasonClass;
use crate::relay::rules::Standing;
use crate::relay::{Fate, Landing, Observer, Server};
use crate::runtime::condition::{Broker, Database};
use crate::runtime::{Clock, Health};
use crate::store::Measures;
use exchanges::Exchanges;
use process::Process;
use table::Table;

/// The media type of the OpenMetrics text format, version 1.0.0.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// From half a millisecond to an hour: a backlog's rows are old when they are confirmed.
const SINCE_DUE: [f64; 19] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0, 300.0, 900.0, 3600.0,
];

/// For answers of servers.
const ANSWER: [f64; 15] = [
    0.0002, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0,
];

/// A label and its value.
type Label = [(&'static str, &'static str); 1];
/// A gauge of seconds.
type Seconds = Gauge<f64, AtomicU64>;

/// Everything that is counted. Cheap to tell; rendered when it is asked for.
pub struct Metrics {
    registry: Registry,
    health: Health,
    clock: Clock,
    table: Arc<Table>,
    published: Exchanges,
    read: Counter,
    removed: Counter,
    kept: Counter,
    retries: Family<Label, Counter>,
    reconnects: Family<Label, Counter>,
    leases_lost: Counter,
    since_due: Histogram,
    confirm: Histogram,
    poll: Histogram,
    settle: Histogram,
    in_flight: Gauge,
    buffered_bytes: Gauge,
    broker_connected: Gauge,
    broker_blocked: Gauge,
    database_connected: Gauge,
    partitions_held: Gauge,
    last_confirm: Seconds,
}

impl Metrics {
    /// Nothing has happened yet. `quarantine_owner` is told as it is.
    #[must_use]
    pub fn new(health: Health, clock: Clock, quarantine_owner: &str) -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            health,
            clock,
            table: Arc::new(Table::new(clock)),
            published: Exchanges::default(),
            read: Counter::default(),
            removed: Counter::default(),
            kept: Counter::default(),
            retries: Family::default(),
            reconnects: Family::default(),
            leases_lost: Counter::default(),
            since_due: Histogram::new(SINCE_DUE),
            confirm: Histogram::new(ANSWER),
            poll: Histogram::new(ANSWER),
            settle: Histogram::new(ANSWER),
            in_flight: Gauge::default(),
            buffered_bytes: Gauge::default(),
            broker_connected: Gauge::default(),
            broker_blocked: Gauge::default(),
            database_connected: Gauge::default(),
            partitions_held: Gauge::default(),
            last_confirm: Seconds::default(),
        };
        metrics.register(quarantine_owner);
        metrics
    }

    fn register_removal(&mut self) {
        let relay = self.registry.sub_registry_with_prefix("outbox_relay");
        relay.register(
            "rows_removed",
            "Sent rows removed, outbox.retention being over",
            self.removed.clone(),
        );
        relay.register(
            "removals_refused",
            "Sent rows that could not be removed: a foreign key or a trigger keeps them, or makes it slow",
            self.kept.clone(),
        );
    }

    fn register(&mut self, quarantine_owner: &str) {
        for target in ["database", "broker"] {
            drop(self.reconnects.get_or_create(&[("target", target)]));
        }
        for reason in [
            ReasonClass::Refused,
            ReasonClass::Unroutable,
            ReasonClass::DestinationRefused,
        ] {
            drop(self.retries.get_or_create(&[("reason", reason.as_str())]));
        }
        self.register_words(quarantine_owner);
        self.register_removal();
        let relay = self.registry.sub_registry_with_prefix("outbox_relay");
        relay.register(
            "rows_read",
            "Rows that reads brought, also those met again",
            self.read.clone(),
        );
        relay.register(
            "publishes",
            "Publications, by what became of them",
            self.published.family(),
        );
        relay.register(
            "retries",
            "Rows that wait for another attempt, by what kind of reason",
            self.retries.clone(),
        );
        relay.register(
            "reconnects",
            "Connections made anew, by server",
            self.reconnects.clone(),
        );
        relay.register(
            "leases_lost",
            "Partitions lost to another relay without being handed over",
            self.leases_lost.clone(),
        );
        self.register_durations();
        self.register_gauges();
        self.registry
            .register_collector(Box::new(Arc::clone(&self.table)));
        self.registry.register_collector(Box::new(Process));
    }

    /// What is told as a label, because it is no number.
    fn register_words(&mut self, quarantine_owner: &str) {
        let relay = self.registry.sub_registry_with_prefix("outbox_relay");
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        relay.register("build", "Version of the program", build);
        let owner = Info::new([("owner", quarantine_owner.to_owned())]);
        relay.register(
            "quarantine_owner",
            "Whom to ask about the quarantine: quarantine.owner",
            owner,
        );
    }

    fn register_durations(&mut self) {
        let relay = self.registry.sub_registry_with_prefix("outbox_relay");
        for (name, help, histogram) in [
            (
                "commit_to_confirm_duration_seconds",
                "From when a row was written, which includes the rest of the writer's transaction, or fell due, to the broker's confirm",
                &self.since_due,
            ),
            (
                "confirm_duration_seconds",
                "From handing a message to a channel to the broker's confirm or return",
                &self.confirm,
            ),
            (
                "poll_duration_seconds",
                "Reads of the outbox, without the rest before them",
                &self.poll,
            ),
            (
                "settle_duration_seconds",
                "Writing down what became of a batch of rows",
                &self.settle,
            ),
        ] {
            relay.register(name, help, histogram.clone());
        }
    }

    fn register_gauges(&mut self) {
        let relay = self.registry.sub_registry_with_prefix("outbox_relay");
        for (name, help, gauge) in [
            (
                "in_flight",
                "Published and unconfirmed rows",
                &self.in_flight,
            ),
            (
                "buffered_bytes",
                "Bytes of message bodies in memory",
                &self.buffered_bytes,
            ),
            (
                "broker_connected",
                "1 while there is a connection to RabbitMQ, blocked or not",
                &self.broker_connected,
            ),
            (
                "broker_blocked",
                "1 while RabbitMQ blocks publishing (memory or disk alarm)",
                &self.broker_blocked,
            ),
            (
                "database_connected",
                "1 while both connections to PostgreSQL can be used for writing",
                &self.database_connected,
            ),
            (
                "partitions_held",
                "Partitions of the outbox that this relay holds, of 256",
                &self.partitions_held,
            ),
        ] {
            relay.register(name, help, gauge.clone());
        }
        relay.register(
            "last_confirm_timestamp_seconds",
            "When the broker last confirmed a row, in seconds since 1970; 0 if it has not yet",
            self.last_confirm.clone(),
        );
    }

    /// The page.
    #[must_use]
    pub fn page(&self) -> Page {
        Page {
            content_type: CONTENT_TYPE,
            body: Bytes::from(self.text()),
        }
    }

    fn text(&self) -> String {
        self.look();
        let mut text = String::with_capacity(16 * 1024);
        // Writing to a string does not fail.
        if let Err(error) = encode(&mut text, &self.registry) {
            tracing::error!(%error, "cannot render the metrics");
        }
        text
    }

    /// Takes from health what is a state and not an event.
    fn look(&self) {
        let condition = self.health.watch();
        let condition = condition.borrow();
        let (connected, blocked) = match condition.broker {
            Broker::Connected => (true, false),
            Broker::Blocked(_) => (true, true),
            Broker::Disconnected(_) => (false, false),
        };
        self.broker_connected.set(i64::from(connected));
        self.broker_blocked.set(i64::from(blocked));
        let database = match condition.database {
            Database::Connected => true,
            Database::ReadOnly(_) | Database::Refused(_) | Database::Disconnected(_) => false,
        };
        self.database_connected.set(i64::from(database));
        self.partitions_held.set(i64::from(condition.partitions));
        if !condition.speaks {
            self.table.forget();
        }
    }
}

fn whole(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Observer for Metrics {
    fn read(&self, rows: usize, took: Duration) {
        self.read.inc_by(rows as u64);
        self.poll.observe(took.as_secs_f64());
    }

    fn landed(&self, landings: &[Landing<'_>]) {
        self.published.count(landings);
        for landing in landings {
            match landing.fate {
                Fate::Confirmed | Fate::Returned | Fate::Nacked => {
                    self.confirm.observe(landing.took.as_secs_f64());
                }
                Fate::Unknown => {}
            }
        }
        let confirmed = landings.iter().filter_map(|landing| landing.since_due);
        for since_due in confirmed.clone() {
            self.since_due.observe(since_due.as_secs_f64());
        }
        if confirmed.count() > 0 {
            let now = self.clock.wall().duration_since(UNIX_EPOCH);
            self.last_confirm.set(now.unwrap_or_default().as_secs_f64());
        }
    }

    fn settled(&self, took: Duration) {
        self.settle.observe(took.as_secs_f64());
    }

    fn removed(&self, rows: usize) {
        self.removed.inc_by(rows as u64);
    }

    fn kept(&self) {
        self.kept.inc();
    }

    fn retried(&self, reason: ReasonClass) {
        self.retries
            .get_or_create(&[("reason", reason.as_str())])
            .inc();
    }

    fn standing(&self, standing: &Standing) {
        self.in_flight.set(whole(standing.in_flight));
        self.buffered_bytes.set(whole(standing.buffered_bytes));
    }

    fn connected(&self, server: Server, again: bool) {
        if again {
            let target = match server {
                Server::Database => "database",
                Server::Broker => "broker",
            };
            self.reconnects.get_or_create(&[("target", target)]).inc();
        }
    }

    fn leases_lost(&self, partitions: usize) {
        self.leases_lost.inc_by(partitions as u64);
    }

    fn measured(&self, measures: Measures) {
        self.table.measured(measures);
    }
}

#[cfg(test)]
mod tests;
