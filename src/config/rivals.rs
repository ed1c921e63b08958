//! Settings that answer the same question twice: a URL and discrete keys, a value and its `_file`
//! twin.
//!
//! Between sources a stronger URL drops the weaker address and every key it answers itself, and a
//! stronger `host` drops the weaker URL. Within one source two answers are a fault. What remains
//! beside a URL is of its own or of a stronger source, and wins over the URL's part.

use std::path::PathBuf;

use secrecy::ExposeSecret;

use super::amqp_url::AmqpUrl;
use super::layer::{Found, Layer, Layers};
use super::libpq::Parameters;
use super::setting::Written;
use super::{Fault, Secret};

const TWINS: [(&str, &str); 4] = [
    ("database.url", "database.url_file"),
    ("database.password", "database.password_file"),
    ("broker.url", "broker.url_file"),
    ("broker.password", "broker.password_file"),
];

/// Drops what a stronger source overrides, and reports what contradicts itself.
pub(super) fn settle(layers: &mut Layers, faults: &mut Vec<Fault>) {
    for at in (0..layers.0.len()).rev() {
        let (weaker, rest) = layers.0.split_at_mut(at);
        let Some(layer) = rest.first_mut() else {
            continue;
        };
        for (value, twin) in TWINS {
            contradiction(layer, value, twin, faults);
            if layer.get(value).is_some() || layer.get(twin).is_some() {
                drop_all(weaker, &[value, twin]);
            }
        }
        for section in ["database", "broker"] {
            one_address(weaker, rest, section, faults);
        }
    }
}

/// `rest` begins with the source in question; stronger ones follow.
fn one_address(
    weaker: &mut [Layer],
    rest: &mut [Layer],
    section: &'static str,
    faults: &mut Vec<Fault>,
) {
    let key = |name: &str| format!("{section}.{name}");
    let Some(layer) = rest.first_mut() else {
        return;
    };
    let url = ["url", "url_file"]
        .map(key)
        .into_iter()
        .find(|url| layer.get(url).is_some());
    let (Some(url), host, port) = (url, key("host"), key("port")) else {
        if layer.get(&key("host")).is_some() {
            drop_all(weaker, &[&key("url"), &key("url_file")]);
        }
        return;
    };
    contradiction(layer, &url, &host, faults);
    contradiction(layer, &url, &port, faults);
    drop_all(weaker, &[&host, &port]);
    for name in said_by(section, layer, &url) {
        drop_all(weaker, &[&key(name)]);
        // These have defaults, so a key of theirs could not be told from its absence later.
        if ["connect_timeout", "heartbeat", "auth"].contains(&name) {
            for layer in rest.iter_mut() {
                if let Some(found) = layer.get(&key(name)) {
                    faults.push(said_twice(&url, &key(name), found));
                    layer.remove(&key(name));
                }
            }
        }
    }
}

fn contradiction(layer: &mut Layer, one: &str, other: &str, faults: &mut Vec<Fault>) {
    if layer.get(one).is_none() {
        return;
    }
    if let Some(found) = layer.get(other) {
        faults.push(said_twice(one, other, found));
        layer.remove(other);
    }
}

fn said_twice(one: &str, other: &str, found: &Found) -> Fault {
    Fault {
        key: other.to_owned(),
        origin: Some(found.origin.clone()),
        problem: format!("{one} says it already: remove one of the two"),
    }
}

fn drop_all(layers: &mut [Layer], keys: &[&str]) {
    for layer in layers {
        for key in keys {
            layer.remove(key);
        }
    }
}

/// The keys that a URL answers too. One that cannot be read answers nothing here; the fault is
/// reported where it is resolved.
fn said_by(section: &str, layer: &Layer, key: &str) -> Vec<&'static str> {
    let written = layer.get(key).map(|found| Written::of(&found.value.kind));
    let texts: Vec<&str> = match written {
        Some(Written::List(items)) => {
            let texts = items.iter().map(|item| Written::of(&item.kind).text());
            texts.flatten().collect()
        }
        Some(single) => single.text().into_iter().collect(),
        None => Vec::new(),
    };
    let file = match texts.first() {
        Some(path) if key.ends_with("_file") => Secret::File(PathBuf::from(path)).read().ok(),
        Some(_) | None => None,
    };
    let texts = match &file {
        Some(content) => content.expose_secret().lines().collect(),
        None => texts,
    };
    let said = texts.into_iter().flat_map(|text| match section {
        "database" => said_by_libpq(text),
        _ => said_by_amqp(text),
    });
    said.collect()
}

fn said_by_libpq(text: &str) -> Vec<&'static str> {
    let Ok(parameters) = Parameters::parse(text) else {
        return Vec::new();
    };
    parameters
        .names()
        .flat_map(|name| match name {
            // A password belongs to its user.
            "user" => vec!["user", "password", "password_file"],
            "password" | "passfile" => vec!["password", "password_file"],
            "dbname" => vec!["dbname"],
            "sslmode" => vec!["sslmode"],
            "sslrootcert" => vec!["ca_file"],
            "sslcert" => vec!["cert_file"],
            "sslkey" => vec!["key_file"],
            "connect_timeout" => vec!["connect_timeout"],
            _ => vec![],
        })
        .collect()
}

fn said_by_amqp(text: &str) -> Vec<&'static str> {
    let Ok(url) = AmqpUrl::parse(text) else {
        return Vec::new();
    };
    let mut said = Vec::new();
    if url.user.is_some() || url.password.is_some() {
        said.extend(["user", "password", "password_file"]);
    }
    let parts = [
        (url.vhost.is_some(), "vhost"),
        (url.ca_file.is_some(), "ca_file"),
        (url.cert_file.is_some(), "cert_file"),
        (url.key_file.is_some(), "key_file"),
        (url.server_name.is_some(), "server_name"),
        (url.auth.is_some(), "auth"),
        (url.heartbeat.is_some(), "heartbeat"),
        (url.connect_timeout.is_some(), "connect_timeout"),
    ];
    said.extend(
        parts
            .iter()
            .filter(|(given, _)| *given)
            .map(|(_, key)| *key),
    );
    said
}
