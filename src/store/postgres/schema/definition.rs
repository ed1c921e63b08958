//! What an outbox is to look like: its names and the two choices that `migrate` offers.

use std::fmt;
use std::str::FromStr;

use crate::store::postgres::ident::Outbox;

/// SQL type of the column `payload`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Payload {
    /// `json`: kept as written, to the byte.
    #[default]
    Json,
    /// `jsonb`: parsed when written; what is published is PostgreSQL's rendering of it.
    Jsonb,
    /// `text`.
    Text,
    /// `bytea`: any bytes.
    Bytea,
}

impl Payload {
    /// All of them, in the order of `--help`.
    pub const ALL: [Self; 4] = [Self::Json, Self::Jsonb, Self::Text, Self::Bytea];

    /// The type's name, in PostgreSQL and on the command line.
    #[must_use]
    pub fn sql(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Jsonb => "jsonb",
            Self::Text => "text",
            Self::Bytea => "bytea",
        }
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sql())
    }
}

impl FromStr for Payload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|payload| payload.sql() == text)
            .ok_or_else(|| "expected json, jsonb, text or bytea".to_owned())
    }
}

/// How a sleeping relay learns of new rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wake {
    /// By the gate in the default of `xid`: at once.
    #[default]
    Notify,
    /// By polling alone: for applications that commit by PREPARE TRANSACTION.
    None,
}

impl fmt::Display for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Notify => "notify",
            Self::None => "none",
        })
    }
}

impl FromStr for Wake {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "notify" => Ok(Self::Notify),
            "none" => Ok(Self::None),
            _ => Err("expected notify or none".to_owned()),
        }
    }
}

/// Everything the migrations depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Schema and relation.
    pub outbox: Outbox,
    /// Type of `payload`.
    pub payload: Payload,
    /// With or without the wake-up gate.
    pub wake: Wake,
    /// An outbox that polls goes on to, whatever `wake` says: in a script that nobody asked for either,
    /// and which cannot look beforehand.
    pub keeps_polling: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_as_they_are_printed() {
        for payload in Payload::ALL {
            assert_eq!(payload.to_string().parse(), Ok(payload));
        }
        for wake in [Wake::Notify, Wake::None] {
            assert_eq!(wake.to_string().parse(), Ok(wake));
        }
        assert!("JSON".parse::<Payload>().is_err());
        assert!("off".parse::<Wake>().is_err());
    }
}
