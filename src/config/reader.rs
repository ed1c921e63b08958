//! Reads keys one by one from the merged sources and gathers every fault on the way.
//!
//! The reads themselves say which keys exist: a key that nobody asked for is unknown.

use std::collections::{BTreeMap, BTreeSet};

use config::{Map, Value, ValueKind};
use secrecy::SecretString;

use super::layer::Layers;
use super::setting::{Setting, Written};
use super::{Fault, Origin, Secret};

/// A key, its effective value for people, and where that came from.
#[derive(Clone, Debug)]
pub struct Effective {
    /// `section.key`.
    pub key: &'static str,
    /// As it would be written; `None` when nothing is set. A secret's value is never here.
    pub value: Option<String>,
    /// Whether the value is hidden.
    pub secret: bool,
    /// Where it came from.
    pub origin: Origin,
}

/// Reads keys; after the last one, `known` and `faults` tell the rest.
pub(super) struct Reader<'a> {
    layers: &'a Layers,
    merged: Map<String, Value>,
    pub known: BTreeSet<&'static str>,
    pub effective: Vec<Effective>,
    pub faults: Vec<Fault>,
    faulty: BTreeSet<&'static str>,
}

/// Stands for what nobody may see.
const MASK: &str = "***";

/// Nothing of it.
pub(super) fn masked(_: &str) -> Option<String> {
    None
}

/// A key's fault without the key, or nothing.
pub(super) type Verdict = Result<(), String>;

impl<'a> Reader<'a> {
    pub fn new(layers: &'a Layers, merged: Map<String, Value>) -> Self {
        Self {
            layers,
            merged,
            known: BTreeSet::new(),
            effective: Vec::new(),
            faults: Vec::new(),
            faulty: BTreeSet::new(),
        }
    }

    /// A key with a default. `rule` judges what was given.
    pub fn value<T: Setting>(
        &mut self,
        key: &'static str,
        default: T,
        rule: impl Fn(&T) -> Verdict,
    ) -> T {
        let given = self.given(key, rule);
        let value = given.unwrap_or(default);
        self.note(key, Some(value.shown()), false);
        value
    }

    /// A key without a default.
    pub fn optional<T: Setting>(
        &mut self,
        key: &'static str,
        rule: impl Fn(&T) -> Verdict,
    ) -> Option<T> {
        let value = self.given(key, rule);
        self.note(key, value.as_ref().map(Setting::shown), false);
        value
    }

    /// A list without a default.
    pub fn list<T: Setting>(&mut self, key: &'static str, rule: impl Fn(&T) -> Verdict) -> Vec<T> {
        self.optional(key, |items: &Vec<T>| items.iter().try_for_each(&rule))
            .unwrap_or_default()
    }

    /// A secret and its `_file` twin. `show` tells what people may see of it.
    pub fn secret(
        &mut self,
        key: &'static str,
        twin: &'static str,
        show: impl Fn(&str) -> Option<String>,
    ) -> Option<Secret> {
        let whole = |text: &str| vec![text.to_owned()];
        self.secrets(key, twin, whole, show).into_iter().next()
    }

    /// Several secrets, or the file that holds them.
    pub fn secrets(
        &mut self,
        key: &'static str,
        twin: &'static str,
        split: impl Fn(&str) -> Vec<String>,
        show: impl Fn(&str) -> Option<String>,
    ) -> Vec<Secret> {
        let texts = self.secret_texts(key, split);
        let shown: Vec<String> = texts
            .iter()
            .map(|text| show(text).unwrap_or_else(|| MASK.to_owned()))
            .collect();
        self.note(key, Some(shown.join(",")).filter(|s| !s.is_empty()), true);
        let file = self.optional(twin, accept);
        match file {
            Some(path) => vec![Secret::File(path)],
            None => texts
                .into_iter()
                .map(|text| Secret::Value(SecretString::from(text)))
                .collect(),
        }
    }

    fn secret_texts(
        &mut self,
        key: &'static str,
        split: impl Fn(&str) -> Vec<String>,
    ) -> Vec<String> {
        self.known.insert(key);
        let texts = match self.raw(key).map(|value| Written::of(&value.kind)) {
            None => Ok(Vec::new()),
            Some(Written::List(items)) => items
                .iter()
                .map(|item| Written::of(&item.kind).text().map(str::to_owned))
                .collect::<Option<Vec<_>>>()
                .ok_or("must be a list of texts, in quotes"),
            Some(single) => single.text().map(split).ok_or("must be text, in quotes"),
        };
        let texts = texts.and_then(|texts| {
            let empty = self.raw(key).is_some() && !texts.iter().any(|text| !text.is_empty());
            if empty { Err("is empty") } else { Ok(texts) }
        });
        texts.unwrap_or_else(|problem| {
            self.fault(key, problem.to_owned());
            Vec::new()
        })
    }

