//! The Rust consumer when something breaks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outbox_relay::inbox::{Ended, Settings};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::entries::{ask, entry, migrate, number, state};
use crate::support::PATIENCE;
use crate::support::postgres::Postgres;
use crate::support::proxy::{Fault, Proxy, Way};
use crate::support::rabbit::Rabbit;
use crate::world::{Counts, World, result};

/// The port of a URL `scheme://user@host:port/…`.
pub fn port_of(url: &str) -> u16 {
    let authority = url
        .split("://")
        .nth(1)
        .and_then(|rest| rest.split('/').next());
    let port = authority.and_then(|authority| authority.rsplit(':').next());
    port.and_then(|port| port.parse().ok())
        .expect("a URL with a port")
}

/// The same place through a proxy.
async fn through_proxy(url: &str) -> (Proxy, String) {
    let port = port_of(url);
    let proxy = Proxy::start(port).await;
    let through = url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
    (proxy, through.replace("localhost", "127.0.0.1"))
}

/// F60: the ack is lost on its way, and the connection with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_ack_brings_a_duplicate_that_is_suppressed() {
    let world = World::new().await;
    let (proxy, amqp) = through_proxy(&world.amqp).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let (entered, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (inside, gate) = (Arc::clone(&entered), Arc::clone(&go));
    let consumer = world.transactional_on(
        &world.database.url,
        &amqp,
        world.settings(),
        move |message| {
            let (inside, gate) = (Arc::clone(&inside), Arc::clone(&gate));
            counted.fetch_add(1, Ordering::SeqCst);
            async move {
                inside.add_permits(1);
                gate.acquire().await.expect("open").forget();
                Ok(result(&message))
            }
        },
    );
    world.publish("m", None).await;
    timeout(PATIENCE, entered.acquire())
        .await
        .expect("in time")
        .expect("open")
        .forget();
    proxy.set_way(Way::ToServer, Fault::Swallow);
    go.add_permits(1);
    world.are("done", 1).await;
    proxy.set_way(Way::ToServer, Fault::None);
    proxy.reset_all();
    consumer
        .counts
        .reaches(&consumer.counts.duplicates, 1)
        .await;
    assert_eq!(consumer.stop().await, Ended::Drained);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    world.invariants(1).await;
}

/// A consumer that vanishes at any moment.
#[tokio::test(flavor = "multi_thread")]
async fn crashes_under_load_lose_nothing_and_repeat_no_effect() {
    const MESSAGES: i64 = 150;
    let world = World::new().await;
    for number in 0..MESSAGES {
        let key = format!("k{}", number % 9);
        world
            .publish(
                &format!("m{number}"),
                (number % 3 > 0).then_some(key.as_str()),
            )
            .await;
    }
    let settings = Settings {
        max_attempts: 50,
        ..world.settings()
    };
    for crash in 0..8 {
        let consumer = world.transactional(settings.clone(), async |message| Ok(result(&message)));
        let done = Arc::clone(&consumer.counts);
        done.reaches(&done.completed, 5 + crash).await;
        consumer.crash();
    }
    let consumer = world.transactional(settings, async |message| Ok(result(&message)));
    world.are("done", MESSAGES).await;
    assert_eq!(consumer.stop().await, Ended::Drained);
    assert_eq!(world.effects().await, MESSAGES);
    world.invariants(MESSAGES).await;
}

/// F61 and F62: the owner hangs past its lease, another does the work, the first goes on.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_cut_off_from_the_database_is_dropped_and_taken_over_and_its_late_word_changes_nothing()
 {
    let world = World::new().await;
    let (proxy, database) = through_proxy(&world.database.url).await;
    let entered = Arc::new(Semaphore::new(0));
    let dropped = Arc::new(Semaphore::new(0));
    let (inside, gone) = (Arc::clone(&entered), Arc::clone(&dropped));
    let first = world.leased_on(&database, &world.amqp, world.settings(), move |message| {
        let (inside, gone) = (Arc::clone(&inside), Arc::clone(&gone));
        async move {
            if message.message_id != "m" {
                return Ok(None);
            }
            let _tells_when_dropped = Tells(gone);
            inside.add_permits(1);
            std::future::pending().await
        }
    });
    world.publish("m", None).await;
    timeout(PATIENCE, entered.acquire())
        .await
        .expect("in time")
        .expect("open")
        .forget();
    proxy.set_way(Way::ToClient, Fault::Stall);
    let lease = "SELECT lease_until FROM inbox.message";
    timeout(PATIENCE, dropped.acquire())
        .await
        .expect("dropped")
        .expect("open")
        .forget();
    let second = world.leased(world.settings(), async |message| Ok(result(&message)));
    world.are("done", 1).await;
    let done = entry(&world.client, "m").await;
    assert_eq!(done["result"], json!({"attempt": 2, "taken_over": true}));
    let early = format!("SELECT count(*) FROM inbox.message WHERE done_at < ({lease})");
    assert_eq!(number(&world.client, &early).await, 0);
    proxy.set_way(Way::ToClient, Fault::None);
    proxy.reset_all();
    world.publish("next", None).await;
    world.are("done", 2).await;
    first.stop().await;
    second.stop().await;
    assert_eq!(entry(&world.client, "m").await, done);
    world.invariants(2).await;
}

