//! `[log]`: how to log.

use super::nearest::nearest;
use super::reader::{Reader, accept};
use super::setting::Choice;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The shape of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The keys of `[log]`.
#[derive(Clone, Debug)]
pub struct LogSection {
    /// `format`.
    pub format: LogFormat,
    /// `level`: `error`, `warn`, `info`, `debug`, `trace` or `off`, optionally with
    /// `target=level` exceptions after commas.
    pub level: String,
}

impl Default for LogSection {
    fn default() -> Self {
        Self {
            format: LogFormat::Text,
            level: "info".to_owned(),
        }
    }
}

impl Choice for LogFormat {
    const WORDS: &'static [(&'static str, Self)] = &[("text", Self::Text), ("json", Self::Json)];
}

impl LogSection {
    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        let defaults = Self::default();
        Self {
            format: reader.value("log.format", defaults.format, accept),
            level: reader.value("log.level", defaults.level, level),
        }
    }
}

fn level(text: &impl AsRef<str>) -> Result<(), String> {
    let text = text.as_ref();
    for part in text.split(',').map(str::trim) {
        let (target, level) = match part.split_once('=') {
            Some((target, level)) => (target, level),
            None => ("any", part),
        };
        let is_path = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        if target.is_empty() || !target.chars().all(is_path) || !LEVELS.contains(&level) {
            let meant = nearest(level, LEVELS)
                .map_or_else(String::new, |meant| format!("; did you mean \"{meant}\"?"));
            return Err(format!(
                "must be one of {}, or such with exceptions, as in \"info,lapin=warn\"{meant}",
                LEVELS.join(", ")
            ));
        }
    }
    Ok(())
}
