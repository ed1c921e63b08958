//! The billing department: consumes the queue, writes every delivery into the ledger and a bill
//! for each message into its books, acks.
//! Connects again whenever the broker went away.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::books::Books;
use crate::support::PATIENCE;
use crate::support::checker::Ledger;

const QUEUE: &str = "billing";
const LAST: &str = "the demo's last message";

/// A consumer at work.
pub struct Consumer {
    url: String,
    repeated_by_broker: Arc<AtomicUsize>,
    drained: watch::Receiver<bool>,
}

impl Consumer {
    /// Starts consuming in a task of its own.
    pub fn start(url: String, database: String, ledger: Arc<Ledger>) -> Self {
        let repeated_by_broker = Arc::new(AtomicUsize::new(0));
        let (done, drained) = watch::channel(false);
        let (own_url, repeated) = (url.clone(), Arc::clone(&repeated_by_broker));
        tokio::spawn(async move {
            let mut books = Books::open(&database).await;
            // A lost connection is part of the story; the next one takes over.
            while consume(&own_url, &ledger, &mut books, &repeated)
                .await
                .is_err()
            {
                // As a consumer would pause before it connects again.
                sleep(Duration::from_millis(200)).await;
            }
            done.send_replace(true);
        });
        Self {
            url,
            repeated_by_broker,
            drained,
        }
    }

    /// Waits until everything that is in the queue now has been consumed.
    pub async fn drain(&self) {
        let channel = channel(&self.url).await.expect("the broker is up");
        let options = BasicPublishOptions::default();
        let properties = BasicProperties::default().with_message_id(LAST.into());
        let confirm = channel
            .basic_publish("".into(), QUEUE.into(), options, b"", properties)
            .await
            .expect("the broker is up");
        confirm.await.expect("the broker is up");
        let mut drained = self.drained.clone();
        timeout(PATIENCE, drained.wait_for(|drained| *drained))
            .await
            .expect("the queue drains")
            .expect("the consumer reports");
    }

    /// Deliveries that the *broker* repeated, because it was killed before it had stored the
    /// consumer's ack.
    pub fn repeated_by_broker(&self) -> usize {
        self.repeated_by_broker.load(Ordering::Relaxed)
    }
}

/// Declares the exchange, the durable quorum queue and the binding between them.
pub async fn declare(url: &str) {
    let channel = channel(url).await.expect("the broker is up");
    let durable = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    channel
        .exchange_declare(
            "shop".into(),
            ExchangeKind::Topic,
            durable,
            FieldTable::default(),
        )
        .await
        .expect("the exchange is new");
    let durable = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    let mut quorum = FieldTable::default();
    quorum.insert(
        "x-queue-type".into(),
        AMQPValue::LongString("quorum".into()),
    );
    channel
        .queue_declare(QUEUE.into(), durable, quorum)
        .await
        .expect("the queue is new");
    channel
        .queue_bind(
            QUEUE.into(),
            "shop".into(),
            "order.#".into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        )
        .await
        .expect("both exist");
}

/// A channel in confirm mode on a connection of its own, which lives as long as the channel.
async fn channel(url: &str) -> Result<Channel, lapin::Error> {
    let opening = async {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        Ok(channel)
    };
    match timeout(Duration::from_secs(5), opening).await {
        Ok(opened) => opened,
        Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
    }
}

/// Consumes until the last message (`Ok`) or the end of the connection (`Err`).
async fn consume(
    url: &str,
    ledger: &Ledger,
    books: &mut Books,
    repeated: &AtomicUsize,
) -> Result<(), lapin::Error> {
    let channel = channel(url).await?;
    channel.basic_qos(50, BasicQosOptions::default()).await?;
    let mut deliveries = channel
        .basic_consume(
            QUEUE.into(),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        )
        .await?;
    while let Some(delivery) = deliveries.next().await {
        let delivery = delivery?;
        let id = delivery.properties.message_id();
        let id = id.as_ref().map_or("(no message_id)", |id| id.as_str());
        let last = id == LAST;
        if !last {
            if !delivery.redelivered {
                ledger.delivered(id);
            } else if ledger.redelivered(id) {
                repeated.fetch_add(1, Ordering::Relaxed);
            }
            // The database is never down in this demo; if it were, nothing would be acked.
            let billed = books.bill(id, &delivery.data).await;
            billed.map_err(std::io::Error::other)?;
        }
        delivery.ack(BasicAckOptions::default()).await?;
        if last {
            return Ok(());
        }
    }
    Err(std::io::Error::from(std::io::ErrorKind::ConnectionAborted).into())
}
