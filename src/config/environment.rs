//! The environment: our own variables, the conventional ones, and near misses of the former.

use std::collections::BTreeMap;
use std::ffi::OsString;

use config::{Environment, Source, ValueKind};

use super::layer::Layer;
use super::{Fault, Origin};

/// Begins every variable of ours.
const PREFIX: &str = "OUTBOX_RELAY";
/// Names the configuration file.
pub(super) const FILE_VARIABLE: &str = "OUTBOX_RELAY_CONFIG";
/// Read by many programs; the weakest source. Empty counts as not set.
const CONVENTIONAL: [(&str, &str); 2] =
    [("DATABASE_URL", "database.url"), ("AMQP_URL", "broker.url")];

/// The variables of a process. A non-UTF-8 name is never ours; a non-UTF-8 value may be.
pub(super) struct Variables<'a>(pub &'a [(OsString, OsString)]);

impl Variables<'_> {
    /// The value of one variable, if it is set and not empty.
    pub fn get(&self, name: &str) -> Option<&OsString> {
        let found = self.0.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value).filter(|v| !v.is_empty())
    }

    /// `DATABASE_URL` and `AMQP_URL`.
    pub fn conventional(&self, faults: &mut Vec<Fault>) -> Layer {
        let mut layer = Layer::default();
        for (name, key) in CONVENTIONAL {
            let Some(value) = self.get(name) else {
                continue;
            };
            let origin = Origin::Conventional(name.to_owned());
            match value.to_str() {
                Some(text) => layer.insert_text(key, text, origin),
                None => faults.push(not_utf8(key, origin)),
            }
        }
        layer
    }

    /// `OUTBOX_RELAY__SECTION__KEY`.
    pub fn own(&self, faults: &mut Vec<Fault>) -> Layer {
        let mut names = BTreeMap::new();
        let mut texts = config::Map::new();
        for (name, value) in self.0 {
            let Some((name, key)) = name.to_str().and_then(|n| Some((n, key_of(n)?))) else {
                continue;
            };
            names.insert(key.clone(), name.to_owned());
            match value.to_str() {
                Some(text) => {
                    texts.insert(name.to_owned(), text.to_owned());
                }
                None => faults.push(not_utf8(&key, Origin::Variable(name.to_owned()))),
            }
        }
        // Never `try_parsing`: it turns the password 0123 into 123.
        let source = Environment::with_prefix(PREFIX)
            .prefix_separator("__")
            .separator("__")
            .source(Some(texts));
        let mut layer = Layer::default();
        for (key, value) in source.collect().unwrap_or_default() {
            if let (ValueKind::String(text), Some(name)) = (&value.kind, names.get(&key)) {
                layer.insert_text(&key, text, Origin::Variable(name.clone()));
            }
        }
        layer
    }

    /// A known key written with single underscores is an oversight. Other variables that begin
    /// like ours are not: Kubernetes makes `OUTBOX_RELAY_SERVICE_HOST` out of a Service's name.
    pub fn near_misses<'k>(&self, known: impl Iterator<Item = &'k str>, faults: &mut Vec<Fault>) {
        let known: BTreeMap<String, &str> = known.map(|key| (key.replace('.', "_"), key)).collect();
        for (name, _) in self.0 {
            let name = name.to_string_lossy();
            let rest = name.strip_prefix(PREFIX).and_then(|r| r.strip_prefix('_'));
            let Some(rest) = rest.filter(|rest| !rest.starts_with('_')) else {
                continue;
            };
            let flat = rest.replace("__", "_").to_lowercase();
            if let Some(key) = known.get(&flat) {
                faults.push(Fault {
                    key: (*key).to_owned(),
                    origin: Some(Origin::Variable(name.clone().into_owned())),
                    problem: format!(
                        "not read: section and key are set off by two underscores each; write {}",
                        variable_of(key)
                    ),
                });
            }
        }
    }
}

/// The variable that sets a key.
pub(super) fn variable_of(key: &str) -> String {
    format!("{PREFIX}__{}", key.replace('.', "__").to_uppercase())
}

fn key_of(name: &str) -> Option<String> {
    let rest = name.strip_prefix(PREFIX)?.strip_prefix("__")?;
    Some(rest.to_lowercase().replace("__", "."))
}

fn not_utf8(key: &str, origin: Origin) -> Fault {
    Fault {
        key: key.to_owned(),
        origin: Some(origin),
        problem: "not valid UTF-8".to_owned(),
    }
}
