//! What can go wrong between the relay and its database, sorted by what to do about it.
//!
//! Pure: no client crate, no I/O. `postgres::sqlstate` makes these from what PostgreSQL
//! answered, by SQLSTATE alone and never by message text (messages are translated). Nothing
//! here decides how long to wait or whether to give up; the engine does.

use std::fmt;

/// One refusal, told for people. Holds neither secrets nor row values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What was being done: "connect to db1:5432", "mark rows sent" …
    pub doing: String,
    /// The five characters that PostgreSQL answered with, if it answered.
    pub sqlstate: Option<String>,
    /// Why, with the whole chain of causes.
    pub reason: String,
    /// What makes it right, with the setting's name, where more is known than the class says.
    pub remedy: Option<String>,
    /// The row of the outbox that it is about, if the server names one.
    pub row: Option<i64>,
}

impl Fault {
    /// A fault that no SQLSTATE stands behind.
    #[must_use]
    pub fn new(doing: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            doing: doing.into(),
            sqlstate: None,
            reason: reason.into(),
            remedy: None,
            row: None,
        }
    }

    /// The same for a place that shows the remedy apart.
    #[must_use]
    pub fn without_remedy(self) -> Self {
        Self {
            remedy: None,
            ..self
        }
    }

    /// The same with what makes it right.
    #[must_use]
    pub fn with_remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..self
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.doing, self.reason)?;
        if let Some(remedy) = &self.remedy {
            write!(f, "; {remedy}")?;
        }
        match &self.sqlstate {
            Some(code) => write!(f, " (SQLSTATE {code})"),
            None => Ok(()),
        }
    }
}

/// Why the store could not do what was asked, one variant for each different answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The session is gone or none can be had: class 08, 57P01 to 57P05, 53300, 25P03, and
    /// everything that broke before PostgreSQL could answer. Connect again, with backoff.
    #[error("database unreachable: {0}")]
    Unreachable(Fault),
    /// 40001, 40P01, 55P03: the same statement may succeed at once on the same session.
    #[error("database busy: {0}")]
    Retryable(Fault),
    /// 25006, or a session that is read-only from the start: another host may be the primary.
    #[error("database is read-only: {0}")]
    ReadOnly(Fault),
    /// 42P01, 42703, 3F000, 42883, 42704, 42804: something expected is missing; or 0A000, 26000:
    /// a prepared statement no longer fits. Connect again; if it stays, migrate.
    #[error("schema missing or changed: {0}{usual}", usual = unless_named(_0))]
    Schema(Fault),
    /// 42501 or class 28: rights, login, password. Somebody has to act.
    #[error("denied by the database: {0}")]
    Denied(Fault),
    /// 57014, or our own deadline: the statement took too long; its effect is unknown if it was a commit.
    #[error("timed out: {0}")]
    TimedOut(Fault),
    /// The client's own settings cannot be used: an unreadable certificate, a server too old, a
    /// database that is not there (3D000).
    #[error("unusable settings: {0}")]
    Settings(Fault),
    /// Everything else, for instance a full disk or a corrupted page.
    #[error("database error: {0}")]
    Other(Fault),
}

/// What makes a schema right, where the fault does not name another thing.
fn unless_named(fault: &Fault) -> &'static str {
    match fault.remedy {
        Some(_) => "",
        None => "; `outbox-relay check` says what is missing, `outbox-relay migrate` makes it",
    }
}

impl StoreError {
    /// The words behind the class.
    #[must_use]
    pub fn fault(&self) -> &Fault {
        match self {
            Self::Unreachable(fault)
            | Self::Retryable(fault)
            | Self::ReadOnly(fault)
            | Self::Schema(fault)
            | Self::Denied(fault)
            | Self::TimedOut(fault)
            | Self::Settings(fault)
            | Self::Other(fault) => fault,
        }
    }

    /// It lasts until somebody changes a setting, a login, a right or the schema.
    #[must_use]
    pub fn lasts(&self) -> bool {
        match self {
            Self::Schema(_) | Self::Denied(_) | Self::Settings(_) => true,
            Self::Unreachable(_)
            | Self::Retryable(_)
            | Self::ReadOnly(_)
            | Self::TimedOut(_)
            | Self::Other(_) => false,
        }
    }

    /// The whole text without the remedy.
    #[must_use]
    pub fn found(&self) -> String {
        let bare = self.clone().map_fault(Fault::without_remedy);
        bare.to_string()
    }

