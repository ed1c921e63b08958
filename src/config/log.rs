//! `[log]`: how to log.

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
