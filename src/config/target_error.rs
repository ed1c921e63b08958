//! Why an address cannot be made out; never holds a secret.

use std::fmt;

/// What is wrong with the settings of one server. At start it is a fault of the configuration;
/// later, when a secret file was changed for the worse, a reason to wait and read again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct TargetError {
    /// Keys and what is wrong with each.
    pub problems: Vec<(&'static str, String)>,
}

impl TargetError {
    pub(super) fn one(key: &'static str, problem: impl Into<String>) -> Self {
        Self {
            problems: vec![(key, problem.into())],
        }
    }
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, problem)) in self.problems.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{key}: {problem}")?;
        }
        Ok(())
    }
}
