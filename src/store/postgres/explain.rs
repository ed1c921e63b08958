//! Everything in the database that bears on one row. Looks only; what it means is for others.

use std::time::SystemTime;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::held_back::understood;
use super::ident::quote_literal;
use super::operator::{Operator, Parameter};
use super::quarantine::{Entry, Selection};
use super::row::get;
use super::session::READ_ONLY;
use crate::relay::rules::{BEHIND_QUARANTINED, HeldBack};
use crate::store::StoreError;

/// Rows of one message_id told at the most.
const LIMIT: i64 = 20;

/// A row of the outbox, without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// In the outbox.
    pub id: i64,
    /// AMQP message-id.
    pub message_id: String,
    /// Destination.
    pub exchange: String,
    /// Destination.
    pub routing_key: String,
    /// What it is ordered by.
    pub ordering_key: Option<String>,
    /// When it was written.
    pub created_at: SystemTime,
    /// Not before this.
    pub available_at: Option<SystemTime>,
    /// Charged attempts.
    pub attempts: i32,
    /// Next attempt.
    pub retry_at: Option<SystemTime>,
    /// Why the last one failed.
    pub last_error: Option<String>,
    /// When it was sent.
    pub sent_at: Option<SystemTime>,
    /// `available_at` lies ahead.
    pub scheduled: bool,
    /// `retry_at` lies ahead.
    pub waiting: bool,
    /// What it is owned by.
    pub partition: i16,
}

const STANDING: &str = "id, message_id, exchange, routing_key, ordering_key, created_at, \
     available_at, attempts, retry_at, last_error, sent_at, \
     coalesce(available_at > pg_catalog.clock_timestamp(), false), \
     coalesce(retry_at > pg_catalog.clock_timestamp(), false), \
     ((CASE WHEN ordering_key IS NULL THEN pg_catalog.hashint8extended(id, 0) \
       ELSE pg_catalog.hashtextextended(ordering_key, 0) END) & 255)::int2";

impl Standing {
    fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            id: get(row, 0)?,
            message_id: get(row, 1)?,
            exchange: get(row, 2)?,
            routing_key: get(row, 3)?,
            ordering_key: get(row, 4)?,
            created_at: get(row, 5)?,
            available_at: get(row, 6)?,
            attempts: get(row, 7)?,
            retry_at: get(row, 8)?,
            last_error: get(row, 9)?,
            sent_at: get(row, 10)?,
            scheduled: get(row, 11)?,
            waiting: get(row, 12)?,
            partition: get(row, 13)?,
        })
    }
}

/// A pause that holds a row back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The exchange; `None` for everything.
    pub exchange: Option<String>,
    /// Who paused it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Since when.
    pub since: SystemTime,
    /// Until when; `None` until it is resumed.
    pub until: Option<SystemTime>,
}

/// A relay that could send a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Host and process.
    pub name: String,
    /// Its last sign of life.
    pub seen_at: SystemTime,
    /// That was lately.
    pub alive: bool,
    /// It was ready.
    pub ready: bool,
    /// Why not.
    pub waits_for: Option<String>,
    /// What it held back on purpose.
    pub held_back: Vec<HeldBack>,
}

/// Who holds the row's partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The relay's name, or its token where nobody knows the name.
    pub owner: String,
    /// Until when, unless it is renewed.
    pub until: SystemTime,
}

