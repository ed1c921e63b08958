//! A consumer whose whole effect is in its database: it debits an account once for each message,
//! whatever is delivered twice. It debits
//! `CREATE TABLE public.account (id bigint PRIMARY KEY, balance bigint NOT NULL)`.
//!
//! ```text
//! DATABASE_URL=postgres://… AMQP_URL=amqp://… QUEUE=payments cargo run --example payments
//! ```

use outbox_relay::inbox::{
    Consumer, Ended, Failure, HandlerResult, Message, Settings, SettingsError, TransactionalHandler,
};
use serde::Deserialize;
use serde_json::json;
use tokio_postgres::Transaction;
use tokio_util::sync::CancellationToken;

/// What is in a message's body.
#[derive(Deserialize)]
struct Payment {
    account: i64,
    amount: i64,
}

struct Payments;

impl TransactionalHandler for Payments {
    async fn handle(&self, transaction: &Transaction<'_>, message: &Message) -> HandlerResult {
        // What can never be read is not worth a second attempt.
        let payment: Payment = serde_json::from_slice(&message.payload)
            .map_err(|error| Failure::permanent(format!("not a payment: {error}")))?;
        let debit =
            "UPDATE public.account SET balance = balance - $2 WHERE id = $1 RETURNING balance";
        let account = transaction
            .query_opt(debit, &[&payment.account, &payment.amount])
            .await?;
        let Some(account) = account else {
            // The account may be on its way; after the last attempt an operator looks at it.
            return Err(Failure::temporary(format!(
                "there is no account {}",
                payment.account
            )));
        };
        let balance: i64 = account.get(0);
        Ok(Some(json!({ "balance": balance })))
    }
}

/// Consumes until `stop` is cancelled.
///
/// # Errors
/// Settings that cannot be used.
pub async fn consume(
    settings: Settings,
    database: String,
    amqp: String,
    stop: CancellationToken,
) -> Result<Ended, SettingsError> {
    let consumer = Consumer::by_urls(settings, database, amqp)?;
    Ok(consumer.run_transactional(Payments, stop).await)
}

#[allow(dead_code, reason = "a test calls `consume` instead")]
#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let variable =
        |name: &str| std::env::var(name).map_err(|_| anyhow::anyhow!("{name} is not set"));
    let settings = Settings::new("payments", variable("QUEUE")?);
    let shutdown = outbox_relay::runtime::Shutdown::listen()?;
    let stop = shutdown.drain().clone();
    let ended = consume(
        settings,
        variable("DATABASE_URL")?,
        variable("AMQP_URL")?,
        stop,
    )
    .await?;
    println!("{ended:?}");
    Ok(())
}
