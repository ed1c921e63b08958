//! Log lines: their fields are those of the documentation, in the sources and as printed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::scene::{Draft, Scene};

const MACROS: [&str; 5] = ["error!(", "warn!(", "info!(", "debug!(", "trace!("];

/// Field names in the table of `docs/operating.md`.
fn documented() -> BTreeSet<String> {
    let page = include_str!("../../docs/operating.md");
    let (_, logs) = page.split_once("\n## Logs\n").expect("a section");
    let logs = logs.split("\n## ").next().expect("a section");
    let names = logs.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = names.map(|line| line.split(" |").next().expect("a cell"));
    let names = names.flat_map(|cell| cell.split(", "));
    names.map(|name| name.replace('`', "")).collect()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Arguments of a macro, from behind its opening parenthesis.
fn arguments(text: &str) -> Vec<String> {
    let (mut depth, mut quoted, mut escaped) = (0, false, false);
    let mut all = vec![String::new()];
    for c in text.chars() {
        let inside = quoted;
        match c {
            '"' if !escaped => quoted = !quoted,
            '(' | '[' | '{' if !inside => depth += 1,
            ')' if !inside && depth == 0 => break,
            ')' | ']' | '}' if !inside => depth -= 1,
            ',' if !inside && depth == 0 => {
                all.push(String::new());
                continue;
            }
            _ => {}
        }
        escaped = c == '\\' && !escaped;
        all.last_mut().expect("one").push(c);
    }
    all
}

/// The fields that a log macro sets.
fn fields(text: &str) -> BTreeSet<String> {
    let arguments = arguments(text);
    let named = arguments.iter().map(|argument| argument.trim());
    let named = named.take_while(|argument| !argument.starts_with('"'));
    let named = named.filter(|argument| !argument.starts_with("target:"));
    let name = |argument: &str| {
        let name = argument.split(" = ").next().unwrap_or(argument);
        let name = name.trim_start_matches(['%', '?']);
        name.rsplit('.').next().unwrap_or(name).to_owned()
    };
    named.map(name).filter(|name| !name.is_empty()).collect()
}

#[test]
fn every_field_in_the_sources_is_documented_and_no_other_is() {
    let mut files = Vec::new();
    sources(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut files,
    );
    let mut used = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("text");
        let text = text.split("#[cfg(test)]").next().expect("a first part");
        for (at, _) in text.match_indices("!(") {
            let start = MACROS.iter().find(|one| text[..at + 2].ends_with(*one));
            if start.is_some() {
                used.extend(fields(&text[at + 2..]));
            }
        }
    }
    let mut documented = documented();
    for made_by_the_writer in ["timestamp", "level", "target", "message"] {
        assert!(
            documented.remove(made_by_the_writer),
            "{made_by_the_writer}"
        );
    }
    assert_eq!(used, documented);
}

/// Lines of a relay that goes through trouble, as JSON.
#[tokio::test]
async fn json_lines_have_documented_fields_and_levels_by_consequence() {
    let mut scene = Scene::new().await;
    scene.set("LOG__FORMAT", "json");
    scene.set("RETRY__INITIAL", "1h");
    scene.set("RETRY__MAX_DELAY", "1h");
    let relay = scene.ready_relay().await;
    scene
        .write(&[Draft::by("nowhere", "x"), Draft::to(&"x".repeat(300))])
        .await;
    relay.printed("a row waits").await;
    relay.printed("a row goes to quarantine").await;
    scene
        .run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name LIKE 'outbox-relay/%'",
        )
        .await;
    relay.printed("cannot read from the database").await;
    relay.ready().await;
    relay.terminate();
    relay.ended().await;
    let documented = documented();
    let mut levels = BTreeSet::new();
    for line in relay.output() {
        let line: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
        let line = line.as_object().expect("an object");
        for (name, value) in line {
            assert!(documented.contains(name), "{name} in {line:?}");
            assert!(!value.is_object() && !value.is_array(), "{name} is flat");
        }
        let text = |name: &str| line[name].as_str().expect("text").to_owned();
        levels.insert((text("level"), text("message")));
    }
    let has = |level: &str, message: &str| {
        let line = (level.to_owned(), message.to_owned());
        assert!(levels.contains(&line), "{line:?} is not among {levels:?}");
    };
    // What goes as it should; what somebody should look at. An outage is no error of ours.
    has("INFO", "starting");
    has("INFO", "drained");
    has("WARN", "a row waits");
    has("WARN", "a row goes to quarantine");
    has("WARN", "cannot read from the database");
    assert!(
        levels.iter().all(|(level, _)| level != "ERROR"),
        "{levels:?}"
    );
}
