//! Leases: who is alive, and who owns which partition.
//!
//! A lease is renewed by its owner's sign of life alone, one row for all of its partitions. Who
//! takes from a relay that fell silent locks that row first: either the taking or the renewal
//! comes first, and a relay that looks after its renewal sees which. A relay whose row is removed
//! owns nothing (`ON DELETE SET NULL`).

use std::time::{Duration, SystemTime};

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};
use tracing::warn;
use uuid::Uuid;

use super::ident::{Outbox, quote_literal};
use super::reader::within;
use super::row::get;
use super::schema::wake_channel;
use super::session::Session;
use crate::relay::rules::{Leases, Partition, PartitionSet, Peer, Take};
use crate::store::StoreError;
use crate::store::error::Fault;

/// The statements, for one outbox and one relay.
pub(super) struct LeaseSql {
    token: Uuid,
    make: String,
    look: String,
    take: String,
    release: String,
    owned: String,
}

impl LeaseSql {
    pub(super) fn new(outbox: &Outbox, token: Uuid) -> Self {
        let (lease, instance) = (outbox.sibling("lease"), outbox.sibling("instance"));
        let relation = quote_literal(outbox.relation());
        // Relays that sleep are to look who takes what is free.
        let channel = quote_literal(&wake_channel(outbox.schema(), outbox.relation()));
        Self {
            token,
            make: make(&lease, &relation),
            look: look(&lease, &instance, &relation),
            take: take(&lease, &instance, &relation),
            release: format!(
                "WITH given AS (UPDATE {lease} SET owner = NULL \
                   WHERE relation = {relation} AND owner = $1 AND partition = ANY ($2) RETURNING 1) \
                 SELECT pg_catalog.pg_notify({channel}, '') FROM (SELECT count(*) FROM given) AS all_given"
            ),
            owned: format!(
                "SELECT partition FROM {lease} \
                 WHERE relation = {relation} AND owner = $1 AND partition = ANY ($2)"
            ),
        }
    }

    /// Makes the rows of an outbox that no migration knew.
    pub(super) async fn make(
        &self,
        session: &Session,
        deadline: Duration,
    ) -> Result<(), StoreError> {
        let made = session.client.execute_typed(&self.make, &[]);
        within(deadline, "make the leases", made).await?;
        Ok(())
    }

    /// Rows that somebody removed, or that a restore left out, are made anew: a partition without
    /// one would be nobody's, and its messages would wait unseen.
    pub(super) async fn look(
        &self,
        session: &Session,
        deadline: Duration,
    ) -> Result<Leases, StoreError> {
        let (leases, known) = self.seen(session, deadline).await?;
        if known == PartitionSet::ALL {
            return Ok(leases);
        }
        let missing = PartitionSet::ALL.minus(&known).len();
        warn!(
            partitions = missing,
            "made rows anew that were missing in the table of leases"
        );
        self.make(session, deadline).await?;
        Ok(self.seen(session, deadline).await?.0)
    }

    /// What the table says, and which partitions have a row.
    async fn seen(
        &self,
        session: &Session,
        deadline: Duration,
    ) -> Result<(Leases, PartitionSet), StoreError> {
        let rows = session.client.query_typed(&self.look, &[]);
        leases(&within(deadline, "look at the leases", rows).await?)
    }

    pub(super) async fn take(
        &self,
        session: &Session,
        deadline: Duration,
        take: &Take,
    ) -> Result<(), StoreError> {
        let (dead, seen): (Vec<Uuid>, Vec<SystemTime>) = take.dead.iter().copied().unzip();
        let limit = i64::try_from(take.limit).unwrap_or(i64::MAX);
        let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
            (&self.token, Type::UUID),
            (&dead, Type::UUID_ARRAY),
            (&seen, Type::TIMESTAMPTZ_ARRAY),
            (&limit, Type::INT8),
        ];
        let taken = session.client.execute_typed(&self.take, &parameters);
        within(deadline, "take partitions", taken).await?;
        Ok(())
    }

    pub(super) async fn release(
        &self,
        session: &Session,
        deadline: Duration,
        partitions: &PartitionSet,
    ) -> Result<(), StoreError> {
        let numbers = numbers(partitions.iter());
        let parameters: [(&(dyn ToSql + Sync), Type); 2] =
            [(&self.token, Type::UUID), (&numbers, Type::INT2_ARRAY)];
        let released = session.client.query_typed(&self.release, &parameters);
        within(deadline, "give partitions back", released).await?;
        Ok(())
    }

    /// Which of these this relay owns.
    pub(super) async fn owned(
        &self,
        session: &Session,
        deadline: Duration,
        partitions: &PartitionSet,
    ) -> Result<PartitionSet, StoreError> {
        let numbers = numbers(partitions.iter());
        let parameters: [(&(dyn ToSql + Sync), Type); 2] =
            [(&self.token, Type::UUID), (&numbers, Type::INT2_ARRAY)];
        let rows = session.client.query_typed(&self.owned, &parameters);
        let rows = within(deadline, "look for own partitions", rows).await?;
        rows.iter().map(|row| partition(get(row, 0)?)).collect()
    }
}

