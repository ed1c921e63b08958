//! How commands end: whoever reads their output may leave, servers may be away, and they may be
//! told to stop. The exit code is always that of the work.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::outbox::{outbox, outbox_with};
use crate::support::ports::Port;
use crate::support::proxy::{Fault, Proxy, Way};
use crate::support::rabbit::Rabbit;
use crate::support::relay::{Relay, Settings, program, run};
use crate::support::scene::{Draft, QUEUE, Scene, eventually, port, through};
use outbox_relay::commands::migrate::MigrateArgs;
use tokio::time::Instant;

/// Which streams nobody reads.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Unread {
    Neither,
    Output,
    Both,
}

/// Runs a command whose readers are gone before it begins: its exit code, and what it said.
fn with_readers_gone(arguments: &[&str], env: &[(&str, &str)], unread: Unread) -> (i32, String) {
    let gone = || {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        Stdio::from(writer)
    };
    let mut command = Command::new(program());
    command
        .args(arguments)
        .env_clear()
        .envs(env.iter().copied());
    match unread {
        Unread::Neither => {}
        Unread::Output => {
            command.stdout(gone());
        }
        Unread::Both => {
            command.stdout(gone()).stderr(gone());
        }
    }
    let child = command.stdin(Stdio::null());
    let done = child.output().expect("it can be started");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    (done.status.code().unwrap_or(-1), said)
}

#[tokio::test]
async fn a_reader_who_leaves_changes_no_exit_code_and_causes_no_panic() {
    let (database, _client) = outbox().await;
    let (empty, _client) = outbox_with(MigrateArgs::default()).await;
    let good = [("DATABASE_URL", database.url.as_str())];
    let bad = [
        ("OUTBOX_RELAY__RELAY__LEASE", "soon"),
        ("DATABASE_URL", "nonsense"),
    ];
    let pending = [
        ("DATABASE_URL", empty.url.as_str()),
        ("OUTBOX_RELAY__OUTBOX__SCHEMA", "other"),
    ];
    for (env, arguments, code) in [
        (&bad[..], &["config"][..], 78),
        (&bad[..], &["status"][..], 78),
        (&good[..], &["config"][..], 0),
        (&good[..], &["status"][..], 0),
        (&good[..], &["status", "--json"][..], 0),
        (&good[..], &["quarantine", "list"][..], 0),
        (&good[..], &["migrate", "--print"][..], 0),
        (&good[..], &["topology", "--print"][..], 0),
        (&good[..], &["grants", "--relay", "postgres"][..], 0),
        (&pending[..], &["migrate", "--check"][..], 1),
        (&good[..], &["--help"][..], 0),
        (&good[..], &["nonsense"][..], 2),
    ] {
        for unread in [Unread::Neither, Unread::Output, Unread::Both] {
            let (ended, said) = with_readers_gone(arguments, env, unread);
            assert_eq!(ended, code, "{arguments:?}, {unread:?} unread: {said}");
            assert!(!said.contains("panicked"), "{arguments:?}: {said}");
        }
    }
}

/// Not by a reader who left.
#[tokio::test]
async fn output_that_cannot_be_written_is_an_error() {
    let (database, _client) = outbox().await;
    let full = std::fs::File::create("/dev/full").expect("full(4)");
    let done = Command::new(program())
        .arg("status")
        .env("DATABASE_URL", &database.url)
        .stdout(full)
        .output()
        .expect("it can be started");
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("No space left"), "{said}");
}

const ANY_PORT: &str = "127.0.0.1:0";

#[tokio::test]
async fn a_run_until_empty_gives_up_on_servers_that_stay_away() {
    let (database, broker) = (Port::take(), Port::take());
    let none = Settings::new(
        &format!("postgres://relay:none@127.0.0.1:{}/shop", database.number()),
        &format!("amqp://relay:none@127.0.0.1:{}", broker.number()),
    );
    let none = none.with("OUTBOX_RELAY__HTTP__LISTEN", ANY_PORT);
    let until_empty = ["run", "--until-empty", "--wait", "1s"];
    let (status, output) = run(&none, &until_empty).await;
    let output = output.join("\n");
    assert_eq!(status.code(), Some(75), "{output}");
    assert!(
        output.contains("given up before the outbox was empty: database"),
        "{output}"
    );

    let mut scene = Scene::new().await;
    scene.write(&[Draft::to(QUEUE)]).await;
    let url = format!("amqp://relay:none@127.0.0.1:{}", broker.number());
    scene.set("BROKER__URL", &url);
    scene.set("HTTP__LISTEN", ANY_PORT);
    let (status, output) = run(&scene.settings, &until_empty).await;
    let output = output.join("\n");
    assert_eq!(status.code(), Some(75), "{output}");
    assert!(
        output.contains("given up before the outbox was empty: broker"),
        "{output}"
    );
    assert_eq!(scene.count("sent_at IS NULL AND attempts = 0").await, 1);
}

