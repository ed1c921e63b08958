//! The traits of the publisher seam over the broker in memory. Waits, decides nothing.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::sleep_until;

use super::MemoryBroker;
use super::state::Number;
use crate::broker::{Broker, BrokerError, Channel, ChannelLost, Link, LinkState, Outcome};
use crate::message::{Publication, RowId};

/// A connection to a [`MemoryBroker`]. Dropping it ends the connection.
pub struct MemoryLink {
    broker: MemoryBroker,
    number: Number,
    state: watch::Receiver<LinkState>,
}

/// A channel of a [`MemoryLink`].
pub struct MemoryChannel {
    broker: MemoryBroker,
    number: Number,
    changes: watch::Receiver<u64>,
}

impl Broker for MemoryBroker {
    type Link = MemoryLink;

    async fn connect(&self) -> Result<MemoryLink, BrokerError> {
        self.change(|state| match &state.refusing_connects {
            Some(reason) => Err(failed("AMQP handshake", reason.clone())),
            None => {
                let (number, seen) = state.open_link();
                Ok(MemoryLink {
                    broker: self.clone(),
                    number,
                    state: seen,
                })
            }
        })
    }
}

impl MemoryLink {
    /// A broker that blocks answers later.
    async fn answers(&self, step: &'static str) -> Result<(), BrokerError> {
        let mut state = self.state.clone();
        let unblocked = state.wait_for(|state| !matches!(state, LinkState::Blocked(_)));
        match unblocked.await.as_deref() {
            Ok(LinkState::Open) => Ok(()),
            Ok(LinkState::Blocked(_) | LinkState::Lost(_)) | Err(_) => {
                Err(failed(step, "the connection is lost".to_owned()))
            }
        }
    }
}

impl Link for MemoryLink {
    type Channel = MemoryChannel;

    async fn open_channel(&self) -> Result<MemoryChannel, BrokerError> {
        self.answers("channel.open").await?;
        Ok(MemoryChannel {
            broker: self.broker.clone(),
            number: self.broker.change(|state| state.open_channel(self.number)),
            changes: self.broker.changes(),
        })
    }

    async fn exchange_exists(&self, exchange: &str) -> Result<bool, BrokerError> {
        if exchange.is_empty() {
            return Ok(true);
        }
        self.answers("exchange.declare (passive)").await?;
        Ok(self.broker.state().topology.has_exchange(exchange))
    }

    fn frame_max(&self) -> u32 {
        131_072
    }

    fn state(&self) -> watch::Receiver<LinkState> {
        self.state.clone()
    }

    async fn close(self) {}
}

impl Drop for MemoryLink {
    fn drop(&mut self) {
        self.broker.change(|state| state.close_link(self.number));
    }
}

impl Channel for MemoryChannel {
    async fn publish(&mut self, batch: Vec<Arc<Publication>>) {
        self.broker
            .change(|state| state.publish(self.number, batch));
    }

    async fn judged(&mut self) -> Result<Vec<(RowId, Outcome)>, ChannelLost> {
        loop {
            // Marked as seen before looking, so that a change after it ends the wait.
            self.changes.mark_unchanged();
            let (judged, deadline) = {
                let mut state = self.broker.state();
                (state.judged(self.number), state.deadline(self.number))
            };
            if let Some(judged) = judged {
                return judged;
            }
            let too_old = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // The broker, and so the sender, lives as long as this channel.
                _ = self.changes.changed() => {}
                () = too_old => {}
            }
        }
    }
}

impl Drop for MemoryChannel {
    fn drop(&mut self) {
        self.broker.change(|state| state.drop_channel(self.number));
    }
}

const HOST: &str = "memory";

fn failed(step: &'static str, reason: String) -> BrokerError {
    BrokerError::Failed {
        host: HOST.to_owned(),
        step,
        reason,
    }
}
