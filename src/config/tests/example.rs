//! `config/outbox-relay.toml` is the reference of all settings: complete, true, and valid.

use super::given;
use crate::config::{Needs, Origin};

const EXAMPLE: &str = include_str!("../../../config/outbox-relay.toml");

#[test]
fn the_example_file_holds_every_key_with_its_default() {
    let with_file = given(EXAMPLE, &[]);
    let of_file = with_file.load(Needs::default()).unwrap();
    let defaults = given("", &[]).load(Needs::default()).unwrap();
    assert_eq!(of_file.effective.len(), defaults.effective.len());
    for (written, default) in of_file.effective.iter().zip(&defaults.effective) {
        assert_eq!(written.key, default.key);
        assert_eq!(written.value, default.value, "{}", written.key);
        let in_file = matches!(written.origin, Origin::File { .. });
        assert_eq!(in_file, default.value.is_some(), "{}", written.key);
        if !in_file {
            let (section, name) = written.key.split_once('.').unwrap();
            let line = commented(section, name);
            assert!(line.is_some(), "{} is not mentioned", written.key);
        }
    }
}

#[test]
fn every_commented_line_of_the_example_is_valid_when_uncommented() {
    let defaults = given("", &[]).load(Needs::default()).unwrap();
    let unset = defaults.effective.iter().filter(|key| key.value.is_none());
    for key in unset.map(|effective| effective.key) {
        let (section, name) = key.split_once('.').unwrap();
        let line = commented(section, name).unwrap();
        let company = match (section, name) {
            ("broker", "url" | "host") => "user = 'u'\npassword = 'p'\n",
            ("broker", "port") => "host = 'h'\nuser = 'u'\npassword = 'p'\n",
            _ => "",
        };
        let company = if line.contains("relay@") && section == "broker" {
            "password = 'p'\n"
        } else {
            company
        };
        let file = format!("[{section}]\n{line}\n{company}");
        let loaded = given(&file, &[]).load(Needs::default());
        assert!(loaded.is_ok(), "{file}: {}", loaded.unwrap_err());
    }
}

/// The line `# name = …` of a section, without its mark.
fn commented(section: &str, name: &str) -> Option<&'static str> {
    let start = EXAMPLE.find(&format!("\n[{section}]\n"))? + 2;
    let end = EXAMPLE[start..]
        .find("\n[")
        .map_or(EXAMPLE.len(), |at| start + at);
    EXAMPLE[start..end]
        .lines()
        .filter_map(|line| line.strip_prefix("# "))
        .find(|line| line.starts_with(&format!("{name} = ")))
}
