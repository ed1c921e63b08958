//! From the configuration to the two servers that commands talk to.

use anyhow::Context;
use uuid::Uuid;

use crate::broker::AmqpBroker;
use crate::config::{BrokerTarget, Config};
use crate::store::postgres::PgStore;
use crate::store::postgres::direct::Direct;
use crate::store::postgres::ident::Outbox;
use crate::store::postgres::one_server::OneServer;

/// The outbox that the configuration names.
///
/// # Errors
/// A name that PostgreSQL could not take as it is.
pub(super) fn store(config: &Config) -> anyhow::Result<PgStore> {
    let (schema, relation) = (
        config.outbox.schema.as_str(),
        config.outbox.relation.as_str(),
    );
    Ok(PgStore {
        target: config.database_target(),
        outbox: Outbox::new(schema, relation).context("outbox.schema, outbox.relation")?,
        on_sent: config.outbox.on_sent,
        successors: config.quarantine.successors,
        statement_timeout: config.database.statement_timeout,
        max_message_size: config.relay.max_message_size.bytes(),
        instance: instance_name(),
        token: Uuid::new_v4(),
        last_reader: std::sync::Arc::default(),
        waits: crate::store::postgres::Waits::default(),
        servers: OneServer::default(),
        direct: Direct::default(),
    })
}

/// Host and process, for people who look at `pg_stat_activity`.
pub(super) fn instance_name() -> String {
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    format!("{host}:{}", std::process::id())
}

/// The broker; its secrets are read again at every connect.
pub(super) fn broker(target: BrokerTarget) -> AmqpBroker {
    AmqpBroker::new(move || target.resolve().map_err(|error| error.to_string()))
}
