//! What is wrong with the configuration: every fault at once, each naming key and source.
//!
//! Never holds the value of a secret.

use std::fmt;

use super::Origin;

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// `section.key`, or empty when the source as a whole is meant.
    pub key: String,
    /// Where the value came from; `None` when nothing was given at all.
    pub origin: Option<Origin>,
    /// What is wrong and what would be right.
    pub problem: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}: ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.problem)
    }
}

/// All mistakes of one configuration, in the order of the sources and sections.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [only] => write!(f, "configuration: {only}"),
            many => {
                write!(f, "configuration: {} faults", many.len())?;
                many.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
            }
        }
    }
}
