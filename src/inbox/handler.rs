//! What an application writes: its handlers, and how they say that they failed.

use std::future::Future;
use std::time::Duration;

use serde_json::Value;
use tokio_postgres::Transaction;

use super::message::Message;
use crate::store::postgres::sqlstate::store_error;

/// The result to keep with the entry, if any; or why not.
pub type HandlerResult = Result<Option<Value>, Failure>;

/// Why a handler did not succeed. The reason is kept with the entry and shown to operators: no
/// secrets in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Later it may succeed.
    Temporary {
        /// When the other side wants to be asked again (`Retry-After`); otherwise the consumer's
        /// backoff decides. Valid from 0 to a year.
        retry_after: Option<Duration>,
        /// In a sentence.
        reason: String,
    },
    /// It can never succeed: dead at once.
    Permanent {
        /// In a sentence.
        reason: String,
    },
}

impl Failure {
    /// To be tried again by the consumer's backoff.
    pub fn temporary(reason: impl Into<String>) -> Self {
        Self::Temporary {
            retry_after: None,
            reason: reason.into(),
        }
    }

    /// To be tried again after a while that the other side named.
    pub fn retry_after(after: Duration, reason: impl Into<String>) -> Self {
        Self::Temporary {
            retry_after: Some(after),
            reason: reason.into(),
        }
    }

    /// Never to be tried again.
    pub fn permanent(reason: impl Into<String>) -> Self {
        Self::Permanent {
            reason: reason.into(),
        }
    }
}

/// So that `?` works on statements: a database's refusal is temporary. Whoever knows better says
/// so by matching on the SQLSTATE first.
impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::temporary(store_error("handler", &error).to_string())
    }
}

/// A handler whose whole effect is in the database.
///
/// Entry, effect and result commit together, so there is at most one effect, whatever happens.
/// The consumer commits; the handler must not. Dropped when `handler_timeout` or the shutdown's
/// grace is over: the transaction is rolled back then.
pub trait TransactionalHandler: Send + Sync + 'static {
    /// Does the work of one message within the transaction.
    fn handle(
        &self,
        transaction: &Transaction<'_>,
        message: &Message,
    ) -> impl Future<Output = HandlerResult> + Send;
}

/// A handler with effects outside the database.
///
/// Its lease is renewed while it runs. It is dropped at its next await when the lease is lost,
/// when `handler_timeout` is over, or when the shutdown's grace is; the next attempt's message then
/// says `taken_over`, unless a timeout ended it.
pub trait LeasedHandler: Send + Sync + 'static {
    /// Does the work of one message.
    fn handle(&self, message: &Message) -> impl Future<Output = HandlerResult> + Send;
}
