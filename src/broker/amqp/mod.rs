//! The publisher seam over AMQP 0-9-1, with lapin. Everything that knows lapin is in here.
//!
//! ```text
//! AmqpBroker ──connect──▶ AmqpLink ──open_channel──▶ AmqpChannel
//!   host list               state, questions           in_flight ▶ judge ▶ outcomes
//! ```
//!
//! lapin's automatic recovery is off: it knows one host, gives up after some tries, and sleeps
//! in its thread. lapin logs returned messages with their payload (target
//! `lapin::returned_messages`), so that target must stay silent whatever the log level is.

mod channel;
mod connect;
mod decode;
mod encode;
mod fault;
mod greeting;
mod in_flight;
mod judge;
mod link;
mod mend;
mod misfit;
mod queue_arguments;
mod readable;
mod scratch;
mod socket;
mod subscription;
mod tls;

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{Broker, BrokerError};
use crate::config::{BrokerAccess, BrokerEndpoint};

pub use channel::AmqpChannel;
pub use greeting::Greeting;
pub use link::AmqpLink;
pub use queue_arguments::Returned;
pub use subscription::{Receipt, Received, Subscription, Wanted};

/// Says where the broker is and how to be let in, as it stands now. Asked before every connect,
/// so that rotated secrets count. The error is a sentence for people, without secrets.
pub type Access = dyn Fn() -> Result<BrokerAccess, String> + Send + Sync;

/// RabbitMQ, at one of the configured hosts.
pub struct AmqpBroker {
    access: Box<Access>,
}

impl AmqpBroker {
    /// A broker that is looked up by `access` at every connect.
    pub fn new(access: impl Fn() -> Result<BrokerAccess, String> + Send + Sync + 'static) -> Self {
        Self {
            access: Box::new(access),
        }
    }

    /// What the first of the hosts that answers says of itself, over a connection of its own.
    ///
    /// # Errors
    /// [`BrokerError`] names the hosts, the steps and why.
    pub async fn greeting(&self) -> Result<Greeting, BrokerError> {
        let access = self.resolved()?;
        let mut refused = Vec::new();
        for endpoint in &access.endpoints {
            match greeting::greet(endpoint).await {
                Ok(greeting) => return Ok(greeting),
                Err(error) => refused.push(error),
            }
        }
        Err(together(refused))
    }

    fn resolved(&self) -> Result<BrokerAccess, BrokerError> {
        (self.access)().map_err(|reason| failed("broker", "configuration", reason))
    }
}

impl Broker for AmqpBroker {
    type Link = AmqpLink;

    /// Tries the hosts in order and takes the first that lets us in. Cancel safe: a connect
    /// dropped half-way leaves neither socket nor thread behind.
    async fn connect(&self) -> Result<AmqpLink, BrokerError> {
        let access = self.resolved()?;
        let mut refused = Vec::new();
        for endpoint in &access.endpoints {
            match open(endpoint, access.confirm_timeout).await {
                Ok(link) => return Ok(link),
                Err(error) => refused.push(error),
            }
        }
        Err(together(refused))
    }
}

async fn open(endpoint: &BrokerEndpoint, confirms: Duration) -> Result<AmqpLink, BrokerError> {
    let connected = connect::connect(endpoint).await?;
    Ok(AmqpLink::new(connected, endpoint, confirms))
}

/// One host's error as it is; of several, each in order. Settings are the same for all hosts.
fn together(mut refused: Vec<BrokerError>) -> BrokerError {
    let settings = |error: &BrokerError| matches!(error, BrokerError::Settings { .. });
    if let Some(index) = refused.iter().position(settings) {
        return refused.swap_remove(index);
    }
    match (refused.pop(), refused.is_empty()) {
        (Some(only), true) => only,
        (Some(last), false) => {
            refused.push(last);
            summary(&refused)
        }
        (None, _) => failed(
            "broker",
            "configuration",
            "no host is configured".to_owned(),
        ),
    }
}

fn summary(refused: &[BrokerError]) -> BrokerError {
    let reasons: Vec<_> = refused.iter().map(BrokerError::found).collect();
    let reason = reasons.join("; ");
    let mut remedies: Vec<&str> = Vec::new();
    for error in refused {
        if let BrokerError::Misfit { remedy, .. } = error
            && !remedies.contains(&remedy.as_str())
        {
            remedies.push(remedy);
        }
    }
    let (host, step) = ("all hosts", "connect");
    if remedies.is_empty() {
        return failed(host, step, reason);
    }
    BrokerError::Misfit {
        host: host.to_owned(),
        step,
        reason,
        remedy: remedies.join("; "),
    }
}

fn failed(host: &str, step: &'static str, reason: String) -> BrokerError {
    BrokerError::Failed {
        host: host.to_owned(),
        step,
        reason,
    }
}

/// Rounded up.
fn whole_seconds(span: Duration) -> u64 {
    let seconds = span.as_millis().div_ceil(1000);
    u64::try_from(seconds).unwrap_or(u64::MAX)
}

/// Ends at the deadline, if there is one.
async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