#[tokio::test]
async fn a_run_until_empty_tells_what_has_to_be_put_right_from_an_outage() {
    let mut scene = Scene::new().await;
    scene.set("OUTBOX__SCHEMA", "elsewhere");
    scene.set("HTTP__LISTEN", ANY_PORT);
    let until_empty = ["run", "--until-empty", "--wait", "1s"];
    let (status, output) = run(&scene.settings, &until_empty).await;
    let output = output.join("\n");
    assert_eq!(status.code(), Some(78), "{output}");
    assert!(output.contains("elsewhere"), "{output}");
}

#[tokio::test]
async fn a_run_until_empty_that_is_stopped_before_does_not_say_that_it_was() {
    let mut scene = Scene::new().await;
    let proxy = Proxy::start(port(&scene.vhost.url)).await;
    let url = through(&scene.vhost.url, &proxy);
    scene.set("BROKER__URL", &url);
    scene.set("RELAY__SHUTDOWN_GRACE", "2s");
    scene.write_many(10, 10).await;
    proxy.set_way(Way::ToClient, Fault::Stall);
    let relay = Relay::start_with(&scene.settings, &["run", "--until-empty"]);
    relay.printed("settling in the database").await;
    relay.terminate();
    let status = relay.ended().await;
    let output = relay.output().join("\n");
    assert_eq!(status.code(), Some(1), "{output}");
    assert!(
        output.contains("stopped before the outbox was empty"),
        "{output}"
    );
    assert!(output.contains("due: 10"), "{output}");
    proxy.set(Fault::None);
    // Told to stop when everything is done, it has done everything.
    scene.run_until_empty().await;
}

/// Blocked with nothing on the way there is nothing to wait for; with rows on the way the end
/// comes before the grace period is over, and the rows are counted.
#[tokio::test]
async fn a_stop_while_the_broker_blocks_ends_within_its_grace_and_tells_the_truth() {
    let rabbit = Rabbit::start().await;
    let vhost = rabbit.create_vhost().await;
    let database = crate::support::postgres::database().await;
    let mut scene = Scene::on(database.url.clone(), vhost).await;
    let grace = Duration::from_secs(10);
    scene.set("RELAY__SHUTDOWN_GRACE", "10s");
    let relay = scene.ready_relay().await;
    scene.flows(Draft::to(QUEUE)).await;
    rabbit.raise_memory_alarm().await;
    // The broker blocks a connection when something is next published on it.
    scene.write(&[Draft::to(QUEUE)]).await;
    relay.answers("/readyz", 503).await;
    let (told, left) = (Instant::now(), scene.count("sent_at IS NULL").await);
    relay.terminate();
    let status = relay.ended().await;
    let took = told.elapsed();
    let output = relay.output().join("\n");
    assert!(took < grace, "{took:?}\n{output}");
    assert_eq!(left, 1);
    assert_eq!(status.code(), Some(0), "{output}");
    assert!(
        output.contains("stopped before all was confirmed") && output.contains("rows=1"),
        "{output}"
    );

    // A relay that published nothing has nothing to wait for.
    let relay = scene.relay();
    eventually("it is told that the broker blocks, or let in", async || {
        let page = relay.get("/readyz").await;
        page.is_some_and(|(_, body)| body.contains("\"connected\""))
    })
    .await;
    let told = Instant::now();
    relay.terminate();
    relay.ended().await;
    assert!(told.elapsed() < grace, "{:?}", told.elapsed());
    rabbit.clear_memory_alarm().await;
    scene.run_until_empty().await;
}