pub(super) fn numbers(partitions: impl Iterator<Item = Partition>) -> Vec<i16> {
    partitions.map(|partition| i16::from(partition.0)).collect()
}

fn partition(number: i16) -> Result<Partition, StoreError> {
    let wrong = |_| StoreError::Schema(Fault::new("read leases", "a partition beyond 255"));
    u8::try_from(number).map(Partition).map_err(wrong)
}

fn make(lease: &str, relation: &str) -> String {
    format!(
        "INSERT INTO {lease} (relation, partition) \
         SELECT {relation}, n FROM pg_catalog.generate_series(0, 255) AS n \
         WHERE (SELECT count(*) FROM {lease} WHERE relation = {relation}) < 256 \
         ON CONFLICT DO NOTHING"
    )
}

fn look(lease: &str, instance: &str, relation: &str) -> String {
    format!(
        "SELECT pg_catalog.clock_timestamp(), i.instance, i.heartbeat_at, \
           EXTRACT(epoch FROM i.lease_for)::float8, i.broker_state IN ('connected', 'blocked'), \
           l.partitions \
         FROM (SELECT * FROM {instance} WHERE relation = {relation}) AS i \
         FULL JOIN (SELECT owner, pg_catalog.array_agg(partition) AS partitions FROM {lease} \
                    WHERE relation = {relation} GROUP BY owner) AS l ON l.owner = i.instance"
    )
}

/// Of relays that fell silent the row is locked, and is still the one that was seen.
fn take(lease: &str, instance: &str, relation: &str) -> String {
    format!(
        "WITH dead AS MATERIALIZED (\
           SELECT i.instance FROM {instance} AS i \
           JOIN ROWS FROM (pg_catalog.unnest($2::uuid[]), pg_catalog.unnest($3::timestamptz[])) \
             AS seen (instance, heartbeat_at) \
             ON i.instance = seen.instance AND i.heartbeat_at = seen.heartbeat_at \
           ORDER BY i.instance FOR NO KEY UPDATE OF i SKIP LOCKED), \
         target AS MATERIALIZED (\
           SELECT partition FROM {lease} WHERE relation = {relation} \
             AND (owner IS NULL OR owner = ANY (ARRAY(SELECT instance FROM dead))) \
           ORDER BY partition LIMIT $4 FOR UPDATE SKIP LOCKED) \
         UPDATE {lease} AS l SET owner = $1, epoch = l.epoch + 1 FROM target \
         WHERE l.relation = {relation} AND l.partition = target.partition"
    )
}

fn leases(rows: &[Row]) -> Result<(Leases, PartitionSet), StoreError> {
    let (mut at, mut known) = (SystemTime::UNIX_EPOCH, PartitionSet::NONE);
    let (mut peers, mut free) = (Vec::new(), PartitionSet::NONE);
    for row in rows {
        at = get(row, 0)?;
        let numbers: Option<Vec<i16>> = get(row, 5)?;
        let numbers = numbers.unwrap_or_default();
        let held = numbers
            .into_iter()
            .map(partition)
            .collect::<Result<PartitionSet, _>>()?;
        known = known.union(&held);
        let Some(instance) = get(row, 1)? else {
            free = held;
            continue;
        };
        let lease = Duration::try_from_secs_f64(get(row, 3)?).unwrap_or_default();
        peers.push(Peer {
            instance,
            renewed_at: get(row, 2)?,
            lease,
            able: get::<Option<bool>>(row, 4)?.unwrap_or(false),
            held,
        });
    }
    Ok((Leases { at, peers, free }, known))
}
