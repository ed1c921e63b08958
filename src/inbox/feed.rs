//! The broker's side: subscribes, hands deliveries on, subscribes again.
//!
//! Subscribes only while there is a database to write to: every return of a delivery counts
//! against a quorum queue's delivery limit.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::keeper::{Backoff, Line};
use crate::broker::{BrokerError, Received, Subscription, WantedQueue};
use crate::config::BrokerTarget;
use crate::runtime::Clock;

/// A subscription that lived so long was a good one.
const GOOD: std::time::Duration = std::time::Duration::from_secs(30);

/// Where deliveries come from.
pub(super) struct Feed {
    pub(super) target: BrokerTarget,
    pub(super) wanted: WantedQueue,
    /// Deliveries go here.
    pub(super) deliveries: mpsc::Sender<Received>,
    /// Whether there is a database.
    pub(super) database: watch::Receiver<Option<Arc<Line>>>,
    /// No more deliveries, but acks still go out.
    pub(super) stop: CancellationToken,
    /// Nothing is to be acknowledged any more.
    pub(super) end: CancellationToken,
}

impl Feed {
    /// Runs until told to end.
    pub(super) async fn run(mut self) {
        let mut backoff = Backoff::new();
        while let Some(opened) = self.next_subscription().await {
            match opened {
                Ok(subscription) => {
                    let since = Clock.now();
                    info!(
                        queue = self.wanted.queue,
                        host = subscription.host(),
                        "consuming"
                    );
                    if self.pass_on(subscription).await {
                        return;
                    }
                    if Clock.now().since(since) > GOOD {
                        backoff = Backoff::new();
                    }
                }
                Err(error) => {
                    warn!(queue = self.wanted.queue, %error, "cannot consume; trying again");
                }
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = backoff.pause() => {}
            }
        }
    }

    /// `None`: told to stop.
    async fn next_subscription(&mut self) -> Option<Result<Subscription, BrokerError>> {
        let stop = self.stop.clone();
        tokio::select! {
            () = stop.cancelled() => None,
            subscription = self.subscribe() => Some(subscription),
        }
    }

    async fn subscribe(&mut self) -> Result<Subscription, BrokerError> {
        // The sender outlives us; if not, we are about to be stopped.
        let _ = self.database.wait_for(Option::is_some).await;
        let target = self.target.clone();
        let access = tokio::task::spawn_blocking(move || target.resolve())
            .await
            .map_err(|error| unusable(&error))?
            .map_err(|error| unusable(&error))?;
        Box::pin(Subscription::open(&access, &self.wanted)).await
    }

    /// Hands deliveries on until the subscription is lost (`false`) or we are told to end.
    async fn pass_on(&self, mut subscription: Subscription) -> bool {
        loop {
            let received = tokio::select! {
                () = self.stop.cancelled() => break,
                received = subscription.next() => received,
            };
            let received = match received {
                Ok(received) => received,
                Err(error) => {
                    warn!(queue = self.wanted.queue, %error, "subscribing again");
                    return false;
                }
            };
            tokio::select! {
                () = self.stop.cancelled() => break,
                sent = self.deliveries.send(received) => if sent.is_err() { break },
            }
        }
        // Not cancelled first: RabbitMQ would pass the queue to the next single active consumer
        // at once, and what lies here unread, and goes back when the channel is closed, would
        // come after what it has got by then.
        self.end.cancelled().await;
        subscription.close().await;
        true
    }
}

fn unusable(error: &impl ToString) -> BrokerError {
    BrokerError::Failed {
        host: "broker".to_owned(),
        step: "configuration",
        reason: error.to_string(),
    }
}
