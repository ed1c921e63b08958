//! Says how an entry ends: complete, fail, retry, release, expire. Decides and repeats nothing.

use std::time::Duration;

use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use super::functions::{Functions, Parameter, get};
use super::job::{Key, Verdict};
use crate::store::error::StoreError;

/// Raised by `inbox.retry` for whoever is no longer the owner.
const NOT_THE_OWNER: &str = "OX001";

/// What became of a verdict.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Said {
    /// It stands.
    Done,
    /// Put off for so many seconds.
    PutOff(f64),
    /// Attempts used up: dead.
    Dead,
    /// No longer the owner; nothing was changed.
    NotOwner,
}

impl<C: GenericClient + Sync> Functions<'_, C> {
    /// Says a verdict by the function that is made for it. May be said again after an answer that
    /// was lost: what was said the first time then answers `NotOwner` or `Done`.
    pub(super) async fn say(
        &self,
        consumer: &str,
        key: &Key,
        verdict: &Verdict,
    ) -> Result<Said, StoreError> {
        let stands = match verdict {
            Verdict::Complete(result) => self.complete(consumer, key, result.as_ref()).await?,
            Verdict::Fail(reason) => self.fail(consumer, key, reason).await?,
            Verdict::Release => {
                let sql = "SELECT inbox.release($1, $2, $3)";
                self.owned("inbox.release", sql, consumer, key).await?
            }
            Verdict::Expire => self.renew(consumer, key, Duration::ZERO).await?,
            Verdict::Retry { after, reason } => {
                return self.retry(consumer, key, *after, reason).await;
            }
        };
        Ok(if stands { Said::Done } else { Said::NotOwner })
    }

    async fn fail(&self, consumer: &str, key: &Key, reason: &str) -> Result<bool, StoreError> {
        const DOING: &str = "inbox.fail";
        let sql = "SELECT inbox.fail($1, $2, $3, 'permanent', $4)";
        let parameters: [Parameter<'_>; 4] = [
            (&consumer, Type::TEXT),
            (&key.message_id, Type::TEXT),
            (&key.owner, Type::UUID),
            (&storable(reason), Type::TEXT),
        ];
        get(DOING, &self.one(DOING, sql, &parameters).await?, 0)
    }

    async fn retry(
        &self,
        consumer: &str,
        key: &Key,
        after: Option<Duration>,
        reason: &str,
    ) -> Result<Said, StoreError> {
        const DOING: &str = "inbox.retry";
        let sql = "SELECT extract(epoch FROM inbox.retry($1, $2, $3, $4, \
                   make_interval(secs => $5)) - clock_timestamp())::float8";
        let parameters: [Parameter<'_>; 5] = [
            (&consumer, Type::TEXT),
            (&key.message_id, Type::TEXT),
            (&key.owner, Type::UUID),
            (&storable(reason), Type::TEXT),
            (&valid(after).map(|after| after.as_secs_f64()), Type::FLOAT8),
        ];
        match self.one(DOING, sql, &parameters).await {
            Ok(row) => {
                let seconds: Option<f64> = get(DOING, &row, 0)?;
                Ok(seconds.map_or(Said::Dead, Said::PutOff))
            }
            Err(error) if error.sqlstate() == Some(NOT_THE_OWNER) => Ok(Said::NotOwner),
            Err(error) => Err(error),
        }
    }
}

/// A pause that `inbox.retry` takes. The other side may name any number of seconds, also one that
/// no `interval` holds: that is no answer, and the backoff decides.
fn valid(after: Option<Duration>) -> Option<Duration> {
    const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
    after.filter(|after| *after <= LONGEST)
}

/// PostgreSQL's `text` holds no U+0000, and nobody reads more than some lines of a reason.
fn storable(reason: &str) -> String {
    const LONGEST: usize = 2000;
    let reason = reason.replace('\0', "\u{fffd}");
    match reason.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &reason[..end]),
        None => reason,
    }
}
