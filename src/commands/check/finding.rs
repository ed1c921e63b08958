//! One line of what `check` found.

use serde::Serialize;

/// How it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// As it should be.
    Ok,
    /// Works, with a risk that somebody should know of.
    Warning,
    /// Keeps rows from being sent.
    Failed,
    /// Could not be looked at: the server does not answer.
    Unreachable,
}

impl State {
    /// As it is printed.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failed => "failed",
            Self::Unreachable => "unreachable",
        }
    }
}

/// What was looked at, how it is, and what makes it right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// What was looked at: one of a few words.
    pub(super) check: &'static str,
    /// How it is.
    pub(super) state: State,
    /// What was found, for people.
    pub(super) found: String,
    /// What makes it right; `None` where nothing needs to be done.
    pub(super) remedy: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self {
            check,
            state: State::Ok,
            found: found.into(),
            remedy: None,
        }
    }

    pub(super) fn warning(
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            state: State::Warning,
            remedy: Some(remedy.into()),
            ..Self::ok(check, found)
        }
    }

    pub(super) fn failed(
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            state: State::Failed,
            remedy: Some(remedy.into()),
            ..Self::ok(check, found)
        }
    }
}
