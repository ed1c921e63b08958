//! What the engine tells whoever counts and shows. Decides nothing; must never block.

use std::sync::Arc;
use std::time::Duration;

use crate::message::{ReasonClass, RowId};
use crate::relay::rules::Standing;
use crate::store::measures::Measures;

/// What became of a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    /// Routed and confirmed.
    Confirmed,
    /// Confirmed, but no queue got it.
    Returned,
    /// A queue refused it.
    Nacked,
    /// Nobody knows: its channel or connection ended.
    Unknown,
}

impl Fate {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Confirmed, Self::Returned, Self::Nacked, Self::Unknown];

    /// As it is written in a label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::Returned => "returned",
            Self::Nacked => "nacked",
            Self::Unknown => "unknown",
        }
    }
}

/// A publication that met its fate.
#[derive(Clone, Copy, Debug)]
pub struct Landing<'a> {
    /// The row it was made of.
    pub row: RowId,
    /// Where it went; empty for the default exchange.
    pub exchange: &'a str,
    /// What became of it.
    pub fate: Fate,
    /// Since it was handed to a channel.
    pub took: Duration,
    /// Since its row was written or fell due, if it was routed and confirmed.
    pub since_due: Option<Duration>,
}

/// A server that is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// PostgreSQL.
    Database,
    /// RabbitMQ.
    Broker,
}

/// Is told what happens.
pub trait Observer: Send + Sync + 'static {
    /// A read brought rows, and took so long, rest not counted.
    fn read(&self, rows: usize, took: Duration);
    /// Publications met their fates.
    fn landed(&self, landings: &[Landing<'_>]);
    /// A batch was settled, and took so long.
    fn settled(&self, took: Duration);
    /// So many sent rows were removed, their retention being over.
    fn removed(&self, rows: usize);
    /// A sent row cannot be removed: a foreign key or a trigger keeps it.
    fn kept(&self);
    /// A row waits for another attempt.
    fn retried(&self, reason: ReasonClass);
    /// How the flow is doing.
    fn standing(&self, standing: &Standing);
    /// A connection was made; `again` if it is not the first.
    fn connected(&self, server: Server, again: bool);
    /// Partitions were lost to another relay without being handed over.
    fn leases_lost(&self, partitions: usize);
    /// The outbox was measured. Only one relay of several does.
    fn measured(&self, measures: Measures);
    /// Somebody looks at this very moment: measures are wanted more often.
    fn is_watched(&self) -> bool {
        false
    }
}

/// Nobody looks.
pub(super) struct Nobody;

impl Observer for Nobody {
    fn read(&self, _rows: usize, _took: Duration) {}
    fn landed(&self, _landings: &[Landing<'_>]) {}
    fn settled(&self, _took: Duration) {}
    fn removed(&self, _rows: usize) {}
    fn kept(&self) {}
    fn retried(&self, _reason: ReasonClass) {}
    fn standing(&self, _standing: &Standing) {}
    fn connected(&self, _server: Server, _again: bool) {}
    fn leases_lost(&self, _partitions: usize) {}
    fn measured(&self, _measures: Measures) {}
}

/// Tells of connections to one server, the first apart from the others.
pub(super) struct Connections {
    server: Server,
    observer: Arc<dyn Observer>,
    any: bool,
}

impl Connections {
    pub(super) fn new(server: Server, observer: &Arc<dyn Observer>) -> Self {
        Self {
            server,
            observer: Arc::clone(observer),
            any: false,
        }
    }

    pub(super) fn made(&mut self) {
        self.observer.connected(self.server, self.any);
        self.any = true;
    }
}