struct Tells(Arc<Semaphore>);

impl Drop for Tells {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

async fn on_private_servers(postgres: &Postgres, rabbit: &Rabbit) -> World {
    let database = postgres.create_database().await;
    migrate(&database).await;
    let client = database.connect().await;
    World::on(database, client, rabbit.url()).await
}

/// For long enough that a consumer tries a dozen times to reconnect.
async fn nothing_is_acknowledged(rabbit: &Rabbit, ready: u32, held: u32) {
    // That nothing happens has no signal.
    sleep(Duration::from_secs(6)).await;
    let columns = ["messages_ready", "messages_unacknowledged"];
    let list = ["list_queues", columns[0], columns[1], "--no-table-headers"];
    let queue = rabbit.ctl(&list).await;
    let queue: Vec<_> = queue.split_whitespace().collect();
    assert_eq!(queue, [ready.to_string(), held.to_string()]);
}

/// F68, for a shorter time: a private PostgreSQL that is killed while messages are in work and in
/// the queue.
#[tokio::test(flavor = "multi_thread")]
async fn while_the_database_is_down_nothing_is_acknowledged_and_nothing_goes_back() {
    const MESSAGES: i64 = 40;
    let mut postgres = Postgres::start().await;
    let rabbit = Rabbit::start().await;
    let mut world = on_private_servers(&postgres, &rabbit).await;
    let settings = Settings {
        prefetch: 10,
        concurrency: 3,
        max_attempts: 20,
        ..world.settings()
    };
    let (entered, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (inside, gate) = (Arc::clone(&entered), Arc::clone(&go));
    let consumer = world.transactional(settings, move |message| {
        let (inside, gate) = (Arc::clone(&inside), Arc::clone(&gate));
        async move {
            inside.add_permits(1);
            gate.acquire().await.expect("open").forget();
            Ok(result(&message))
        }
    });
    for number in 0..MESSAGES {
        world.publish(&format!("m{number}"), None).await;
    }
    timeout(PATIENCE, entered.acquire_many(3))
        .await
        .expect("in time")
        .expect("open")
        .forget();
    postgres.kill();
    go.add_permits(1000);
    nothing_is_acknowledged(&rabbit, 30, 10).await;
    assert_eq!(Counts::get(&consumer.counts.redelivered), 0);
    postgres.start_again().await;
    world.client = world.database.connect().await;
    world.are("done", MESSAGES).await;
    let counts = Arc::clone(&consumer.counts);
    assert_eq!(consumer.stop().await, Ended::Drained);
    assert_eq!(
        Counts::get(&counts.redelivered),
        0,
        "nothing went back to the queue"
    );
    assert_eq!(world.effects().await, MESSAGES);
    world.invariants(MESSAGES).await;
}

/// F69.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_deleted_and_made_again_is_subscribed_again() {
    let world = World::new().await;
    let consumer = world.transactional(world.settings(), async |message| Ok(result(&message)));
    world.publish("before", None).await;
    world.are("done", 1).await;
    world.delete_queue().await;
    // At once: RabbitMQ 3.10 forgets the consumers of a quorum queue without telling them.
    world.declare().await;
    // Its channels also go on publishing into the queue that was.
    let mut world = world.with_new_channel().await;
    world.publish("after", None).await;
    world.are("done", 2).await;

    world.delete_queue().await;
    world = world.with_new_channel().await;
    world.declare().await;
    world.publish("later", None).await;
    world.are("done", 3).await;
    assert_eq!(consumer.stop().await, Ended::Drained);
    world.invariants(3).await;
}

/// F69: the broker closes the channel of a consumer that does not acknowledge in time. The late
/// ack must not reach the new channel, where its number is another delivery's.
#[tokio::test(flavor = "multi_thread")]
async fn an_ack_that_comes_after_its_channel_was_closed_touches_no_other_delivery() {
    let rabbit = Rabbit::start().await;
    rabbit
        .eval("application:set_env(rabbit, consumer_timeout, 1500), application:set_env(rabbit, channel_tick_interval, 500)")
        .await;
    let (database, client) = crate::entries::inbox().await;
    let world = World::on(database, client, rabbit.url()).await;
    let settings = Settings {
        prefetch: 2,
        lease: PATIENCE,
        ..world.settings()
    };
    let (entered, slow, other) = (
        Arc::new(Semaphore::new(0)),
        Arc::new(Semaphore::new(0)),
        Arc::new(Semaphore::new(0)),
    );
    let gates = (Arc::clone(&entered), Arc::clone(&slow), Arc::clone(&other));
    let consumer = world.leased(settings, move |message| {
        let (entered, slow, other) = gates.clone();
        async move {
            entered.add_permits(1);
            let gate = if message.message_id == "slow" {
                slow
            } else {
                other
            };
            gate.acquire().await.expect("open").forget();
            Ok(result(&message))
        }
    });
    world.publish("slow", None).await;
    timeout(PATIENCE, entered.acquire())
        .await
        .expect("in time")
        .expect("open")
        .forget();
    // The channel is closed, the message comes again on a new one and is found in work.
    consumer.counts.reaches(&consumer.counts.conflicts, 1).await;
    world.publish("other", None).await;
    timeout(PATIENCE, entered.acquire())
        .await
        .expect("in time")
        .expect("open")
        .forget();
    slow.add_permits(1);
    world.are("done", 1).await;
    assert_eq!(state(&world.client, "other").await, "processing");
    // Were it acknowledged by the late ack, it would not come again after a crash.
    consumer.crash();
    let ready = async { while world.ready().await != 1 {} };
    timeout(PATIENCE, ready).await.expect("still the queue's");
}

/// Every connection cut again and again, on both sides.
#[tokio::test(flavor = "multi_thread")]
async fn cut_connections_are_opened_again_and_every_message_has_one_effect() {
    const MESSAGES: i64 = 120;
    let world = World::new().await;
    let (to_broker, amqp) = through_proxy(&world.amqp).await;
    let (to_database, database) = through_proxy(&world.database.url).await;
    let settings = Settings {
        max_attempts: 100,
        ..world.settings()
    };
    let consumer = world.transactional_on(&database, &amqp, settings, async |message| {
        Ok(result(&message))
    });
    for number in 0..MESSAGES {
        let key = format!("k{}", number % 10);
        world.publish(&format!("m{number}"), Some(&key)).await;
        match number % 40 {
            13 => to_broker.reset_all(),
            27 => to_database.reset_all(),
            _ => {}
        }
    }
    world.are("done", MESSAGES).await;
    assert_eq!(consumer.stop().await, Ended::Drained);
    assert_eq!(world.effects().await, MESSAGES);
    let overtaken = "SELECT count(*) FROM inbox.message a JOIN inbox.message b \
                     USING (consumer, ordering_key) \
                     WHERE a.received_at < b.received_at AND a.done_at > b.done_at";
    assert_eq!(number(&world.client, overtaken).await, 0);
    world.invariants(MESSAGES).await;
}

/// Consumers that come and go on one queue: order per key holds, every message has one effect.
#[tokio::test(flavor = "multi_thread")]
async fn consumers_join_and_leave_and_the_order_of_every_key_is_kept() {
    const MESSAGES: usize = 300;
    let world = World::new().await;
    let start = || world.transactional(world.settings(), async |message| Ok(result(&message)));
    let mut crew = vec![start(), start()];
    for number in 0..MESSAGES {
        let key = format!("k{}", number % 12);
        world.publish(&format!("m{number:04}"), Some(&key)).await;
        if number % 60 == 30 {
            crew.push(start());
            let leaving = crew.remove(0);
            assert_eq!(leaving.stop().await, Ended::Drained);
        }
    }
    let all = i64::try_from(MESSAGES).expect("few");
    world.are("done", all).await;
    for consumer in crew {
        assert_eq!(consumer.stop().await, Ended::Drained);
    }
    assert_eq!(world.effects().await, all);
    // In order of arrival at the inbox, which for a single active consumer is the queue's.
    let overtaken = "SELECT count(*) FROM inbox.message a JOIN inbox.message b \
                     USING (consumer, ordering_key) \
                     WHERE a.received_at < b.received_at AND a.done_at > b.done_at";
    assert_eq!(number(&world.client, overtaken).await, 0);
    world.invariants(all).await;
}

/// The metrics hook tells what is dead at the moment.
#[tokio::test(flavor = "multi_thread")]
async fn dead_entries_are_counted_when_a_consumer_starts() {
    let world = World::new().await;
    let sql = "SELECT inbox.fail('payments', 'm', owner, 'permanent', 'why') \
               FROM inbox.claim('payments', 'm', '1m', 'x')";
    ask(&world.client, sql, &[]).await;
    let consumer = world.leased(world.settings(), async |_| Ok(None));
    let counted = async {
        while consumer.counts.dead().get("permanent") != Some(&1) {
            // Counters for metrics wake nobody.
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, counted).await.expect("told");
    consumer.stop().await;
}
