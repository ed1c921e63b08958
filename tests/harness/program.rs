//! The relay as a process is started, watched, stopped and killed as tests expect.

use std::os::unix::process::ExitStatusExt;

use crate::support::postgres;
use crate::support::rabbit;
use crate::support::relay::{self, Relay, Settings};

#[tokio::test]
async fn the_program_runs_is_frozen_stopped_and_killed() {
    let (database, vhost) = (postgres::database().await, rabbit::vhost().await);
    relay::migrate(&database.url).await;
    let settings = Settings::new(&database.url, &vhost.url);
    let relay = Relay::start(&settings);
    relay.ready().await;
    relay.pause();
    assert_eq!(
        relay.get("/livez").await,
        None,
        "a stopped process is silent"
    );
    relay.resume();
    relay.answers("/livez", 200).await;
    relay.stop().await;

    let mut relay = Relay::start(&settings);
    relay.ready().await;
    relay.kill();
    assert_eq!(relay.ended().await.signal(), Some(9));
    assert_eq!(relay.get("/livez").await, None);
}

#[tokio::test]
async fn a_refused_command_line_is_seen_with_its_words() {
    let (status, output) = relay::run(&Settings::default(), &["no-such-command"]).await;
    assert_eq!(status.code(), Some(2), "usage, by the contract");
    assert!(
        output.iter().any(|line| line.contains("no-such-command")),
        "{output:?}"
    );
}
