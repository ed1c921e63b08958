//! The relay's twin: publishes a message for each row that is committed, over the same client and to
//! the same queue, and asks no database for it. What application and broker would cost each other
//! anyway is in what the relay is compared with, and only what the outbox adds is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outbox_relay::broker::{AmqpBroker, AmqpChannel, Broker, Channel, Link};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::inside::Thread;
use crate::stage::{KEYS, QUEUE, SIZE, body};
use crate::support::publication::publication;

/// Rows are gathered for so long, which costs it less than to publish one by one.
const GATHER: Duration = Duration::from_millis(10);

/// At most so many are under way, as of the relay.
const WINDOW: u64 = 1_000;

/// A twin under way.
pub struct Twin {
    published: JoinHandle<u64>,
    end: CancellationToken,
    _thread: Thread,
}

impl Twin {
    /// Publishes as many messages as `committed` counts.
    pub async fn start(broker: AmqpBroker, committed: Arc<AtomicU64>) -> Self {
        let (thread, end) = (Thread::start(), CancellationToken::new());
        let link = thread.spawn(async move {
            let link = broker.connect().await.expect("a connection");
            let channel = link.open_channel().await.expect("a channel");
            (link, channel)
        });
        let (link, channel) = link.await.expect("no panic");
        let ended = end.clone();
        let published = thread.spawn(async move {
            let published = publish(channel, &committed, &ended).await;
            link.close().await;
            published
        });
        Self {
            published,
            end,
            _thread: thread,
        }
    }

    /// Ends it: how many of its messages were confirmed.
    pub async fn stop(self) -> u64 {
        self.end.cancel();
        self.published.await.expect("no panic")
    }
}

async fn publish(mut channel: AmqpChannel, committed: &AtomicU64, end: &CancellationToken) -> u64 {
    let (mut sent, mut confirmed, body) = (0, 0, body(SIZE));
    let message = |number: u64| {
        let number = i64::try_from(number).expect("not so many");
        let key = format!("customer-{}", number % KEYS);
        publication(number, QUEUE, &key, body.clone())
    };
    let mut ticks = interval(GATHER);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !end.is_cancelled() {
        tokio::select! {
            _ = ticks.tick() => {
                let up_to = committed.load(Ordering::Relaxed).min(confirmed + WINDOW);
                channel.publish((sent + 1..=up_to).map(message).collect()).await;
                sent = up_to.max(sent);
            }
            judged = channel.judged(), if confirmed < sent => {
                let judged = judged.expect("the channel lives").len();
                confirmed += u64::try_from(judged).expect("not so many");
            }
        }
    }
    confirmed
}
