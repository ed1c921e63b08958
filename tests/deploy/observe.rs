//! Alerting rules and dashboard speak of metrics that exist, and of a runbook that has the entry.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use yaml_rust2::Yaml;

use crate::manifest::{documents, read, text};
use crate::support::places::{Places, needed};

const RULES: &str = "prometheus/alerts.yaml";
const RULES_TESTS: &str = "prometheus/alerts_test.yaml";
const DASHBOARD: &str = "grafana/outbox-relay.json";

fn documentation(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs")
        .join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Names of samples, as `docs/metrics.md` has them, which is compared with the program elsewhere.
fn known() -> BTreeSet<String> {
    let page = documentation("metrics.md");
    let mut known = BTreeSet::new();
    for row in page.lines().filter_map(|line| line.strip_prefix("| `")) {
        let mut cells = row.split('|').map(|cell| cell.trim().trim_matches('`'));
        let (name, kind) = (cells.next().expect("a name"), cells.next().expect("a type"));
        let suffixes: &[&str] = match kind {
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        known.extend(suffixes.iter().map(|suffix| format!("{name}{suffix}")));
    }
    assert!(known.len() > 40, "{known:?}");
    known
}

/// Names of ours in an expression.
fn named(expression: &str) -> BTreeSet<&str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words
        .filter(|word| {
            ["outbox_relay_", "outbox_inbox_", "process_"]
                .iter()
                .any(|ours| word.starts_with(ours))
        })
        .collect()
}

fn assert_exist(place: &str, expression: &str) {
    let known = known();
    let names = named(expression);
    assert!(!names.is_empty(), "{place}: {expression} is about nothing");
    for name in names {
        assert!(known.contains(name), "{place}: there is no metric {name}");
    }
}

/// Anchors of a page's headings, as GitHub makes them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

fn rules() -> Vec<Yaml> {
    let files = documents(RULES);
    let groups = files[0]["groups"].as_vec().expect("groups");
    let rules = groups
        .iter()
        .flat_map(|group| group["rules"].as_vec().expect("rules"));
    rules.cloned().collect()
}

#[test]
fn every_rule_is_about_metrics_that_exist_and_names_its_entry_in_the_runbook() {
    let anchors = anchors(&documentation("runbook.md"));
    let rules = rules();
    assert!(rules.len() > 10);
    for rule in &rules {
        let name = text(&rule["alert"]);
        assert_exist(name, text(&rule["expr"]));
        let severity = text(&rule["labels"]["severity"]);
        assert!(["warning", "critical"].contains(&severity), "{name}");
        let annotations = &rule["annotations"];
        for kind in ["summary", "description"] {
            assert!(!text(&annotations[kind]).is_empty(), "{name}: {kind}");
        }
        let runbook = text(&annotations["runbook"]);
        let anchor = runbook.strip_prefix("docs/runbook.md#").expect("an entry");
        assert!(anchors.contains(anchor), "{name}: no entry {anchor}");
    }
}

#[test]
fn every_rule_has_a_test_and_age_comes_first() {
    let tests = read(RULES_TESTS);
    let rules = rules();
    for rule in &rules {
        let name = text(&rule["alert"]);
        let fires = format!("alertname: {name}\n");
        let asked = tests.split(&fires).skip(1);
        let mut expected = asked.map(|after| after.split("alertname:").next().unwrap_or(""));
        assert!(
            expected.any(|test| test.contains("exp_labels")),
            "{name} never fires"
        );
    }
    let first = text(&rules[0]["expr"]);
    assert!(first.contains("oldest_pending_age_seconds"), "{first}");
    let depth = |rule: &Yaml| text(&rule["expr"]).contains("pending_rows");
    assert!(
        !rules.iter().any(depth),
        "depth alone is no reason to wake anybody"
    );
}

#[test]
fn prometheus_accepts_the_rules_and_their_tests() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/prometheus");
    let Some(promtool) = needed("promtool", Places::known().promtool.as_ref()) else {
        return;
    };
    for arguments in [
        ["check", "rules", "alerts.yaml"],
        ["test", "rules", "alerts_test.yaml"],
    ] {
        let run = Command::new(promtool)
            .args(arguments)
            .current_dir(&folder)
            .output();
        let output = run.expect("promtool runs");
        let said = String::from_utf8_lossy(&output.stdout);
        let faults = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}\n{faults}");
    }
}

/// Everything in the dashboard that asks Prometheus.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(expression)) = fields.get("expr") {
                found.push(expression.clone());
            }
            fields.values().for_each(|field| expressions(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| expressions(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn the_dashboard_shows_metrics_that_exist_and_all_of_them() {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).expect("JSON");
    let mut all = Vec::new();
    expressions(&dashboard, &mut all);
    assert!(all.len() > 30, "{} expressions", all.len());
    for expression in &all {
        assert_exist(DASHBOARD, expression);
        assert!(expression.contains("job=~\"$job\""), "{expression}");
    }
    let shown = all.join(" ");
    for name in known() {
        let of_a_histogram = name.ends_with("_sum") || name.ends_with("_count");
        let aside = name.starts_with("process_") || name.ends_with("_info") || of_a_histogram;
        assert!(
            aside || named(&shown).contains(name.as_str()),
            "{name} is not shown"
        );
    }
    let ids: Vec<_> = dashboard["panels"]
        .as_array()
        .expect("panels")
        .iter()
        .map(|panel| panel["id"].as_i64().expect("an id"))
        .collect();
    let different: BTreeSet<_> = ids.iter().collect();
    assert_eq!(ids.len(), different.len());
}
