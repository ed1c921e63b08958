//! The bare confirmed publisher: what the relay is compared with.

use std::collections::VecDeque;
use std::sync::Arc;

use anyhow::{Context, bail};
use tokio::task::JoinSet;

use crate::broker::{AmqpLink, Channel, Link, Outcome};
use crate::message::{Publication, RowId};

/// Publishes everything over so many channels, with at most so many unconfirmed in all. Returns
/// when all of it is confirmed.
pub(super) async fn publish(
    link: &AmqpLink,
    publications: Vec<Arc<Publication>>,
    channels: usize,
    in_flight: usize,
) -> anyhow::Result<()> {
    let window = (in_flight / channels).max(1);
    let mut shares: Vec<VecDeque<_>> = (0..channels).map(|_| VecDeque::new()).collect();
    for (number, publication) in publications.into_iter().enumerate() {
        shares[number % channels].push_back(publication);
    }
    let mut tasks = JoinSet::new();
    for share in shares {
        let channel = link.open_channel().await?;
        tasks.spawn(publish_share(channel, share, window));
    }
    while let Some(done) = tasks.join_next().await {
        done.context("a publisher failed")??;
    }
    Ok(())
}

async fn publish_share<C: Channel>(
    mut channel: C,
    mut share: VecDeque<Arc<Publication>>,
    window: usize,
) -> anyhow::Result<()> {
    let mut unconfirmed = 0;
    while unconfirmed > 0 || !share.is_empty() {
        let room = (window - unconfirmed).min(share.len());
        if room > 0 {
            channel.publish(share.drain(..room).collect()).await;
            unconfirmed += room;
        }
        unconfirmed -= judged(&mut channel).await?.len();
    }
    Ok(())
}

/// The next that are confirmed.
pub(super) async fn judged<C: Channel>(channel: &mut C) -> anyhow::Result<Vec<RowId>> {
    let outcomes = match channel.judged().await {
        Ok(outcomes) => outcomes,
        Err(lost) => bail!("the channel was lost: {:?}", lost.cause),
    };
    let mut confirmed = Vec::with_capacity(outcomes.len());
    for (id, outcome) in outcomes {
        match outcome {
            Outcome::Confirmed(_) => confirmed.push(id),
            Outcome::Returned { code, text } => bail!("returned: {code} {text}"),
            Outcome::Nacked => bail!("refused by the queue"),
        }
    }
    Ok(confirmed)
}