    /// The same class with other words.
    #[must_use]
    pub fn map_fault(self, change: impl FnOnce(Fault) -> Fault) -> Self {
        match self {
            Self::Unreachable(fault) => Self::Unreachable(change(fault)),
            Self::Retryable(fault) => Self::Retryable(change(fault)),
            Self::ReadOnly(fault) => Self::ReadOnly(change(fault)),
            Self::Schema(fault) => Self::Schema(change(fault)),
            Self::Denied(fault) => Self::Denied(change(fault)),
            Self::TimedOut(fault) => Self::TimedOut(change(fault)),
            Self::Settings(fault) => Self::Settings(change(fault)),
            Self::Other(fault) => Self::Other(change(fault)),
        }
    }

    /// The SQLSTATE behind the class, if PostgreSQL answered.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&str> {
        self.fault().sqlstate.as_deref()
    }

    /// Sorts what PostgreSQL answered. `sqlstate` is the five-character code.
    ///
    /// Codes: PostgreSQL manual, appendix A "PostgreSQL Error Codes".
    #[must_use]
    pub fn from_sqlstate(sqlstate: &str, doing: impl Into<String>, reason: &str) -> Self {
        let fault = Fault {
            sqlstate: Some(sqlstate.to_owned()),
            ..Fault::new(doing, reason)
        };
        match sqlstate {
            "40001" | "40P01" => Self::Retryable(fault),
            "55P03" => Self::Retryable(fault.with_remedy(
                "another session holds the table locked: wait for it, or end it (see pg_locks)",
            )),
            "25006" => Self::ReadOnly(fault),
            "42P01" | "42703" | "42704" | "42804" | "42883" | "3F000" | "0A000" | "26000" => {
                Self::Schema(fault)
            }
            "3D000" => Self::Settings(
                fault.with_remedy("create it, or correct the name (database.dbname, or the URL)"),
            ),
            "42501" => {
                Self::Denied(fault.with_remedy("outbox-relay grants prints what each role needs"))
            }
            "57014" => Self::TimedOut(fault),
            "53300" | "25P03" | "57P01" | "57P02" | "57P03" | "57P04" | "57P05" => {
                Self::Unreachable(fault)
            }
            code if code.starts_with("08") => Self::Unreachable(fault),
            code if code.starts_with("28") => Self::Denied(fault),
            _ => Self::Other(fault),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(sqlstate: &str) -> &'static str {
        match StoreError::from_sqlstate(sqlstate, "test", "because") {
            StoreError::Unreachable(_) => "unreachable",
            StoreError::Retryable(_) => "retryable",
            StoreError::ReadOnly(_) => "read-only",
            StoreError::Schema(_) => "schema",
            StoreError::Denied(_) => "denied",
            StoreError::TimedOut(_) => "timed out",
            StoreError::Settings(_) => "settings",
            StoreError::Other(_) => "other",
        }
    }

    #[test]
    fn every_sqlstate_the_relay_reacts_to_has_its_class() {
        for (codes, expected) in [
            (
                "08000 08001 08003 08006 08P01 53300 57P01 57P02 57P03 57P04 57P05 25P03",
                "unreachable",
            ),
            ("40001 40P01 55P03", "retryable"),
            ("25006", "read-only"),
            ("42P01 42703 42883 3F000 0A000 26000", "schema"),
            ("3D000", "settings"),
            ("42501 28000 28P01", "denied"),
            ("57014", "timed out"),
            ("53100 53200 23505 22P02 XX001 P0001 25001", "other"),
        ] {
            for code in codes.split(' ') {
                assert_eq!(class(code), expected, "{code}");
            }
        }
    }

    #[test]
    fn one_remedy_is_named_and_no_other() {
        let missing = StoreError::from_sqlstate("42P01", "ask", "no such relation");
        let text = missing.to_string();
        assert!(text.ends_with("`outbox-relay migrate` makes it"), "{text}");
        let text = missing.map_fault(|fault| fault.with_remedy("migrate --inbox"));
        let text = text.to_string();
        assert!(
            text.contains("migrate --inbox") && !text.contains("check"),
            "{text}"
        );
        for (code, remedy) in [("42501", "outbox-relay grants"), ("55P03", "pg_locks")] {
            let text = StoreError::from_sqlstate(code, "look", "no").to_string();
            assert!(text.contains(remedy), "{text}");
        }
    }

    #[test]
    fn a_fault_names_the_act_the_reason_and_the_code() {
        let error = StoreError::from_sqlstate("28P01", "connect to db1:5432", "password refused");
        assert_eq!(
            error.to_string(),
            "denied by the database: connect to db1:5432: password refused (SQLSTATE 28P01)"
        );
        assert_eq!(error.sqlstate(), Some("28P01"));
    }
}
