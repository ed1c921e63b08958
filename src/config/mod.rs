//! The settings, one plain struct per section of the file, and how they are found and judged.
//!
//! The section structs hold values only; `Default` is what the documentation says.
//! [`Sources::load`] reads flags, environment and file (`load`, `environment`, `file`, `layer`,
//! `rivals`), key by key (`reader`, `setting`), and either returns a configuration without faults
//! or all [`Faults`]. [`DatabaseTarget`] and [`BrokerTarget`] turn the sections into what
//! connecting needs, anew before every connect. Nothing here opens a connection.

mod amqp_url;
mod broker;
mod broker_access;
mod broker_target;
mod database;
mod database_access;
mod database_target;
mod duration;
mod environment;
mod fault;
mod file;
mod http;
mod layer;
mod libpq;
mod libpq_meaning;
mod libpq_pairs;
mod libpq_url;
mod load;
mod log;
mod nearest;
mod origin;
mod outbox;
mod passfile;
mod quarantine;
mod reader;
mod relay;
mod reload;
mod retry;
mod rivals;
mod secret;
mod setting;
mod size;
mod target_error;
#[cfg(test)]
mod tests;
mod unknown;

pub use broker::{Auth, BrokerSection};
pub use broker_access::{BrokerAccess, BrokerEndpoint, BrokerTls, Login};
pub use broker_target::BrokerTarget;
pub use database::{DatabaseSection, SslMode};
pub use database_access::{
    Certificates, ChannelBinding, DatabaseAccess, Endpoint, Host, Keepalives, SessionKind,
};
pub use database_target::DatabaseTarget;
pub use duration::parse as parse_duration;
pub use fault::{Fault, Faults};
pub use http::HttpSection;
pub use load::{Assignment, DEFAULT_FILE, Loaded, Needs, Sources};
pub use log::{LogFormat, LogSection};
#[cfg(feature = "daemon")]
pub(crate) use nearest::nearest;
pub use origin::Origin;
pub use outbox::{OnSent, OutboxSection};
pub use quarantine::{QuarantineSection, Successors};
pub use reader::Effective;
pub use relay::{Ordering, RelaySection};
pub use reload::Changes;
pub use retry::RetrySection;
pub use secret::{Secret, SecretError};
pub use size::ByteSize;
pub use target_error::TargetError;

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
