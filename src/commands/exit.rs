//! What a command's end says to whoever started it.

use std::process::ExitCode;

use crate::broker::{BrokerError, TCP_CONNECT};
use crate::config::{Faults, TargetError};
use crate::store::error::StoreError;

/// The command line makes no sense, in a way that only the command itself can see.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Misuse(pub String);

/// The exit codes, the same for every command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: done.
    Done,
    /// 1: a check failed or something was refused.
    Failed,
    /// 2: the command line makes no sense.
    Usage,
    /// 75 (EX_TEMPFAIL): a server cannot be reached; later it may.
    Unreachable,
    /// 78 (EX_CONFIG): a setting, login or right has to be changed first.
    Configuration,
}

impl Exit {
    /// The number.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Unreachable => 75,
            Self::Configuration => 78,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// For a command that runs once: a daemon waits instead.
impl From<&StoreError> for Exit {
    fn from(error: &StoreError) -> Self {
        match error {
            StoreError::Unreachable(_) | StoreError::ReadOnly(_) | StoreError::TimedOut(_) => {
                Self::Unreachable
            }
            StoreError::Denied(_) | StoreError::Settings(_) | StoreError::Schema(_) => {
                Self::Configuration
            }
            StoreError::Retryable(_) | StoreError::Other(_) => Self::Failed,
        }
    }
}

impl From<&BrokerError> for Exit {
    fn from(error: &BrokerError) -> Self {
        match error {
            BrokerError::Timeout { .. } => Self::Unreachable,
            BrokerError::Failed { step, .. } if *step == TCP_CONNECT => Self::Unreachable,
            BrokerError::Failed { .. } => Self::Failed,
            BrokerError::Misfit { .. } | BrokerError::Settings { .. } => Self::Configuration,
        }
    }
}

impl From<&Faults> for Exit {
    fn from(_: &Faults) -> Self {
        Self::Configuration
    }
}

/// The first cause that has an exit code of its own decides.
impl From<&anyhow::Error> for Exit {
    fn from(error: &anyhow::Error) -> Self {
        let own = error.chain().find_map(|cause| {
            if cause.is::<Faults>() || cause.is::<TargetError>() {
                return Some(Self::Configuration);
            }
            if cause.is::<Misuse>() {
                return Some(Self::Usage);
            }
            let broker = cause.downcast_ref::<BrokerError>().map(Self::from);
            broker.or_else(|| cause.downcast_ref::<StoreError>().map(Self::from))
        });
        own.unwrap_or(Self::Failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::error::Fault;

    #[test]
    fn codes_are_those_of_the_documentation() {
        let all = [
            Exit::Done,
            Exit::Failed,
            Exit::Usage,
            Exit::Unreachable,
            Exit::Configuration,
        ];
        assert_eq!(all.map(Exit::code), [0, 1, 2, 75, 78]);
    }

    #[test]
    fn an_outage_is_not_a_mistake_in_the_settings() {
        let fault = || Fault::new("connect", "test");
        assert_eq!(
            Exit::from(&StoreError::Unreachable(fault())),
            Exit::Unreachable
        );
        assert_eq!(
            Exit::from(&StoreError::Denied(fault())),
            Exit::Configuration
        );
    }

    #[test]
    fn a_cause_is_found_under_its_context() {
        let faults = anyhow::Error::new(Faults(Vec::new())).context("cannot start");
        assert_eq!(Exit::from(&faults), Exit::Configuration);
        let outage = StoreError::Unreachable(Fault::new("connect", "test"));
        let outage = anyhow::Error::new(outage).context("cannot look");
        let misuse = anyhow::Error::new(Misuse("say which".to_owned()));
        assert_eq!(Exit::from(&misuse), Exit::Usage);
        assert_eq!(Exit::from(&outage), Exit::Unreachable);
        assert_eq!(Exit::from(&anyhow::anyhow!("else")), Exit::Failed);
    }
}
