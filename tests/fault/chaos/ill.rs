//! What goes wrong, and what may be sent twice because of it.

use clap::ValueEnum;

use super::RELAYS;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Ill {
    RelayKilled,
    RelayKilledAtAPoint,
    RelayStoodStill,
    RelayStoodStillAtAPoint,
    RelayStopped,
    RelayStoppedAtAPoint,
    BrokerKilled,
    BrokerOutOfMemory,
    BrokerClosedConnections,
    BrokerSlow,
    BrokerSilent,
    BrokerConnectionsReset,
    QueueFull,
    BindingRemoved,
    ExchangeDeleted,
    DatabaseKilled,
    DatabaseReadOnly,
    DatabaseSilent,
    SessionsTerminated,
    DatabaseConnectionsReset,
    RowsLocked,
    TableLocked,
    SnapshotPinned,
    RowsUnfit,
}

impl Ill {
    /// Relays whose windows it may put in doubt.
    pub fn doubts(self) -> usize {
        match self {
            Ill::RelayKilled | Ill::RelayStoodStill => 1,
            // What holds one relay up holds up all of them for a moment.
            Ill::RelayKilledAtAPoint
            | Ill::RelayStoodStillAtAPoint
            | Ill::RelayStoppedAtAPoint
            | Ill::BrokerKilled
            | Ill::BrokerOutOfMemory
            | Ill::BrokerClosedConnections
            | Ill::BrokerSlow
            | Ill::BrokerSilent
            | Ill::BrokerConnectionsReset
            | Ill::ExchangeDeleted
            | Ill::DatabaseKilled
            | Ill::DatabaseReadOnly
            | Ill::DatabaseSilent
            | Ill::SessionsTerminated
            | Ill::DatabaseConnectionsReset
            | Ill::TableLocked => RELAYS,
            Ill::RelayStopped
            | Ill::QueueFull
            | Ill::BindingRemoved
            | Ill::RowsLocked
            | Ill::SnapshotPinned
            | Ill::RowsUnfit => 0,
        }
    }
}
