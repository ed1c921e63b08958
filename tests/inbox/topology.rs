//! Scale-out: the printed topology on a real broker, keys spread over its queues, and consumers
//! that join and leave.

use std::time::Duration;

use lapin::BasicProperties;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use outbox_relay::inbox::{Ended, Settings};
use tokio::time::sleep;

use crate::entries::{inbox, number};
use crate::support::rabbit::Rabbit;
use crate::support::relay;
use crate::support::scratch::Scratch;
use crate::world::{Running, World, result};

const QUEUES: usize = 4;

/// A broker with the definitions of `topology --print --name billing`.
pub async fn billing() -> Rabbit {
    let rabbit = Rabbit::start().await;
    rabbit
        .eval(
            "{ok, File} = application:get_env(rabbit, enabled_plugins_file), \
             ok = file:write_file(File, <<\"[rabbitmq_consistent_hash_exchange].\">>), \
             rabbit_plugins:ensure(File)",
        )
        .await;
    let queues = QUEUES.to_string();
    let line = [
        "topology",
        "--print",
        "--name",
        "billing",
        "--partitions",
        &queues,
    ];
    let (status, output) = relay::run(&relay::Settings::default(), &line).await;
    assert!(status.success(), "{output:?}");
    let folder = Scratch::new("definitions");
    let file = folder.join("definitions.json");
    std::fs::write(&file, output.join("\n")).expect("written");
    rabbit
        .ctl(&["import_definitions", file.to_str().expect("UTF-8")])
        .await;
    rabbit
}

/// Publishes through the exchange, as the relay does for rows with these keys.
pub struct Publisher {
    channel: lapin::Channel,
    _connection: lapin::Connection,
}

impl Publisher {
    pub async fn connect(url: &str) -> Self {
        let connecting = lapin::Connection::connect(url, lapin::ConnectionProperties::default());
        let connection = connecting.await.expect("a broker");
        let channel = connection.create_channel().await.expect("a channel");
        let confirms = ConfirmSelectOptions::default();
        channel.confirm_select(confirms).await.expect("confirms");
        Self {
            channel,
            _connection: connection,
        }
    }

    pub async fn publish(&self, id: &str, key: &str) {
        let mut headers = FieldTable::default();
        headers.insert("x-outbox-key".into(), AMQPValue::LongString(key.into()));
        let properties = BasicProperties::default()
            .with_message_id(id.into())
            .with_delivery_mode(2)
            .with_headers(headers);
        let options = BasicPublishOptions::default();
        let published =
            self.channel
                .basic_publish("billing".into(), "".into(), options, b"{}", properties);
        published
            .await
            .expect("published")
            .await
            .expect("confirmed");
    }

    /// Messages in each queue.
    pub async fn lengths(&self) -> Vec<u32> {
        let mut lengths = Vec::new();
        for number in 0..QUEUES {
            let passive = QueueDeclareOptions {
                passive: true,
                ..QueueDeclareOptions::default()
            };
            let name = format!("billing.{number}").into();
            let queue = self
                .channel
                .queue_declare(name, passive, FieldTable::default());
            lengths.push(queue.await.expect("the queue").message_count());
        }
        lengths
    }
}

/// The definitions are taken by a real broker, and keys are spread and kept together.
#[tokio::test(flavor = "multi_thread")]
async fn the_printed_topology_is_imported_and_routes_by_key() {
    let rabbit = billing().await;
    let publisher = Publisher::connect(&rabbit.url()).await;
    for number in 0..200 {
        let key = format!("k{}", number % 20);
        publisher.publish(&format!("m{number}"), &key).await;
    }
    let in_queues = publisher.lengths().await;
    assert_eq!(in_queues.iter().sum::<u32>(), 200, "{in_queues:?}");
    let whole = |messages: &u32| messages.is_multiple_of(10);
    assert!(
        in_queues.iter().all(whole),
        "a key is in one queue: {in_queues:?}"
    );
    let used = in_queues.iter().filter(|messages| **messages > 0).count();
    assert!(used > 1, "{in_queues:?}");
}

/// One process of the application: a consumer for each queue.
fn process(world: &World) -> Vec<Running> {
    let consumer = |number: usize| {
        let settings = Settings {
            lease: Duration::from_secs(10),
            ..Settings {
                queue: format!("billing.{number}"),
                ..world.settings()
            }
        };
        world.transactional(settings, async |message| {
            // Long enough for deliveries to lie behind it when its process leaves.
            sleep(Duration::from_millis(5)).await;
            Ok(result(&message))
        })
    };
    (0..QUEUES).map(consumer).collect()
}

async fn leave(process: Vec<Running>) {
    for consumer in &process {
        consumer.ask_to_stop();
    }
    for consumer in process {
        assert_eq!(consumer.stop().await, Ended::Drained);
    }
}

/// Whoever joins or leaves: each message has one effect, and of each key they come in the order
/// in which they were published.
#[tokio::test(flavor = "multi_thread")]
async fn processes_join_and_leave_and_every_key_keeps_the_order_of_its_publication() {
    const MESSAGES: usize = 1500;
    const KEYS: usize = 12;
    let rabbit = billing().await;
    let (database, client) = inbox().await;
    let world = World::on(database, client, rabbit.url()).await;
    let publisher = Publisher::connect(&rabbit.url()).await;
    let mut crew = vec![process(&world), process(&world)];
    for number in 0..MESSAGES {
        let key = format!("k{}", number % KEYS);
        publisher.publish(&format!("m{number:05}"), &key).await;
        match number % 200 {
            // The one that has been there longest is active on most queues.
            100 => {
                crew.push(process(&world));
                leave(crew.remove(0)).await;
            }
            199 => crew.push(process(&world)),
            150 => leave(crew.remove(0)).await,
            _ => {}
        }
    }
    let all = i64::try_from(MESSAGES).expect("few");
    world.are("done", all).await;
    for process in crew {
        leave(process).await;
    }
    assert_eq!(world.effects().await, all);
    let overtaken = "SELECT count(*) FROM (
         SELECT done_at < lag(done_at) OVER (PARTITION BY ordering_key ORDER BY message_id) AS late
         FROM inbox.message) AS ended WHERE late";
    assert_eq!(
        number(&world.client, overtaken).await,
        0,
        "overtaken within their key"
    );
    assert_eq!(publisher.lengths().await, [0; QUEUES]);
    world.invariants(all).await;
}
