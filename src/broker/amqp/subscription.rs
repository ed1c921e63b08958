//! Consuming one queue: a connection of its own, one channel, its prefetch, and deliveries that
//! can be acknowledged only through the channel that brought them.
//!
//! A connection of its own, because the broker stops reading from connections that publish while
//! it has an alarm, and acks would wait with them. Nothing is opened twice on one connection:
//! after a loss, whoever subscribed subscribes anew, so that an ack never reaches a later channel.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use lapin::Acker;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};

use super::connect::{self, Connected};
use super::decode;
use super::socket::ShutOnDrop;
use super::together;
use crate::broker::BrokerError;
use crate::config::{BrokerAccess, BrokerEndpoint};

/// How long a goodbye may take. Nothing depends on its success.
const CLOSE_DEADLINE: Duration = Duration::from_secs(2);
/// How long giving an ack to the socket may take.
const ACK_DEADLINE: Duration = Duration::from_secs(10);

/// Silence after which the broker is asked whether it still knows of us.
const SILENCE: Duration = Duration::from_secs(5);

/// Silence after which we subscribe anew on the same connection, as long as we hold no delivery.
/// RabbitMQ 3.10 can go on counting the consumer of a quorum queue that was deleted and made again
/// at once, and give it messages that never arrive; closing its channel sets them free.
const LONG_SILENCE: Duration = Duration::from_secs(30);

/// What to consume.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The queue's name.
    pub queue: String,
    /// Most deliveries that may be unacknowledged at once.
    pub prefetch: u16,
}

/// A subscription to one queue. Dropping it ends its connection at once: what was not
/// acknowledged is delivered again.
pub struct Subscription {
    connection: lapin::Connection,
    socket: ShutOnDrop,
    channel: lapin::Channel,
    consumer: lapin::Consumer,
    thread: oneshot::Receiver<()>,
    queue: ShortString,
    /// Deliveries that somebody holds.
    held: Arc<AtomicUsize>,
    /// When something was last delivered, or we subscribed.
    heard: Instant,
    /// When the broker was last asked.
    asked: Instant,
    prefetch: u16,
    host: String,
    answer_timeout: Duration,
}

/// One delivery, in our own words.
pub struct Received {
    /// Exchange it was published to.
    pub exchange: String,
    /// Its routing key.
    pub routing_key: String,
    /// The broker delivered it before.
    pub redelivered: bool,
    /// Property message-id.
    pub message_id: Option<String>,
    /// Headers as a JSON object.
    pub headers: Value,
    /// The other properties as a JSON object.
    pub properties: Value,
    /// Body.
    pub payload: Bytes,
    /// To acknowledge it by.
    pub receipt: Receipt,
}

/// The right to acknowledge one delivery, bound to the channel that brought it.
#[derive(Debug)]
pub struct Receipt {
    acker: Acker,
    held: Arc<AtomicUsize>,
}

