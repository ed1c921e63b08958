//! The settings, one plain struct per section of the file, and how they are found and judged.
//!
//! The structs hold values only; `Default` is what the documentation says.

mod broker;
mod broker_access;
mod database;
mod database_access;
mod http;
mod log;
mod outbox;
mod quarantine;
mod relay;
mod retry;
mod secret;
mod size;

pub use broker::{Auth, BrokerSection};
pub use broker_access::{BrokerAccess, BrokerEndpoint, BrokerTls, Login};
pub use database::{DatabaseSection, SslMode};
pub use database_access::{
    Certificates, ChannelBinding, DatabaseAccess, Endpoint, Host, Keepalives, SessionKind,
};
pub use http::HttpSection;
pub use log::{LogFormat, LogSection};
pub use outbox::{OnSent, OutboxSection};
pub use quarantine::{QuarantineSection, Successors};
pub use relay::{Ordering, RelaySection};
pub use retry::RetrySection;
pub use secret::{Secret, SecretError};
pub use size::ByteSize;

/// Everything that can be set.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// `[database]`: the PostgreSQL that holds the outbox.
    pub database: DatabaseSection,
    /// `[broker]`: the RabbitMQ to publish to.
    pub broker: BrokerSection,
    /// `[outbox]`: which relation, and what becomes of sent rows.
    pub outbox: OutboxSection,
    /// `[relay]`: how much at once, in which order.
    pub relay: RelaySection,
    /// `[retry]`: when to try again and when to stop.
    pub retry: RetrySection,
    /// `[quarantine]`: what becomes of rows that were given up.
    pub quarantine: QuarantineSection,
    /// `[http]`: probes, metrics and the status page.
    pub http: HttpSection,
    /// `[log]`: how to log.
    pub log: LogSection,
}
