//! Signs of life in `outbox.instance`.
//!
//! They share the settling session, so no statement here ever waits for a lock: a row that
//! somebody holds is left as it is until the next sign. Each renews this relay's leases.

use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use super::held_back::told;
use super::ident::{Outbox, quote_literal};
use super::reader::within;
use super::row::get;
use super::schema::wake_channel;
use super::session::Session;
use super::sqlstate::store_error;
use crate::store::{Announcement, StoreError};

/// Rows of relays that said nothing for so long are removed by the others, and with them what they
/// own: longer than a clock that is set right is likely to jump.
const KEPT: &str = "interval '1 hour'";

/// The statements, for one outbox.
pub(super) struct Heartbeat {
    beat: String,
    leave: String,
}

impl Heartbeat {
    /// For the schema as it is: that of the version before has no `held_back`.
    pub(super) async fn of(client: &Client, outbox: &Outbox) -> Result<Self, StoreError> {
        let sql = "SELECT count(*) > 0 FROM pg_catalog.pg_attribute \
             WHERE attrelid = pg_catalog.to_regclass($1) AND attname = 'held_back' AND NOT attisdropped";
        let doing = || format!("look how relays of {outbox} give signs of life");
        let table = outbox.sibling("instance");
        let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&table, Type::TEXT)];
        let rows = client.query_typed(sql, &parameters).await;
        let rows = rows.map_err(|error| store_error(doing(), &error))?;
        let tells = rows.first().map(|row| get(row, 0)).transpose()?;
        Ok(Self::new(outbox, tells.unwrap_or(false)))
    }

    fn new(outbox: &Outbox, tells: bool) -> Self {
        let table = outbox.sibling("instance");
        // Relays that sleep are to look who takes what is free.
        let channel = quote_literal(&wake_channel(outbox.schema(), outbox.relation()));
        Self {
            beat: beat(&table, &quote_literal(outbox.relation()), tells),
            leave: format!(
                "WITH gone AS (DELETE FROM {table} WHERE instance = $1 RETURNING 1) \
                 SELECT pg_catalog.pg_notify({channel}, '') FROM (SELECT count(*) FROM gone) AS all_gone"
            ),
        }
    }

    /// Writes a sign of life, and removes rows of relays that died long ago. False if somebody
    /// held the row.
    pub(super) async fn announce(
        &self,
        session: &Session,
        deadline: Duration,
        sign: &Announcement,
    ) -> Result<bool, StoreError> {
        let partitions = i16::try_from(sign.partitions).unwrap_or(i16::MAX);
        let ago = sign.last_confirm.map(|ago| ago.as_secs_f64());
        let lease = sign.lease.as_secs_f64();
        let held_back = told(&sign.held_back);
        let parameters: [(&(dyn ToSql + Sync), Type); 13] = [
            (&sign.instance, Type::UUID),
            (&sign.name, Type::TEXT),
            (&sign.version, Type::TEXT),
            (&sign.ready, Type::BOOL),
            (&sign.waits_for, Type::TEXT),
            (&sign.database.0, Type::TEXT),
            (&sign.database.1, Type::TEXT),
            (&sign.broker.0, Type::TEXT),
            (&sign.broker.1, Type::TEXT),
            (&ago, Type::FLOAT8),
            (&partitions, Type::INT2),
            (&lease, Type::FLOAT8),
            (&held_back, Type::JSONB),
        ];
        // Unnamed, so that a table that a migration changes meanwhile does no harm.
        let written = session.client.query_typed(&self.beat, &parameters);
        let written = within(deadline, "write a sign of life", written).await?;
        Ok(!written.is_empty())
    }

    /// Removes the row of a relay that stops.
    pub(super) async fn withdraw(
        &self,
        session: &Session,
        deadline: Duration,
        instance: uuid::Uuid,
    ) -> Result<(), StoreError> {
        let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&instance, Type::UUID)];
        let removed = session.client.query_typed(&self.leave, &parameters);
        within(deadline, "remove the sign of life", removed).await?;
        Ok(())
    }
}

fn beat(table: &str, relation: &str, tells: bool) -> String {
    let [update, column, value] = if tells {
        [", held_back = $13", ", held_back", ", $13"]
    } else {
        [""; 3]
    };
    format!(
        "WITH swept AS (DELETE FROM {table} WHERE instance IN (\
           SELECT instance FROM {table} WHERE instance <> $1 \
             AND heartbeat_at < pg_catalog.clock_timestamp() - {KEPT} - lease_for FOR UPDATE SKIP LOCKED)), \
         beat AS (UPDATE {table} AS i SET name = $2, version = $3, ready = $4, waits_for = $5, \
           database_state = $6, database_reason = $7, broker_state = $8, broker_reason = $9, \
           last_confirm_at = coalesce(pg_catalog.clock_timestamp() \
             - pg_catalog.make_interval(secs => $10), i.last_confirm_at), \
           partitions = $11, heartbeat_at = pg_catalog.clock_timestamp(), \
           lease_for = pg_catalog.make_interval(secs => $12){update} \
           WHERE instance = (SELECT instance FROM {table} WHERE instance = $1 \
                             FOR NO KEY UPDATE SKIP LOCKED) \
           RETURNING 1), \
         born AS (INSERT INTO {table} (relation, instance, name, version, ready, waits_for, \
             database_state, database_reason, broker_state, broker_reason, last_confirm_at, \
             partitions, lease_for{column}) \
           SELECT {relation}, $1, $2, $3, $4, $5, $6, $7, $8, $9, \
             pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $10), $11, \
             pg_catalog.make_interval(secs => $12){value} \
           WHERE NOT EXISTS (SELECT FROM beat) ON CONFLICT DO NOTHING RETURNING 1) \
         SELECT FROM beat UNION ALL SELECT FROM born"
    )
}
