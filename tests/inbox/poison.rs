//! A message that kills every process that touches it.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use outbox_relay::inbox::{Consumer, HandlerResult, LeasedHandler, Message, Settings};
use tokio_util::sync::CancellationToken;

use crate::entries::{PAY, entry, state};
use crate::support::PATIENCE;
use crate::support::leash::{Leashed, Program};
use crate::support::scratch::Scratch;
use crate::world::World;

const ROLE: &str = "OUTBOX_RELAY_TEST_POISONED_PROCESS";

struct Dies;

impl LeasedHandler for Dies {
    async fn handle(&self, message: &Message) -> HandlerResult {
        if !message.message_id.starts_with("poison") {
            return Ok(None);
        }
        println!("attempt {}", message.attempt);
        std::process::abort();
    }
}

/// This test binary once more, as a consumer whose handler aborts. Alone it does nothing.
#[tokio::test]
async fn as_the_poisoned_process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let parts: Vec<_> = role.split('|').collect();
    let settings = Settings {
        lease: Duration::from_secs(1),
        max_attempts: 3,
        concurrency: 1,
        ..Settings::new(PAY, parts[2])
    };
    let consumer = Consumer::by_urls(settings, parts[0].to_owned(), parts[1].to_owned());
    let consumer = consumer.expect("settings");
    consumer.run_leased(Dies, CancellationToken::new()).await;
}

fn process(world: &World, folder: &Path) -> Leashed {
    let program = std::env::current_exe().expect("own path");
    let role = [world.database.url.as_str(), &world.amqp, &world.queue].join("|");
    let command: [&OsStr; 4] = [
        program.as_ref(),
        "--exact".as_ref(),
        "poison::as_the_poisoned_process".as_ref(),
        "--nocapture".as_ref(),
    ];
    Leashed::start(&Program {
        name: "consumer",
        folder,
        unprivileged: false,
        command: &command,
        env: &[(ROLE, role)],
    })
}

/// F65, the handler that crashes its process.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_crashes_its_process_runs_max_attempts_times_and_is_dead() {
    let world = World::new().await;
    world.publish("poison", None).await;
    let folder = Scratch::new("poison");
    let start = || process(&world, folder.path());
    let mut attempts = Vec::new();
    for _ in 0..3 {
        let process = start();
        assert!(!process.ended(PATIENCE).await.success());
        process.all_printed(PATIENCE).await;
        let lines = process.output().lines();
        attempts.extend(
            lines
                .into_iter()
                .filter(|line| line.starts_with("attempt ")),
        );
        assert_eq!(state(&world.client, "poison").await, "processing");
    }
    let survivor = start();
    world.are("dead", 1).await;
    drop(survivor);
    assert_eq!(attempts, ["attempt 1", "attempt 2", "attempt 3"]);
    let entry = entry(&world.client, "poison").await;
    assert_eq!(
        (&entry["attempt"], &entry["reason_class"]),
        (&3.into(), &"abandoned".into())
    );
    world.invariants(1).await;
}

/// A quorum queue gives up what came back too often. Each crash gives back all that was prefetched,
/// also messages that harm nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_of_crashes_loses_no_message_to_the_queues_delivery_limit() {
    const POISONED: i64 = 16;
    const HARMLESS: i64 = 8;
    let world = World::new().await.with_delivery_limit(9).await;
    for number in 0..POISONED {
        world.publish(&format!("poison {number}"), None).await;
    }
    for number in 0..HARMLESS {
        world.publish(&format!("harmless {number}"), None).await;
    }
    let folder = Scratch::new("poison");
    let mut crashes = 0;
    // Each poisoned one has three attempts; then a process lives.
    while crashes < 3 * POISONED {
        let process = process(&world, folder.path());
        let finished = "SELECT count(*) FROM inbox.message WHERE done_at IS NOT NULL";
        tokio::select! {
            _ = process.ended(PATIENCE) => crashes += 1,
            () = world.counts(finished, POISONED + HARMLESS) => break,
        }
    }
    let last = process(&world, folder.path());
    world.are("done", HARMLESS).await;
    world.are("dead", POISONED).await;
    drop(last);
    world.invariants(POISONED + HARMLESS).await;
}
