//! Where a value came from.

use std::fmt;
use std::path::PathBuf;

/// A source of settings, precise enough for a person to go there and change the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// A variable that other programs read too: `DATABASE_URL`, `AMQP_URL`.
    Conventional(String),
    /// The configuration file.
    File {
        /// As it was named.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// A variable of our own, `OUTBOX_RELAY__SECTION__KEY`.
    Variable(String),
    /// A command-line flag.
    Flag(String),
}

impl Origin {
    /// The kind of source in one word, for scripts.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Conventional(_) | Self::Variable(_) => "environment",
            Self::File { .. } => "file",
            Self::Flag(_) => "flag",
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Conventional(name) | Self::Variable(name) | Self::Flag(name) => f.write_str(name),
        }
    }
}