    /// Judges several keys together, unless one of them is faulty in itself. The fault is told of
    /// the first key that somebody set.
    pub fn rule(&mut self, keys: &[&'static str], holds: bool, problem: impl FnOnce() -> String) {
        if holds || keys.iter().any(|key| self.faulty.contains(key)) {
            return;
        }
        let set = keys
            .iter()
            .find(|key| self.layers.strongest(key).is_some())
            .or(keys.first());
        if let Some(key) = set {
            self.fault(key, problem());
        }
    }

    /// Whether somebody set the key.
    pub fn is_set(&self, key: &str) -> bool {
        self.layers.strongest(key).is_some()
    }

    /// Reports a fault of a key.
    pub fn fault(&mut self, key: &'static str, problem: String) {
        self.faulty.insert(key);
        self.faults.push(Fault {
            key: key.to_owned(),
            origin: self.layers.strongest(key).map(|f| f.origin.clone()),
            problem,
        });
    }

    /// These were set and could not be taken over, so that their absence means nothing.
    pub fn distrust(&mut self, keys: &[String]) {
        let set = |key: &&&'static str| keys.iter().any(|one| one == **key);
        self.faulty.extend(self.known.iter().filter(set));
    }

    /// Whether one of these keys was faulty.
    pub fn is_faulty(&self, section: &str, names: &[&str]) -> bool {
        self.faulty
            .iter()
            .filter_map(|key| key.split_once('.'))
            .any(|(its, name)| its == section && names.contains(&name))
    }

    fn given<T: Setting>(&mut self, key: &'static str, rule: impl Fn(&T) -> Verdict) -> Option<T> {
        self.known.insert(key);
        let value = self.raw(key)?.clone();
        let textual = self.layers.strongest(key).is_some_and(|f| f.textual);
        let written = Written::of(&value.kind);
        let read = match written.text() {
            Some(text) if textual => T::from_text(text),
            Some(_) | None => T::from_typed(&written),
        };
        match read.and_then(|read| rule(&read).map(|()| read)) {
            Ok(read) => Some(read),
            Err(problem) => {
                self.fault(key, format!("{}{problem}", quoted(&written)));
                None
            }
        }
    }

    fn raw(&self, key: &str) -> Option<&Value> {
        let (section, name) = key.split_once('.')?;
        if let ValueKind::Table(table) = &self.merged.get(section)?.kind {
            table.get(name)
        } else {
            None
        }
    }

    fn note(&mut self, key: &'static str, value: Option<String>, secret: bool) {
        self.effective.push(Effective {
            key,
            value,
            secret,
            origin: self.layers.origin(key),
        });
    }
}

/// Every value will do.
pub(super) fn accept<T>(_: &T) -> Verdict {
    Ok(())
}

/// From `low` to `high`, both included.
pub(super) fn within<T: Setting + PartialOrd>(low: T, high: T) -> impl Fn(&T) -> Verdict {
    move |value| {
        if *value >= low && *value <= high {
            Ok(())
        } else {
            Err(format!("must be from {} to {}", low.shown(), high.shown()))
        }
    }
}

/// Text that is not empty.
pub(super) fn not_empty(text: &impl AsRef<str>) -> Verdict {
    if text.as_ref().trim().is_empty() {
        Err("must not be empty".to_owned())
    } else {
        Ok(())
    }
}

/// What was written, to begin the message with; but not a URL in the wrong place, which may hold
/// a password.
fn quoted(value: &Written<'_>) -> String {
    match value {
        Written::Text(text) if text.contains("://") => String::new(),
        Written::Text(text) => format!("{text:?}: "),
        Written::Truth(truth) => format!("{truth}: "),
        Written::Whole(number) => format!("{number}: "),
        Written::Real(number) => format!("{number}: "),
        Written::List(_) | Written::Strange => String::new(),
    }
}

/// Known keys by section, for "did you mean".
pub(super) fn by_section<'k>(known: &BTreeSet<&'k str>) -> BTreeMap<&'k str, Vec<&'k str>> {
    let mut sections: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (section, name) in known.iter().filter_map(|key| key.split_once('.')) {
        sections.entry(section).or_default().push(name);
    }
    sections
}
