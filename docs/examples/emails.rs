//! A consumer with an effect outside its database: it sends e-mails through an HTTP service that
//! is flaky and asks for patience (429 and 503 with Retry-After).
//!
//! ```text
//! DATABASE_URL=postgres://… AMQP_URL=amqp://… QUEUE=emails MAIL_SERVICE=127.0.0.1:8025 \
//!     cargo run --example emails
//! ```
//!
//! Whoever claims a message after a crash cannot know whether the request went out. The service
//! honours `Idempotency-Key`, so the request is simply repeated with the same key; a service
//! without keys would have to be asked first when `message.taken_over` is set.

use std::time::Duration;

use outbox_relay::inbox::{
    Consumer, Ended, Failure, HandlerResult, LeasedHandler, Message, Settings, SettingsError,
};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(10);

struct Emails {
    /// `host:port` of the mail service.
    service: String,
}

impl LeasedHandler for Emails {
    async fn handle(&self, message: &Message) -> HandlerResult {
        let answer = match timeout(DEADLINE, self.send(message)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(Failure::temporary(format!("mail service: {error}"))),
            Err(_) => return Err(Failure::temporary("mail service: no answer within 10 s")),
        };
        let said = format!("mail service: status {}", answer.status);
        match (answer.status, answer.retry_after) {
            (200..=299, _) => Ok(Some(json!({
                "status": answer.status,
                "taken_over": message.taken_over,
            }))),
            (429 | 503, Some(after)) => Err(Failure::retry_after(after, said)),
            (400..=499, _) if answer.status != 429 => Err(Failure::permanent(said)),
            _ => Err(Failure::temporary(said)),
        }
    }
}

struct Answer {
    status: u16,
    retry_after: Option<Duration>,
}

impl Emails {
    /// One request by hand, so that the example needs no HTTP client; a real program has one.
    async fn send(&self, message: &Message) -> std::io::Result<Answer> {
        let mut stream = TcpStream::connect(&self.service).await?;
        let head = format!(
            "POST /mails HTTP/1.1\r\nHost: {}\r\nIdempotency-Key: {}\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            self.service,
            message.message_id,
            message.payload.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&message.payload).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        let status = text.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or(std::io::ErrorKind::InvalidData)?;
        let mut lines = text.lines();
        let retry_after = lines.find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let seconds = value.trim().parse().ok()?;
            name.eq_ignore_ascii_case("retry-after")
                .then(|| Duration::from_secs(seconds))
        });
        Ok(Answer {
            status,
            retry_after,
        })
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
    service: String,
    stop: CancellationToken,
) -> Result<Ended, SettingsError> {
    let consumer = Consumer::by_urls(settings, database, amqp)?;
    Ok(consumer.run_leased(Emails { service }, stop).await)
}

#[allow(dead_code, reason = "a test calls `consume` instead")]
#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let variable =
        |name: &str| std::env::var(name).map_err(|_| anyhow::anyhow!("{name} is not set"));
    let settings = Settings::new("emails", variable("QUEUE")?);
    let shutdown = outbox_relay::runtime::Shutdown::listen()?;
    let stop = shutdown.drain().clone();
    let (database, amqp) = (variable("DATABASE_URL")?, variable("AMQP_URL")?);
    let ended = consume(settings, database, amqp, variable("MAIL_SERVICE")?, stop).await?;
    println!("{ended:?}");
    Ok(())
}
