//! One source of settings as it was found: values by key, each with its origin.
//!
//! Judges nothing. The strongest of several layers wins, key by key; merging is the `config`
//! crate's work.

use std::collections::BTreeMap;
use std::fmt;

use config::{ConfigError, Map, Source, Value};

use super::Origin;

/// A value and where it was found.
#[derive(Clone)]
pub(super) struct Found {
    pub value: Value,
    pub origin: Origin,
    /// From the environment or a flag: text whatever the key's type is.
    pub textual: bool,
}

/// The values of one source by `section.key`; a key without a dot stood outside any section.
#[derive(Clone, Default)]
pub(super) struct Layer(BTreeMap<String, Found>);

impl Layer {
    pub fn insert(&mut self, key: &str, found: Found) {
        self.0.insert(key.to_owned(), found);
    }

    pub fn insert_text(&mut self, key: &str, text: &str, origin: Origin) {
        let found = Found {
            value: Value::new(None, text),
            origin,
            textual: true,
        };
        self.insert(key, found);
    }

    pub fn get(&self, key: &str) -> Option<&Found> {
        self.0.get(key)
    }

    pub fn remove(&mut self, key: &str) {
        self.0.remove(key);
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Found)> {
        self.0.iter().map(|(key, found)| (key.as_str(), found))
    }
}

/// Keys only: values may be secrets.
impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, ConfigError> {
        // Whatever cannot be a key of ours must not be read as a path expression; it is reported
        // as unknown elsewhere.
        let ours = self.0.iter().filter(|(key, _)| is_plain(key));
        Ok(ours
            .map(|(key, found)| (key.clone(), found.value.clone()))
            .collect())
    }
}

fn is_plain(key: &str) -> bool {
    let word = |part: &str| {
        let mut bytes = part.bytes();
        !part.is_empty() && bytes.all(|b| b == b'_' || b.is_ascii_alphanumeric())
    };
    key.split_once('.')
        .is_some_and(|(section, name)| word(section) && word(name))
}

/// All sources, the weakest first.
#[derive(Debug, Default)]
pub(super) struct Layers(pub Vec<Layer>);

impl Layers {
    /// The winning value of a key.
    pub fn strongest(&self, key: &str) -> Option<&Found> {
        self.0.iter().rev().find_map(|layer| layer.get(key))
    }

    /// Where the winning value of a key came from.
    pub fn origin(&self, key: &str) -> Origin {
        self.strongest(key)
            .map_or(Origin::Default, |found| found.origin.clone())
    }

    /// The winning values by section and key.
    pub fn merged(&self) -> Result<Map<String, Value>, ConfigError> {
        let mut builder = config::Config::builder();
        for layer in &self.0 {
            builder = builder.add_source(layer.clone());
        }
        builder.build()?.collect()
    }
}
