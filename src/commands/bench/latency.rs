//! Latency at a steady rate: publish to confirm, and commit to confirm by the writers' clock.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Context;
use hdrhistogram::Histogram;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::bare::judged;
use super::stage::Stage;
use crate::broker::{Channel, Link};
use crate::message::RowId;
use crate::runtime::{Clock, Moment};
use crate::store::postgres::scratch::Writer;

/// In microseconds, with three digits.
pub(super) type Latency = Histogram<u64>;

fn note(latency: &mut Latency, span: Duration) {
    latency.saturating_record(u64::try_from(span.as_micros()).unwrap_or(u64::MAX).max(1));
}

fn histogram() -> anyhow::Result<Latency> {
    // Up to ten minutes.
    Ok(Histogram::new_with_bounds(1, 600_000_000, 3)?)
}

/// A tick for each row. Late ticks are made up for, as writers of an application would.
fn ticks(every: Duration, after: Duration) -> tokio::time::Interval {
    let mut ticks = interval_at(Instant::now() + after, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    ticks
}

fn rows(stage: &Stage<'_>) -> u32 {
    let rows = f64::from(stage.arguments.rate) * stage.arguments.span.as_secs_f64();
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bounded above"
    )]
    let rows = rows.min(f64::from(u32::MAX)) as u32;
    rows.max(1)
}

/// One channel publishes at the rate; from handing over to confirm.
pub(super) async fn bare(stage: &Stage<'_>) -> anyhow::Result<Latency> {
    let rows = rows(stage);
    let mut numbers = 1..=i64::from(rows);
    let mut channel = stage.link.open_channel().await?;
    let mut ticks = ticks(
        Duration::from_secs(1) / stage.arguments.rate,
        Duration::ZERO,
    );
    let (mut latency, mut sent) = (histogram()?, HashMap::new());
    while !numbers.is_empty() || !sent.is_empty() {
        tokio::select! {
            biased;
            _ = ticks.tick(), if !numbers.is_empty() => {
                if let Some(number) = numbers.next() {
                    let publication = stage.publication(number)?;
                    sent.insert(publication.id(), Clock.now());
                    channel.publish(vec![publication]).await;
                }
            }
            confirmed = judged(&mut channel), if !sent.is_empty() => {
                let now = Clock.now();
                for id in confirmed? {
                    if let Some(since) = sent.remove(&id) {
                        note(&mut latency, now.since(since));
                    }
                }
            }
        }
    }
    Ok(latency)
}

/// Writers insert at the rate while a relay runs; from a writer's learning that its commit
/// succeeded to the relay's learning that the broker confirmed.
pub(super) async fn relay(stage: &Stage<'_>) -> anyhow::Result<Latency> {
    stage.scratch.fill(0, stage.shape()).await?;
    let running = stage.start();
    running.ready().await?;
    let (rows, writers) = (rows(stage), stage.arguments.writers);
    let mut tasks = JoinSet::new();
    for number in 0..writers {
        let writer = stage.scratch.writer(stage.shape()).await?;
        let share = rows / writers + u32::from(number < rows % writers);
        let every = Duration::from_secs(1) * writers / stage.arguments.rate;
        let after = every * number / writers;
        let keys = stage.arguments.keys;
        tasks.spawn(write(writer, share, ticks(every, after), number, keys));
    }
    let mut committed: HashMap<RowId, Moment> = HashMap::new();
    while let Some(written) = tasks.join_next().await {
        committed.extend(written.context("a writer failed")??);
    }
    running.until_confirmed(rows as usize).await?;
    let confirmed = running.watcher.take_confirmed();
    running.stop().await?;
    let mut latency = histogram()?;
    for (row, since) in committed {
        let confirmed = confirmed.get(&row).context("a row was not confirmed")?;
        // The broker's confirm may overtake PostgreSQL's answer to the writer.
        note(&mut latency, confirmed.since(since));
    }
    Ok(latency)
}

async fn write(
    writer: Writer,
    rows: u32,
    mut ticks: tokio::time::Interval,
    first: u32,
    keys: u32,
) -> anyhow::Result<Vec<(RowId, Moment)>> {
    let mut written = Vec::with_capacity(rows as usize);
    for number in 0..rows {
        ticks.tick().await;
        let key = number.wrapping_mul(64).wrapping_add(first) % keys;
        let row = writer.write(&key.to_string()).await?;
        written.push((row, Clock.now()));
    }
    Ok(written)
}
