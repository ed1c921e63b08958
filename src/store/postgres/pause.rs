//! What must not be published for now: written by operators, obeyed by relays.

use std::time::{Duration, SystemTime};

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::operator::{Act, Operator, Parameter};
use super::row::get;
use crate::store::StoreError;

/// What a pause is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Paused {
    /// Every exchange.
    Everything,
    /// One; empty for the default exchange.
    Exchange(String),
}

impl Paused {
    fn exchange(&self) -> Option<&str> {
        match self {
            Self::Everything => None,
            Self::Exchange(name) => Some(name),
        }
    }
}

impl From<Option<String>> for Paused {
    fn from(exchange: Option<String>) -> Self {
        exchange.map_or(Self::Everything, Self::Exchange)
    }
}

/// So many rows are looked at from either end.
const LOOKED_AT: u32 = 10_000;

impl Operator {
    /// Exchanges that rows have named lately, or that pending rows name.
    ///
    /// # Errors
    /// [`StoreError`]; also where the relation has no such column.
    pub async fn exchanges(&self) -> Result<Vec<String>, StoreError> {
        let sql = format!(
            "SELECT DISTINCT exchange FROM (\
               (SELECT exchange FROM {relation} ORDER BY id DESC LIMIT {LOOKED_AT}) UNION ALL \
               (SELECT exchange FROM {relation} WHERE sent_at IS NULL AND id > 0 \
                ORDER BY id LIMIT {LOOKED_AT})) AS seen",
            relation = self.outbox.quoted(),
        );
        let rows = self.rows("look for exchanges", &sql, &[]).await?;
        rows.iter().map(|row| get(row, 0)).collect()
    }

    /// Pauses, or replaces the pause that there is. Returns when it ends by itself.
    ///
    /// # Errors
    /// [`StoreError`]; nothing was changed, unless it was the answer that was lost.
    pub async fn pause(
        &self,
        what: &Paused,
        act: &Act,
        lasting: Option<Duration>,
    ) -> Result<Option<SystemTime>, StoreError> {
        let conflict = match what {
            Paused::Everything => "((exchange IS NULL)) WHERE exchange IS NULL",
            Paused::Exchange(_) => "(exchange) WHERE exchange IS NOT NULL",
        };
        let sql = format!(
            "WITH paused AS (INSERT INTO {pause} AS p (exchange, by_whom, reason, until) \
               VALUES ($1, $2, $3, pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $5)) \
               ON CONFLICT {conflict} DO UPDATE SET by_whom = excluded.by_whom, \
                 reason = excluded.reason, paused_at = excluded.paused_at, until = excluded.until \
               RETURNING exchange, until), \
             record AS (INSERT INTO {audit} (act, by_whom, reason, detail, version) \
               SELECT 'pause', $2, $3, pg_catalog.jsonb_build_object(\
                 'exchange', exchange, 'until', until), $4 FROM paused) \
             SELECT until FROM paused",
            pause = self.outbox.sibling("pause"),
            audit = self.outbox.sibling("audit"),
        );
        let exchange = what.exchange();
        let seconds = lasting.map(|lasting| lasting.as_secs_f64());
        let parameters: [Parameter<'_>; 5] = [
            (&exchange, Type::TEXT),
            (&act.by, Type::TEXT),
            (&act.reason, Type::TEXT),
            (&act.version, Type::TEXT),
            (&seconds, Type::FLOAT8),
        ];
        let rows = self.rows("pause", &sql, &parameters).await?;
        Ok(rows.first().map(|row| get(row, 0)).transpose()?.flatten())
    }

    /// Ends a pause, or, with `None`, all of them. Returns those that it ended and that had not
    /// ended by themselves.
    ///
    /// # Errors
    /// [`StoreError`]; nothing was changed, unless it was the answer that was lost.
    pub async fn resume(
        &self,
        what: Option<&Paused>,
        act: &Act,
    ) -> Result<Vec<Paused>, StoreError> {
        let sql = format!(
            "WITH ended AS (DELETE FROM {pause} \
               WHERE $5 OR exchange IS NOT DISTINCT FROM $1 \
               RETURNING exchange, by_whom, reason, paused_at, until), \
             record AS (INSERT INTO {audit} (act, by_whom, reason, detail, version) \
               SELECT 'resume', $2, $3, pg_catalog.jsonb_build_object('exchange', exchange, \
                 'paused_by', by_whom, 'paused_because', reason, 'paused_at', paused_at, \
                 'until', until), $4 FROM ended) \
             SELECT exchange FROM ended \
             WHERE until IS NULL OR until > pg_catalog.clock_timestamp() ORDER BY exchange NULLS FIRST",
            pause = self.outbox.sibling("pause"),
            audit = self.outbox.sibling("audit"),
        );
        let all = what.is_none();
        let exchange = what.and_then(Paused::exchange);
        let parameters: [Parameter<'_>; 5] = [
            (&exchange, Type::TEXT),
            (&act.by, Type::TEXT),
            (&act.reason, Type::TEXT),
            (&act.version, Type::TEXT),
            (&all, Type::BOOL),
        ];
        let rows = self.rows("resume", &sql, &parameters).await?;
        rows.iter().map(paused).collect()
    }

    /// What is paused now.
    ///
    /// # Errors
    /// [`StoreError`] as ever.
    pub async fn paused(&self) -> Result<Vec<Paused>, StoreError> {
        let sql = format!(
            "SELECT exchange FROM {} WHERE until IS NULL OR until > pg_catalog.clock_timestamp() \
             ORDER BY exchange NULLS FIRST",
            self.outbox.sibling("pause")
        );
        let rows = self.rows("look for pauses", &sql, &[]).await?;
        rows.iter().map(paused).collect()
    }
}

fn paused(row: &Row) -> Result<Paused, StoreError> {
    Ok(Paused::from(get::<Option<String>>(row, 0)?))
}
