//! Keys that do not exist: reported with their place and with what was probably meant.

use std::collections::{BTreeMap, BTreeSet};

use super::Fault;
use super::Origin;
use super::environment::variable_of;
use super::layer::{Found, Layer};
use super::nearest::nearest;
use super::reader::by_section;

/// The faults of one source; a section that does not exist is reported once.
pub(super) fn unknown_keys(layer: &Layer, known: &BTreeSet<&'static str>) -> Vec<Fault> {
    let sections = by_section(known);
    let mut reported = BTreeSet::new();
    let mut faults = Vec::new();
    for (key, found) in layer.iter().filter(|(key, _)| !known.contains(key)) {
        let problem = match key.split_once('.') {
            None => outside(key, found, &sections),
            Some((section, name)) => match sections.get(section) {
                Some(names) => unknown_name(section, name, names, &sections),
                None if reported.insert(section) => unknown_section(section, name, &sections),
                None => continue,
            },
        };
        faults.push(Fault {
            key: key.to_owned(),
            origin: Some(found.origin.clone()),
            problem,
        });
    }
    faults
}

type Sections<'k> = BTreeMap<&'k str, Vec<&'k str>>;

fn unknown_name(section: &str, name: &str, names: &[&str], sections: &Sections<'_>) -> String {
    if let Some(meant) = nearest(name, names.iter().copied()) {
        return format!("unknown key; did you mean {section}.{meant}?");
    }
    let elsewhere = sections.iter().find(|(_, names)| names.contains(&name));
    match elsewhere {
        Some((other, _)) => format!("unknown key; did you mean {other}.{name}?"),
        None => format!("unknown key; [{section}] has {}", names.join(", ")),
    }
}

fn unknown_section(section: &str, name: &str, sections: &Sections<'_>) -> String {
    if let Some(meant) = nearest(section, sections.keys().copied()) {
        return format!("unknown section; did you mean [{meant}]?");
    }
    let owners: Vec<&str> = sections
        .iter()
        .filter(|(_, names)| names.contains(&name))
        .map(|(owner, _)| *owner)
        .collect();
    match owners.as_slice() {
        [owner] => format!("unknown section; did you mean {owner}.{name}?"),
        _ => {
            let all: Vec<&str> = sections.keys().copied().collect();
            format!("unknown section; there are {}", all.join(", "))
        }
    }
}

/// A value at the top level of the file, or a variable with too few underscores.
fn outside(key: &str, found: &Found, sections: &Sections<'_>) -> String {
    if sections.contains_key(key) {
        return format!("is a section: write [{key}] and its keys below");
    }
    let full = sections
        .iter()
        .flat_map(|(section, names)| names.iter().map(move |name| (*section, *name)))
        .find(|(section, name)| *name == key || format!("{section}_{name}") == key);
    match (full, &found.origin) {
        (Some((section, name)), Origin::Variable(_)) => format!(
            "unknown key; write {}",
            variable_of(&format!("{section}.{name}"))
        ),
        (Some((section, name)), _) => {
            format!("unknown key; {name} belongs into the section [{section}]")
        }
        (None, _) => "unknown key; every key belongs into a section".to_owned(),
    }
}