impl Receipt {
    /// Acknowledges. `false`: the channel is gone, and the broker will deliver again.
    pub async fn ack(self) -> bool {
        let ack = self.acker.ack(BasicAckOptions::default());
        matches!(timeout(ACK_DEADLINE, ack).await, Ok(Ok(true)))
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Subscription {
    /// Subscribes at the first of the hosts that lets us. Cancel safe: dropped half-way it leaves
    /// neither socket nor thread behind.
    ///
    /// # Errors
    /// [`BrokerError`] names the host, the step and why; a queue that does not exist is one.
    pub async fn open(access: &BrokerAccess, wanted: &Wanted) -> Result<Self, BrokerError> {
        let mut refused = Vec::new();
        for endpoint in &access.endpoints {
            match Self::at(endpoint, wanted).await {
                Ok(subscription) => return Ok(subscription),
                Err(error) => refused.push(error),
            }
        }
        Err(together(refused))
    }

    async fn at(endpoint: &BrokerEndpoint, wanted: &Wanted) -> Result<Self, BrokerError> {
        let Connected {
            connection,
            socket,
            thread,
        } = connect::connect(endpoint).await?;
        let queue = ShortString::try_new(wanted.queue.as_str()).map_err(|error| {
            let (host, reason) = (endpoint.to_string(), error.to_string());
            BrokerError::Failed {
                host,
                step: "basic.consume",
                reason,
            }
        })?;
        let steps = Steps {
            host: &endpoint.to_string(),
            longest: endpoint.connect_timeout,
        };
        let consuming = consume(&connection, &queue, wanted.prefetch, &steps);
        let (channel, consumer) = consuming.await?;
        Ok(Self {
            connection,
            socket,
            channel,
            consumer,
            thread,
            queue,
            held: Arc::default(),
            heard: Instant::now(),
            asked: Instant::now(),
            prefetch: wanted.prefetch,
            host: endpoint.to_string(),
            answer_timeout: endpoint.connect_timeout,
        })
    }

    /// Where it is.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Waits for the next delivery. Cancel safe.
    ///
    /// # Errors
    /// [`BrokerError`] if connection or channel are gone, or the queue was deleted. Subscribe anew.
    pub async fn next(&mut self) -> Result<Received, BrokerError> {
        loop {
            let next = tokio::select! {
                // The reason, if there is one, comes before the end of the thread.
                biased;
                next = self.consumer.next() => next,
                _ = &mut self.thread => None,
                () = sleep_until(self.heard.max(self.asked) + SILENCE) => {
                    self.heed_silence().await?;
                    continue;
                }
            };
            return match next {
                Some(Ok(delivery)) => {
                    self.heard = Instant::now();
                    Ok(self.received(delivery))
                }
                Some(Err(error)) => Err(self.failed(error.to_string())),
                None if self.channel.status().connected() => Err(self.failed(
                    "the broker cancelled the consumer: the queue was deleted or moved".to_owned(),
                )),
                None => Err(self.failed("the channel was closed".to_owned())),
            };
        }
    }

    /// A queue that is deleted and made again at once may take its consumers with it without a
    /// word. A passive declaration tells when nobody consumes it, and needs no right; where the
    /// broker miscounts, only subscribing anew helps.
    async fn heed_silence(&mut self) -> Result<(), BrokerError> {
        let steps = Steps {
            host: &self.host,
            longest: self.answer_timeout,
        };
        self.asked = Instant::now();
        if self.holds_nothing() && self.heard.elapsed() >= LONG_SILENCE {
            self.heard = Instant::now();
            let anew = consume(&self.connection, &self.queue, self.prefetch, &steps).await?;
            let old = std::mem::replace(&mut self.channel, anew.0);
            self.consumer = anew.1;
            let close = old.close(200, ShortString::from("OK"));
            return steps.take("channel.close", close).await;
        }
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        // On a channel of its own, which a missing queue closes.
        let side = self.connection.create_channel();
        let side = steps.take("channel.open", side).await?;
        let queue = side.queue_declare(self.queue.clone(), passive, FieldTable::default());
        let queue = steps.take("queue.declare (passive)", queue).await?;
        let close = side.close(200, ShortString::from("OK"));
        steps.take("channel.close", close).await?;
        if queue.consumer_count() == 0 {
            return Err(self.failed("the queue was deleted and made again".to_owned()));
        }
        Ok(())
    }

    fn holds_nothing(&self) -> bool {
        self.held.load(Ordering::Relaxed) == 0
    }

    fn received(&self, delivery: Delivery) -> Received {
        let message_id = delivery.properties.message_id().as_ref();
        self.held.fetch_add(1, Ordering::Relaxed);
        Received {
            exchange: delivery.exchange.to_string(),
            routing_key: delivery.routing_key.to_string(),
            redelivered: delivery.redelivered,
            message_id: message_id.map(ToString::to_string),
            headers: decode::headers(&delivery.properties),
            properties: decode::properties(&delivery.properties),
            payload: Bytes::from(delivery.data),
            receipt: Receipt {
                acker: delivery.acker,
                held: Arc::clone(&self.held),
            },
        }
    }

    fn failed(&self, reason: String) -> BrokerError {
        BrokerError::Failed {
            host: self.host.clone(),
            step: "consume",
            reason,
        }
    }

    /// Says goodbye within a bounded time. What was not acknowledged is delivered again.
    pub async fn close(self) {
        let goodbye = self.connection.close(200, ShortString::from("OK"));
        // The socket is shut next, whatever came of it.
        let _ = timeout(CLOSE_DEADLINE, goodbye).await;
        self.socket.shut();
    }
}

/// Opens a channel and consumes on it.
async fn consume(
    connection: &lapin::Connection,
    queue: &ShortString,
    prefetch: u16,
    steps: &Steps<'_>,
) -> Result<(lapin::Channel, lapin::Consumer), BrokerError> {
    let channel = steps
        .take("channel.open", connection.create_channel())
        .await?;
    let qos = channel.basic_qos(prefetch, BasicQosOptions::default());
    steps.take("basic.qos", qos).await?;
    let consume = channel.basic_consume(
        queue.clone(),
        ShortString::default(),
        BasicConsumeOptions::default(),
        FieldTable::default(),
    );
    let consumer = steps.take("basic.consume", consume).await?;
    Ok((channel, consumer))
}

struct Steps<'a> {
    host: &'a str,
    longest: Duration,
}

impl Steps<'_> {
    async fn take<T>(
        &self,
        step: &'static str,
        work: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, BrokerError> {
        match timeout(self.longest, work).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => Err(BrokerError::Failed {
                host: self.host.to_owned(),
                step,
                reason: error.to_string(),
            }),
            Err(_) => Err(BrokerError::Timeout {
                host: self.host.to_owned(),
                step,
                seconds: self.longest.as_secs(),
            }),
        }
    }
}
