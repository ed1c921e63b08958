use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use super::*;
use crate::message::RowId;
use crate::store::measures::{Count, GivenUp, Pause};

const DOCUMENTATION: &str = include_str!("../../../docs/metrics.md");

/// Name, type, labels and help, as they are told or documented.
type Line = (String, String, String, String);

pub(super) fn landing(exchange: &str, fate: Fate) -> Landing<'_> {
    let second = Duration::from_secs(1);
    Landing {
        row: RowId(1),
        exchange,
        fate,
        took: second,
        since_due: (fate == Fate::Confirmed).then_some(second),
    }
}

fn busy() -> Metrics {
    let health = Health::starting(Clock.now());
    health.partitions(256, true);
    let metrics = Metrics::new(health, Clock, "team-payments");
    let second = Duration::from_secs(1);
    metrics.read(3, second);
    metrics.landed(&[landing("orders", Fate::Confirmed)]);
    metrics.settled(second);
    metrics.retried(ReasonClass::Unroutable);
    metrics.connected(Server::Broker, true);
    metrics.measured(Measures {
        pending: Count::new(3, None),
        dead_tuples: Some(4),
        quarantine: vec![GivenUp {
            reason: "too_large".to_owned(),
            rows: Count::new(2, None),
            oldest: second,
        }],
        pauses: vec![Pause {
            exchange: Some("orders".to_owned()),
            by: "ann".to_owned(),
            reason: "deploy".to_owned(),
            since: SystemTime::UNIX_EPOCH,
            until: None,
        }],
        ..Measures::default()
    });
    metrics
}

/// What the page tells. A sample's name is the metric's, with a suffix that its type demands.
fn told(text: &str) -> BTreeSet<Line> {
    let mut described: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|l| l.split_once(' ')) {
            described.entry(name).or_default().1 = help;
        }
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|l| l.split_once(' ')) {
            described.entry(name).or_default().0 = kind;
        }
    }
    let each = described.into_iter().map(|(name, (kind, help))| {
        let suffix = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        let labels = labels(text, name);
        let help = help.trim_end_matches('.').to_owned();
        (format!("{name}{suffix}"), kind.to_owned(), labels, help)
    });
    each.collect()
}

/// The labels of a metric's first sample, without the buckets' own.
fn labels(text: &str, name: &str) -> String {
    let of_it = |line: &&str| {
        let rest = line.strip_prefix(name);
        let suffix = rest.and_then(|rest| rest.split(['{', ' ']).next());
        suffix.is_some_and(|suffix| ["", "_total", "_info", "_bucket"].contains(&suffix))
    };
    let sample = text
        .lines()
        .find(of_it)
        .unwrap_or_else(|| panic!("no sample of {name}"));
    let Some((_, labels)) = sample.split_once('{') else {
        return String::new();
    };
    let names = labels
        .split("\",")
        .filter_map(|label| label.split('=').next());
    let names = names.filter(|name| *name != "le" && !name.starts_with('}'));
    names.collect::<Vec<_>>().join(", ")
}

fn documented() -> BTreeSet<Line> {
    // What consumers tell is compared in `inbox::metrics`.
    let ours = |line: &&str| line.starts_with("| `") && !line.starts_with("| `outbox_inbox_");
    let rows = DOCUMENTATION.lines().filter(ours);
    let cells = |row: &str| {
        let mut cells = row
            .trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().replace('`', ""));
        let mut next = || cells.next().unwrap_or_default();
        (next(), next(), next(), next())
    };
    rows.map(cells).collect()
}

#[test]
fn the_page_is_what_the_documentation_says() {
    let text = busy().text();
    let (told, documented) = (told(&text), documented());
    let row =
        |(name, kind, labels, help): &Line| format!("| `{name}` | {kind} | {labels} | {help} |");
    let missing: Vec<_> = told.difference(&documented).map(row).collect();
    let surplus: Vec<_> = documented.difference(&told).map(row).collect();
    assert!(
        missing.is_empty() && surplus.is_empty(),
        "not in docs/metrics.md:\n{}\nonly there:\n{}",
        missing.join("\n"),
        surplus.join("\n")
    );
}

/// The README shows the first to watch, with their labels in braces, and leads to the page with all.
#[test]
fn what_the_readme_names_is_told_with_these_labels() {
    let readme = include_str!("../../../README.md");
    let told: BTreeMap<_, _> = told(&busy().text())
        .into_iter()
        .map(|(name, _, labels, _)| (name, labels))
        .collect();
    let section = readme.split("\n## Watching it\n").nth(1);
    let section = section.and_then(|rest| rest.split("\n## ").next());
    let section = section.expect("a section about watching");
    assert!(section.contains("(docs/metrics.md)"), "{section}");
    let named = section
        .split('`')
        .filter(|word| word.starts_with("outbox_relay_"));
    let mut count = 0;
    for named in named {
        let (name, labels) = named.split_once('{').unwrap_or((named, ""));
        let labels = labels.trim_end_matches('}').replace(',', ", ");
        assert_eq!(told.get(name), Some(&labels), "{named}");
        count += 1;
    }
    assert!(count > 5, "only {count} are named");
}

#[test]
fn everything_promised_is_told() {
    let text = busy().text();
    for name in
        "oldest_pending_age_seconds pending_rows scheduled_rows blocked_keys rows_read_total \
         publishes_total commit_to_confirm_duration_seconds confirm_duration_seconds \
         poll_duration_seconds settle_duration_seconds in_flight buffered_bytes retries_total \
         quarantine_rows quarantine_oldest_age_seconds broker_connected broker_blocked \
         database_connected reconnects_total last_confirm_timestamp_seconds paused partitions_held \
         leases_lost_total vacuum_pin_age_seconds dead_tuples build_info"
            .split_whitespace()
    {
        let name = format!("\noutbox_relay_{name}");
        assert!(text.contains(&name), "{name} is not in\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn the_whole_outbox_is_told_by_who_speaks_for_it_only() {
    let metrics = busy();
    assert!(metrics.text().contains("outbox_relay_pending_rows 3"));
    metrics.health.partitions(100, false);
    let text = metrics.text();
    assert!(!text.contains("outbox_relay_pending_rows"), "{text}");
    assert!(text.contains("outbox_relay_partitions_held 100"));
}

#[test]
fn connections_are_told_as_health_has_them() {
    let metrics = busy();
    let told = |name: &str, value: u8| {
        let line = format!("outbox_relay_{name} {value}\n");
        let text = metrics.text();
        assert!(text.contains(&line), "{line} is not in\n{text}");
    };
    told("broker_connected", 0);
    told("database_connected", 0);
    metrics.health.database(Database::Connected);
    metrics.health.broker(Broker::Blocked("memory".to_owned()));
    told("broker_connected", 1);
    told("broker_blocked", 1);
    told("database_connected", 1);
}