impl Operator {
    /// Rows of the outbox with this id, or else with this message_id.
    ///
    /// # Errors
    /// [`StoreError`]; there is no index for message_id, so that a large table takes its time.
    pub async fn standing(&self, id: &str) -> Result<Vec<Standing>, StoreError> {
        let relation = self.outbox.quoted();
        if let Ok(id) = id.parse::<i64>() {
            let sql = format!("SELECT {STANDING} FROM {relation} WHERE id = $1");
            let parameters: [Parameter<'_>; 1] = [(&id, Type::INT8)];
            let rows = self.rows("look for the row", &sql, &parameters).await?;
            if !rows.is_empty() {
                return rows.iter().map(Standing::read).collect();
            }
        }
        let sql = format!(
            "SELECT {STANDING} FROM {relation} WHERE message_id = $1 ORDER BY id DESC LIMIT {LIMIT}"
        );
        let parameters: [Parameter<'_>; 1] = [(&id, Type::TEXT)];
        let rows = self.rows(
            "look for the message_id, which has no index",
            &sql,
            &parameters,
        );
        rows.await?.iter().map(Standing::read).collect()
    }

    /// Rows in quarantine with this id or message_id.
    ///
    /// # Errors
    /// [`StoreError`] as ever.
    pub async fn given_up(&self, id: &str) -> Result<Vec<Entry>, StoreError> {
        let selection = Selection {
            ids: id.parse().into_iter().collect(),
            message_ids: vec![id.to_owned()],
            ..Selection::default()
        };
        self.quarantined(&selection, LIMIT).await
    }

    /// The first row that holds this one's key.
    ///
    /// # Errors
    /// [`StoreError`] as ever.
    pub async fn ahead_of(&self, row: &Standing) -> Result<Option<Standing>, StoreError> {
        let Some(key) = &row.ordering_key else {
            return Ok(None);
        };
        let sql = format!(
            "SELECT {STANDING} FROM {} WHERE sent_at IS NULL AND id > 0 AND id < $1 \
               AND ordering_key = $2 \
               AND (available_at IS NULL OR available_at <= pg_catalog.clock_timestamp()) \
             ORDER BY id LIMIT 1",
            self.outbox.quoted()
        );
        let parameters: [Parameter<'_>; 2] = [(&row.id, Type::INT8), (key, Type::TEXT)];
        let rows = self.rows("look for what is ahead", &sql, &parameters);
        rows.await?.first().map(Standing::read).transpose()
    }

    /// The row that tries the destination of this one, which refuses: the others of it wait in the
    /// table until that one gets through.
    ///
    /// # Errors
    /// [`StoreError`] as ever.
    pub async fn knocking(&self, row: &Standing) -> Result<Option<Standing>, StoreError> {
        // Who has no such exchange, or may not write to it, refuses every key; topics apart.
        let sql = format!(
            "SELECT {STANDING} FROM {} WHERE sent_at IS NULL AND retry_at IS NOT NULL \
               AND attempts = 0 AND exchange = $1 AND id <> $3 AND last_error <> $4 \
               AND (routing_key = $2 OR last_error LIKE '404 %' \
                 OR last_error LIKE '403 %' AND last_error NOT LIKE '%access to topic %') \
             ORDER BY retry_at LIMIT 1",
            self.outbox.quoted()
        );
        let parameters: [Parameter<'_>; 4] = [
            (&row.exchange, Type::TEXT),
            (&row.routing_key, Type::TEXT),
            (&row.id, Type::INT8),
            (&BEHIND_QUARANTINED, Type::TEXT),
        ];
        let rows = self.rows("look for what tries the destination", &sql, &parameters);
        rows.await?.first().map(Standing::read).transpose()
    }

    /// The pause of everything or of this exchange, if there is one.
    ///
    /// # Errors
    /// [`StoreError`] as ever.
    pub async fn held(&self, exchange: &str) -> Result<Option<Held>, StoreError> {
        let sql = format!(
            "SELECT exchange, by_whom, reason, paused_at, until FROM {} \
             WHERE (exchange IS NULL OR exchange = $1) \
               AND (until IS NULL OR until > pg_catalog.clock_timestamp()) \
             ORDER BY exchange NULLS FIRST LIMIT 1",
            self.outbox.sibling("pause")
        );
        let parameters: [Parameter<'_>; 1] = [(&exchange, Type::TEXT)];
        let rows = self.rows("look for pauses", &sql, &parameters).await?;
        let read = |row: &Row| {
            Ok(Held {
                exchange: get(row, 0)?,
                by: get(row, 1)?,
                reason: get(row, 2)?,
                since: get(row, 3)?,
                until: get(row, 4)?,
            })
        };
        rows.first().map(read).transpose()
    }

    /// Relays of this outbox: the owner of the partition, then the most useful. One that was silent
    /// for longer than `patience` seconds, or than its lease, is taken for dead.
    ///
    /// # Errors
    /// [`StoreError`] as ever.
    pub async fn senders(&self, partition: i16, patience: f64) -> Result<Vec<Sender>, StoreError> {
        let sql = format!(
            "SELECT name, heartbeat_at, \
               {alive}, ready, waits_for, \
               pg_catalog.to_jsonb(i) -> 'held_back' \
             FROM (SELECT *, pg_catalog.clock_timestamp() - heartbeat_at AS silent, instance = \
                 (SELECT owner FROM {lease} WHERE relation = {relation} AND partition = $2) AS owns \
               FROM {instance} WHERE relation = {relation}) AS i \
             ORDER BY coalesce(owns, false) AND silent < lease_for DESC, {alive} DESC, \
               {alive} AND partitions > 0 DESC, {alive} AND ready DESC, heartbeat_at DESC LIMIT 100",
            lease = self.outbox.sibling("lease"),
            instance = self.outbox.sibling("instance"),
            relation = quote_literal(self.outbox.relation()),
            alive = "silent < LEAST(lease_for, pg_catalog.make_interval(secs => $1))",
        );
        let parameters: [Parameter<'_>; 2] = [(&patience, Type::FLOAT8), (&partition, Type::INT2)];
        let rows = self.rows("look for relays", &sql, &parameters).await?;
        let read = |row: &Row| {
            Ok(Sender {
                name: get(row, 0)?,
                seen_at: get(row, 1)?,
                alive: get(row, 2)?,
                ready: get(row, 3)?,
                waits_for: get(row, 4)?,
                held_back: understood(get(row, 5)?),
            })
        };
        rows.iter().map(read).collect()
    }

    /// The primary is there and accepts no writes, so that no relay can give a sign of life.
    ///
    /// # Errors
    /// [`StoreError`] as ever.
    pub async fn is_read_only(&self) -> Result<bool, StoreError> {
        let sql = format!("SELECT {READ_ONLY}");
        let rows = self
            .rows("ask whether it accepts writes", &sql, &[])
            .await?;
        Ok(rows
            .first()
            .map(|row| get(row, 0))
            .transpose()?
            .unwrap_or(false))
    }

    /// The valid lease of a partition, if there is one.
    ///
    /// # Errors
    /// [`StoreError`] as ever.
    pub async fn lease(&self, partition: i16) -> Result<Option<Lease>, StoreError> {
        let sql = format!(
            "SELECT i.name, i.heartbeat_at + i.lease_for FROM {} AS l \
             JOIN {} AS i ON i.instance = l.owner \
             WHERE l.relation = {} AND l.partition = $1 \
               AND i.heartbeat_at + i.lease_for > pg_catalog.clock_timestamp()",
            self.outbox.sibling("lease"),
            self.outbox.sibling("instance"),
            quote_literal(self.outbox.relation())
        );
        let parameters: [Parameter<'_>; 1] = [(&partition, Type::INT2)];
        let rows = self.rows("look for the lease", &sql, &parameters).await?;
        let read = |row: &Row| {
            Ok(Lease {
                owner: get(row, 0)?,
                until: get(row, 1)?,
            })
        };
        rows.first().map(read).transpose()
    }
}
