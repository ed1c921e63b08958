//! `make ratio`: how fast the relay drains an outbox beside a bare confirmed publisher over the
//! same client, window and channels, in the same run; and what a message costs each in CPU.
//!
//! With `OUTBOX_RELAY_RATIO_APART=1` the broker has a CPU of its own, and everybody else another.
//!
//! Runs take turns, because machines are noisy; medians are compared. A measurement: it judges
//! only whether everything arrived, and the finish line given by `OUTBOX_RELAY_RATIO`.

#[path = "../support/mod.rs"]
mod support;

mod bare;
mod measured;

use outbox_relay::runtime::executor;
use tokio::runtime::Runtime;

use support::postgres::{Options, Postgres};
use support::rabbit::Rabbit;
use support::scene::Scene;

use measured::{Measured, median, pin, run};

/// The finish line's number of messages; another one by `OUTBOX_RELAY_RATIO_MESSAGES`.
fn messages() -> usize {
    let chosen = std::env::var("OUTBOX_RELAY_RATIO_MESSAGES").ok();
    chosen.map_or(20_000, |chosen| {
        chosen.parse().expect("a number of messages")
    })
}

const KEYS: usize = 1000;
const IN_FLIGHT: usize = 1000;
const CHANNELS: usize = 4;
const ROUNDS: usize = 5;

/// 300 bytes of JSON, as an order might be.
fn body(number: usize) -> String {
    let head = format!("{{\"order\": {number}, \"note\": \"");
    format!("{head}{}\"}}", "x".repeat(298 - head.len()))
}

fn main() {
    // With the broker on a CPU of its own, as on a host of its own, what is compared is not who
    // leaves it more of a small machine.
    let apart = std::env::var("OUTBOX_RELAY_RATIO_APART").is_ok_and(|apart| apart == "1");
    let url = std::env::args().nth(1);
    if apart && url.is_none() {
        pin(None, 1);
    }
    match url {
        // As the relay runs.
        Some(url) => executor().expect("a runtime").block_on(bare::publish(&url)),
        None => Runtime::new().expect("a runtime").block_on(compare(apart)),
    }
}

async fn compare(apart: bool) {
    let durable = Options {
        durable: true,
        ..Options::default()
    };
    let (postgres, rabbit) = tokio::join!(Postgres::start_with(durable), Rabbit::start());
    if apart {
        pin(Some(rabbit.pid()), 0);
    }
    let (mut bare, mut relay) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        bare.push(bare_run(&rabbit).await);
        relay.push(relay_run(&postgres, &rabbit).await);
        println!("round {round}  bare   {}", bare[round - 1]);
        println!("round {round}  relay  {}", relay[round - 1]);
    }
    let rate = |runs: &[Measured]| median(runs.iter().map(Measured::rate).collect());
    let cpu = |runs: &[Measured]| median(runs.iter().map(Measured::cpu_each).collect());
    let (messages, ratio) = (messages(), rate(&relay) / rate(&bare));
    println!(
        "\nmedians of {ROUNDS} runs of {messages} messages, durable quorum queue, {KEYS} keys:\n\
         bare   {:.0} messages/s, {:.0} µs CPU each\n\
         relay  {:.0} messages/s, {:.0} µs CPU each\n\
         ratio  {ratio:.2} throughput, {:.2} CPU per message",
        rate(&bare),
        cpu(&bare),
        rate(&relay),
        cpu(&relay),
        cpu(&relay) / cpu(&bare),
    );
    let line = std::env::var("OUTBOX_RELAY_RATIO").ok();
    let line: f64 = line.map_or(0.7, |line| {
        line.parse().expect("OUTBOX_RELAY_RATIO is a number")
    });
    assert!(ratio >= line, "below the finish line of {line}");
}

async fn bare_run(rabbit: &Rabbit) -> Measured {
    let vhost = rabbit.create_vhost().await;
    let queues = support::queues::Queues::connect(&vhost.url).await;
    queues.quorum("orders").await;
    let own = std::env::current_exe().expect("own path");
    let count = messages().to_string();
    let env = [("OUTBOX_RELAY_RATIO_MESSAGES", count.as_str())];
    let measured = run(&own, &[&vhost.url], &env).await;
    assert_eq!(queues.take_all("orders").await.len(), messages());
    measured
}

async fn relay_run(postgres: &Postgres, rabbit: &Rabbit) -> Measured {
    let database = postgres.create_database().await;
    let vhost = rabbit.create_vhost().await;
    let scene = Scene::on(database.url.clone(), vhost).await;
    scene.queues.quorum("orders").await;
    let messages = messages();
    let insert = format!(
        "INSERT INTO outbox.message (routing_key, ordering_key, type, payload)
         SELECT 'orders', 'customer-' || n % {KEYS}, 'order.placed',
           ('{{\"order\": ' || n || ', \"note\": \"' || repeat('x', 298 - 21 - length(n::text)) || '\"}}')::json
         FROM generate_series(1, {messages}) AS n"
    );
    scene.run(&insert).await;
    let bytes: i64 = scene
        .ask("SELECT max(octet_length(payload::text))::bigint FROM outbox.message")
        .await;
    assert_eq!(usize::try_from(bytes).expect("small"), body(1).len());
    // As autovacuum would have found it, had the rows come over hours.
    scene.run("VACUUM ANALYZE outbox.message").await;
    scene.run("CHECKPOINT").await;
    let program = support::relay::program();
    // `info` tells when it had connected and when it was done.
    let level = std::env::var("OUTBOX_RELAY_RATIO_LOG").unwrap_or_else(|_| "warn".to_owned());
    let settings = [
        ("OUTBOX_RELAY__DATABASE__URL", scene.database.as_str()),
        ("OUTBOX_RELAY__BROKER__URL", scene.vhost.url.as_str()),
        ("OUTBOX_RELAY__HTTP__LISTEN", "127.0.0.1:0"),
        ("OUTBOX_RELAY__LOG__LEVEL", level.as_str()),
    ];
    let measured = run(&program, &["run", "--until-empty"], &settings).await;
    assert_eq!(scene.count("sent_at IS NULL").await, 0);
    assert_eq!(scene.queues.take_all("orders").await.len(), messages);
    measured
}
