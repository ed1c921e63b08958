//! Whatever is written into files, variables and flags: an answer, never a panic, and never a
//! secret in it.

use proptest::prelude::*;

use super::given;
use crate::config::{Loaded, Needs};

/// Stands in everything that is secret.
const CANARY: &str = "canary-secret";

const BOTH: Needs = Needs {
    database: true,
    broker: true,
};

/// Every key there is, and some that are none.
fn any_key() -> impl Strategy<Value = String> {
    let defaults = given("", &[]).load(Needs::default());
    let effective = defaults.expect("defaults are valid").effective;
    let known: Vec<String> = effective
        .into_iter()
        .map(|one| one.key.to_owned())
        .collect();
    prop_oneof![
        9 => prop::sample::select(known),
        1 => "[a-z_.]{0,20}",
    ]
}

/// What somebody may write there: right for some key, odd for others.
fn any_value() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(vec![
            "", " ", "0", "1", "-1", "65536", "18446744073709551616", "1e999", "nan", "5s", "0s", "7d", "1h30m",
            "9999999999d", "64MiB", "0B", "99EiB", "true", "off", "plain", "external", "verify-full", "disable",
            "/", "*", ",", "a,b", "localhost,,", "[::]:0", "127.0.0.1:9845", "\u{fffd}", "key", "mark", "info,x=debug",
            "postgres://", "postgres://u@h1:1,h2:x/d?sslmode=verify-full&", "amqp://u@h/%2f", "amqps://h/?heartbeat=-1",
            "host=a port=b", "host='a", "/nonexistent",
        ]).prop_map(str::to_owned),
        1 => "\\PC{0,30}",
        1 => any::<String>(),
    ]
}

/// As TOML: text, list, bare, or broken.
fn any_toml_value() -> impl Strategy<Value = String> {
    let text = |value: &String| format!("{value:?}");
    prop_oneof![
        4 => any_value().prop_map(move |v| text(&v)),
        1 => any_value(),
        1 => prop::collection::vec(any_value(), 0..3).prop_map(move |list| {
            format!("[{}]", list.iter().map(text).collect::<Vec<_>>().join(", "))
        }),
        1 => Just("{ x = 1 }".to_owned()),
    ]
}

fn any_file() -> impl Strategy<Value = String> {
    let line = (any_key(), any_toml_value()).prop_map(|(key, value)| format!("{key} = {value}"));
    prop_oneof![
        9 => prop::collection::vec(line, 0..6).prop_map(|lines| lines.join("\n")),
        1 => "\\PC{0,80}",
    ]
}

fn variable(key: &str) -> String {
    format!("OUTBOX_RELAY__{}", key.replace('.', "__").to_uppercase())
}

/// Everything that a person could be shown of it.
fn shown(loaded: &Loaded) -> String {
    format!("{loaded:?}{:?}", loaded.effective)
}

/// A value with the secret in its password.
fn with_secret(key: &str, value: &str) -> String {
    match key {
        "database.url" => format!("postgres://u:{CANARY}@{value}"),
        "broker.url" => format!("amqp://u:{CANARY}@{value}"),
        "database.password" | "broker.password" => format!("{CANARY}{value}"),
        _ => value.to_owned(),
    }
}

proptest! {
    #[test]
    fn nothing_panics_and_no_secret_is_told(
        file in any_file(),
        variables in prop::collection::vec((any_key(), any_value()), 0..5),
        flags in prop::collection::vec((any_key(), any_value()), 0..3),
    ) {
        let variables: Vec<(String, String)> = variables
            .iter()
            .map(|(key, value)| (variable(key), with_secret(key, value)))
            .collect();
        let variables: Vec<(&str, &str)> = variables.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let mut given = given(&file, &variables);
        for (key, value) in &flags {
            given = given.flag(key, &with_secret(key, value));
        }
        let told = match given.load(BOTH) {
            Ok(loaded) => {
                let broker = format!("{:?}", loaded.config.broker_target().resolve());
                let database = format!("{:?}", loaded.config.database_target().resolve());
                shown(&loaded) + &broker + &database
            }
            Err(faults) => {
                prop_assert!(faults.to_string().starts_with("configuration: "));
                format!("{faults}{faults:?}")
            }
        };
        prop_assert!(!told.contains(CANARY), "{}", told);
    }

    #[test]
    fn a_secret_in_the_file_is_not_told(
        value in any_value(),
        rest in prop_oneof![4 => Just(String::new()), 1 => "\\PC{0,8}"],
        more in any_file(),
    ) {
        // Often no TOML at all: an error must not quote the line.
        let secret = with_secret("database.password", &value);
        let file = format!("database.password = {secret:?}{rest}\n{more}");
        if let Err(faults) = given(&file, &[]).load(BOTH) {
            let told = format!("{faults}{faults:?}");
            prop_assert!(!told.contains(CANARY), "{}", told);
        }
    }
}
