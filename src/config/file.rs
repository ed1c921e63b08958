//! The configuration file: found, read, and each key traced to its line.
//!
//! Does not judge values. Never quotes the file's text: a line may hold a password.

use std::path::{Path, PathBuf};

use config::{Value, ValueKind};
use toml::de::{DeTable, DeValue};

use super::layer::{Found, Layer};
use super::{Fault, Origin};

/// Reads the file into a layer. What cannot be read is a fault and no layer.
pub(super) fn read(path: &Path, named_by: Option<Origin>) -> Result<Layer, Vec<Fault>> {
    match std::fs::read_to_string(path) {
        Ok(text) => parse(path, &text),
        Err(error) => Err(vec![Fault {
            key: String::new(),
            origin: named_by,
            problem: format!(
                "cannot read the configuration file {}: {error}",
                path.display()
            ),
        }]),
    }
}

fn parse(path: &Path, text: &str) -> Result<Layer, Vec<Fault>> {
    let place = Place { path, text };
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let fault = |error: &toml::de::Error| Fault {
            key: String::new(),
            origin: Some(place.at(error.span().map_or(0, |span| span.start))),
            problem: format!("not valid TOML: {}", error.message().replace('\n', "; ")),
        };
        return Err(errors.iter().map(fault).collect());
    }
    let mut layer = Layer::default();
    let mut faults = Vec::new();
    for (key, value) in table.get_ref() {
        let DeValue::Table(section) = value.get_ref() else {
            place.insert(&mut layer, &mut faults, key.get_ref(), (key, value));
            continue;
        };
        for (name, value) in section {
            let full = format!("{}.{}", key.get_ref(), name.get_ref());
            place.insert(&mut layer, &mut faults, &full, (name, value));
        }
    }
    if faults.is_empty() {
        Ok(layer)
    } else {
        Err(faults)
    }
}

type Pair<'a, 'i> = (
    &'a toml::Spanned<std::borrow::Cow<'i, str>>,
    &'a toml::Spanned<DeValue<'i>>,
);

struct Place<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Place<'_> {
    fn at(&self, offset: usize) -> Origin {
        let before = self.text.as_bytes().iter().take(offset);
        Origin::File {
            path: PathBuf::from(self.path),
            line: 1 + before.filter(|byte| **byte == b'\n').count(),
        }
    }

    fn insert(&self, layer: &mut Layer, faults: &mut Vec<Fault>, full: &str, pair: Pair<'_, '_>) {
        let (name, value) = pair;
        let origin = self.at(name.span().start);
        match typed(value.get_ref()) {
            Ok(kind) => layer.insert(
                full,
                Found {
                    value: Value::new(None, kind),
                    origin,
                    textual: false,
                },
            ),
            Err(problem) => faults.push(Fault {
                key: full.to_owned(),
                origin: Some(origin),
                problem,
            }),
        }
    }
}

fn typed(value: &DeValue<'_>) -> Result<ValueKind, String> {
    Ok(match value {
        DeValue::String(text) => ValueKind::String(text.clone().into_owned()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map(ValueKind::I64)
            .map_err(|_| format!("{} is out of range", number.as_str()))?,
        DeValue::Float(number) => number
            .as_str()
            .parse()
            .map(ValueKind::Float)
            .map_err(|_| format!("{} is not a number", number.as_str()))?,
        DeValue::Boolean(truth) => ValueKind::Boolean(*truth),
        DeValue::Datetime(_) => ValueKind::Nil,
        DeValue::Array(items) => {
            let items: Result<Vec<_>, _> = items
                .iter()
                .map(|item| typed(item.get_ref()).map(|kind| Value::new(None, kind)))
                .collect();
            ValueKind::Array(items?)
        }
        DeValue::Table(_) => ValueKind::Table(config::Map::new()),
    })
}
