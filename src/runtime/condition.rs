//! What the engine says about itself: connections, its part, rows that are due. Judges nothing.

use super::Moment;

/// How the connection to PostgreSQL is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Database {
    /// Not connected; why, and what is being done about it.
    Disconnected(String),
    /// Not connected either, and that will last until somebody changes a setting, a login, a
    /// right or the schema; what is wrong.
    Refused(String),
    /// Connected to a server that does not accept writes; which one.
    ReadOnly(String),
    /// Usable.
    Connected,
}

/// How the connection to RabbitMQ is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broker {
    /// Not connected; why, and what is being done about it.
    Disconnected(String),
    /// Blocked by the broker; its reason.
    Blocked(String),
    /// Usable.
    Connected,
}

/// What this relay is there for at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Publishes.
    Active,
    /// Others hold all partitions; takes over when one of them is gone.
    StandBy,
    /// An operator paused everything; who and why.
    Paused(String),
    /// Stopping: finishes what is in flight.
    Draining,
}

/// Whether rows are due, by the last read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Due {
    /// There was no read yet on the present connection, or there is none without the broker.
    #[default]
    Unknown,
    /// None are.
    Nothing,
    /// None could be sent now: those there are wait for a destination that refuses, or behind a row
    /// of their key that waits for another attempt.
    HeldBack,
    /// Some have been, without a break, since then.
    Since(Moment),
    /// The same, and of all that is known the fate is decided and not yet written down.
    Unmarked(Moment),
}

impl Due {
    /// Since when rows have been due, if they are.
    pub(super) fn since(self) -> Option<Moment> {
        match self {
            Self::Since(since) | Self::Unmarked(since) => Some(since),
            Self::Unknown | Self::Nothing | Self::HeldBack => None,
        }
    }
}

/// What the engine last said about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// PostgreSQL.
    pub database: Database,
    /// RabbitMQ.
    pub broker: Broker,
    /// Its part.
    pub role: Role,
    /// Due rows.
    pub due: Due,
    /// When a row was last settled: sent, put off or given up.
    pub progressed: Option<Moment>,
    /// When the broker last routed and confirmed a row.
    pub confirmed: Option<Moment>,
    /// Partitions held.
    pub partitions: u16,
    /// The first partition is among them: whoever holds it speaks for the whole outbox.
    pub speaks: bool,
}

impl Default for Condition {
    fn default() -> Self {
        Self {
            database: Database::Disconnected("starting".to_owned()),
            broker: Broker::Disconnected("starting".to_owned()),
            role: Role::Active,
            due: Due::Unknown,
            progressed: None,
            confirmed: None,
            partitions: 0,
            speaks: false,
        }
    }
}
