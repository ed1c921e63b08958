//! What became of a publication, of a channel and of a connection.

use std::fmt;

use crate::message::RowId;

/// Proof that the broker routed and confirmed one publication. Only the confirm code in this
/// module tree can make one, and only one of these becomes `Settlement::Sent`: marking a row
/// early does not compile.
#[derive(Debug, PartialEq, Eq)]
pub struct Confirmed(());

impl Confirmed {
    /// To be called where an ack arrived *and* it is certain that no return belongs to it.
    #[allow(dead_code, reason = "constructed by the confirm code only")]
    pub(in crate::broker) fn proven() -> Self {
        Self(())
    }

    /// For the simulation, whose broker is not in this module tree.
    #[cfg(test)]
    pub(crate) fn simulated() -> Self {
        Self(())
    }
}

/// The certain fate of one publication.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Routed and confirmed.
    Confirmed(Confirmed),
    /// `basic.return`: confirmed but routed to no queue.
    Returned {
        /// AMQP reply code, 312 for NO_ROUTE.
        code: u16,
        /// The broker's words.
        text: String,
    },
    /// `basic.nack`: a queue refused it, for instance a full one with `reject-publish`.
    Nacked,
}

/// Why a channel ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LossCause {
    /// The broker closed the channel: 404, 403, 406, 311 …
    Closed {
        /// AMQP reply code.
        code: u16,
        /// The broker's words.
        text: String,
    },
    /// The broker closed the connection over something that it was sent: 501, 505, 541 …
    ConnectionClosed {
        /// AMQP reply code.
        code: u16,
        /// The broker's words.
        text: String,
    },
    /// The connection ended, for whatever other reason.
    Connection {
        /// Said for people.
        reason: String,
    },
    /// No confirm came within `confirm_timeout` although the connection was not blocked.
    Silent {
        /// Did confirms for later publications on this channel arrive meanwhile?
        later_confirmed: bool,
    },
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed { code, text } => write!(f, "closed by the broker: {code} {text}"),
            Self::ConnectionClosed { code, text } => {
                write!(f, "the broker closed the connection: {code} {text}")
            }
            Self::Connection { reason } => write!(f, "the connection ended: {reason}"),
            Self::Silent {
                later_confirmed: true,
            } => f.write_str("no confirm in time, though later ones came"),
            Self::Silent {
                later_confirmed: false,
            } => f.write_str("no confirm in time"),
        }
    }
}

/// A channel that ended, and the publications whose fate nobody knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelLost {
    /// Why.
    pub cause: LossCause,
    /// Published, neither confirmed nor returned; in the order they were published.
    pub unknown: Vec<RowId>,
}

/// How a connection is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkState {
    /// Usable.
    Open,
    /// Blocked by the broker (memory or disk alarm), with its reason.
    Blocked(String),
    /// Gone, with the reason.
    Lost(String),
}

/// The step of [`BrokerError`] in which a host cannot be reached.
pub const TCP_CONNECT: &str = "TCP connect";

/// Why the broker cannot be used. The text is for people and never holds a secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// A step did not end within its deadline.
    #[error("{host}: no answer to {step} within {seconds} s")]
    Timeout {
        /// `host:port` asked.
        host: String,
        /// Which wait it was: TCP connect, TLS handshake, AMQP handshake, channel.open …
        step: &'static str,
        /// The deadline, in seconds.
        seconds: u64,
    },
    /// Anything else that ended the attempt.
    #[error("{host}: {step}: {reason}")]
    Failed {
        /// `host:port` asked.
        host: String,
        /// Which step it was.
        step: &'static str,
        /// Said for people.
        reason: String,
    },
    /// Somebody answered, and a certificate, a setting or the port does not fit.
    #[error("{host}: {step}: {reason}; {remedy}")]
    Misfit {
        /// `host:port` asked.
        host: String,
        /// Which step it was.
        step: &'static str,
        /// Said for people.
        reason: String,
        /// What makes it right, with the setting's name.
        remedy: String,
    },
    /// The relay's own settings or files, which no broker could make work. Nobody was asked.
    #[error("{host}: unusable settings: {reason}")]
    Settings {
        /// `host:port` meant.
        host: String,
        /// Names the setting and the file.
        reason: String,
    },
}

impl BrokerError {
    /// The whole text without the remedy.
    #[must_use]
    pub fn found(&self) -> String {
        match self {
            Self::Misfit {
                host, step, reason, ..
            } => format!("{host}: {step}: {reason}"),
            Self::Timeout { .. } | Self::Failed { .. } | Self::Settings { .. } => self.to_string(),
        }
    }
}
