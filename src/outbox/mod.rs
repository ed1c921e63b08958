//! The writer's half: a message as a value, written in the application's own transaction.
//!
//! [`Outbox::enqueue`] calls the SQL function `outbox.enqueue`, which needs EXECUTE on itself and
//! INSERT on the columns it writes, and refuses at once what could never be sent. The message goes
//! out if, and only if, the transaction commits.
//!
//! ```no_run
//! use outbox_relay::outbox::{Message, Outbox};
//!
//! # async fn place(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! let transaction = client.transaction().await?;
//! // your own statements
//! let placed = Message::json(&serde_json::json!({ "order": 42, "total": 12.5 }))?
//!     .exchange("orders")
//!     .routing_key("order.placed")
//!     .ordering_key("order-42")
//!     .header("tenant", "a");
//! let message_id = Outbox::default().enqueue(&transaction, &placed).await?;
//! transaction.commit().await?;
//! # Ok(())
//! # }
//! ```

mod message;

pub use message::Message;

use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Transaction};

use crate::store::postgres::ident::{NameError, quote_ident};

/// Which outbox is written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outbox {
    /// Quoted.
    schema: String,
}

/// The outbox in schema `outbox`.
impl Default for Outbox {
    fn default() -> Self {
        Self {
            schema: "\"outbox\"".to_owned(),
        }
    }
}

impl Outbox {
    /// The outbox in another schema (`outbox.schema`).
    ///
    /// # Errors
    /// [`NameError`] if PostgreSQL could not take the name as it is.
    pub fn in_schema(schema: &str) -> Result<Self, NameError> {
        let schema = quote_ident(schema)?;
        Ok(Self { schema })
    }

    /// Writes a message, in one round trip, and returns its `message_id`.
    ///
    /// # Errors
    /// [`EnqueueError`]. Whatever it is, PostgreSQL has aborted the transaction, or the connection
    /// is lost: nothing of it can be committed.
    ///
    /// # Cancel safety
    /// A call that is dropped may have written the message; the transaction still decides.
    pub async fn enqueue(
        &self,
        transaction: &Transaction<'_>,
        message: &Message,
    ) -> Result<String, EnqueueError> {
        let sql = format!("SELECT {}.{ENQUEUE}", self.schema);
        let (payload, payload_type) = message.payload();
        let parameters: [(&(dyn ToSql + Sync), Type); 11] = [
            (payload, payload_type.clone()),
            (&message.exchange, Type::TEXT),
            (&message.routing_key, Type::TEXT),
            (&message.ordering_key, Type::TEXT),
            (&message.headers, Type::JSONB),
            (&message.message_type, Type::TEXT),
            (&message.correlation_id, Type::TEXT),
            (&message.content_type, Type::TEXT),
            (&message.properties, Type::JSONB),
            (&message.available_at, Type::TIMESTAMPTZ),
            (&message.message_id, Type::TEXT),
        ];
        let rows = transaction.query_typed(&sql, &parameters).await;
        let rows = rows.map_err(|error| self.failed(&payload_type, error))?;
        // A function that returns no set answers with one row.
        let id = rows.first().map(|row| row.try_get(0)).transpose();
        Ok(id.map_err(EnqueueError::Database)?.unwrap_or_default())
    }

    fn failed(&self, payload: &Type, error: Error) -> EnqueueError {
        let Some(refusal) = error.as_db_error() else {
            return EnqueueError::Database(error);
        };
        if *refusal.code() == SqlState::UNDEFINED_FUNCTION {
            return EnqueueError::NoFunction {
                schema: self.schema.clone(),
                payload: payload.name().to_owned(),
                source: error,
            };
        }
        if *refusal.code() == SqlState::INVALID_PARAMETER_VALUE {
            return EnqueueError::Refused {
                reason: refusal.message().to_owned(),
                source: error,
            };
        }
        EnqueueError::Database(error)
    }
}

const ENQUEUE: &str = "enqueue(payload => $1, exchange => $2, routing_key => $3, \
     ordering_key => $4, headers => $5, type => $6, correlation_id => $7, content_type => $8, \
     properties => $9, available_at => $10, message_id => $11)";

/// Why a message was not written.
#[derive(Debug, thiserror::Error)]
pub enum EnqueueError {
    /// It could never be sent; what is wrong with it, and which limit it breaks.
    #[error("{reason}")]
    Refused {
        /// In PostgreSQL's words.
        reason: String,
        /// SQLSTATE 22023.
        source: Error,
    },
    /// The outbox is not there, or its payload is of another type.
    #[error(
        "there is no function {schema}.enqueue for a payload of type {payload}: make the outbox with \
         `outbox-relay migrate --payload {payload}`, or write the type that it has"
    )]
    NoFunction {
        /// Quoted.
        schema: String,
        /// `json`, `jsonb`, `text` or `bytea`.
        payload: String,
        /// SQLSTATE 42883.
        source: Error,
    },
    /// Everything else, a lost connection or a missing right for instance.
    #[error("cannot write the message")]
    Database(#[source] Error),
}
