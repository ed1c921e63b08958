//! The page `/` as a browser shows it: each state in words, without an error of its script and
//! without anything loaded from elsewhere. How it looks is for eyes.
//!
//! Chromium is asked; no other browser prints what it made of a page.

use std::ffi::OsStr;
use std::path::Path;

use tokio::time::Instant;

use crate::support::PATIENCE;
use crate::support::leash::{Leashed, Program};
use crate::support::places::{Places, needed};
use crate::support::postgres::database;
use crate::support::rabbit::Rabbit;
use crate::support::relay::Relay;
use crate::support::scene::{Draft, Scene, eventually};
use crate::support::scratch::Scratch;

fn chromium() -> Option<&'static Path> {
    needed("chromium", Places::known().chromium.as_deref())
}

/// The document after its script has run for some seconds of the browser's own time.
async fn document(chromium: &Path, relay: &Relay) -> String {
    let folder = Scratch::new("browser");
    let profile = format!("--user-data-dir={}", folder.path().display());
    let url = format!("http://127.0.0.1:{}/", relay.http_port());
    let arguments = [
        "--headless",
        "--no-sandbox", // root may not run it otherwise; it sees nothing but our own page
        "--disable-gpu",
        "--enable-logging=stderr",
        "--virtual-time-budget=8000",
        &profile,
        "--dump-dom",
        &url,
    ];
    let mut command: Vec<&OsStr> = vec![chromium.as_ref()];
    command.extend(arguments.iter().map(OsStr::new));
    let browser = Leashed::start(&Program {
        name: "Chromium",
        folder: folder.path(),
        unprivileged: false,
        command: &command,
        env: &[("LD_LIBRARY_PATH", Places::known().chromium_libs.clone())],
    });
    let status = browser.ended(PATIENCE).await;
    browser.all_printed(PATIENCE).await;
    let told = browser.output().lines().join("\n");
    assert!(status.success(), "{status}\n{told}");
    for complaint in [
        "Uncaught",
        "Refused to",
        "violates the following Content Security",
    ] {
        assert!(!told.contains(complaint), "{told}");
    }
    let document = told.split_once("<!DOCTYPE html>");
    document
        .unwrap_or_else(|| panic!("no document in\n{told}"))
        .1
        .to_owned()
}

/// The document without its marks.
fn words(document: &str) -> String {
    let parts = document.split('<').filter_map(|part| part.split_once('>'));
    let text: Vec<_> = parts.map(|(_, text)| text).collect();
    text.join(" ")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

/// Waits until the page shows all of it.
async fn shows(chromium: &Path, relay: &Relay, all: &[&str]) {
    // The table is measured every few seconds, and the browser may be quicker than that.
    let end = Instant::now() + PATIENCE;
    loop {
        let last = words(&document(chromium, relay).await);
        if all.iter().all(|words| last.contains(words)) {
            return;
        }
        assert!(Instant::now() < end, "{all:?} are not all in\n{last}");
    }
}

#[tokio::test]
async fn nothing_then_much_is_shown_in_words() {
    let Some(chromium) = chromium() else { return };
    let scene = Scene::new().await;
    let relay = scene.ready_relay().await;
    let empty = [
        "ready",
        "Due rows idle",
        "nothing confirmed since the start",
        "Nothing is paused.",
    ];
    shows(chromium, &relay, &empty).await;
    scene.write_many(400, 50).await;
    scene.drained().await;
    let busy = ["Confirmed since start 400", "Due rows idle"];
    shows(chromium, &relay, &busy).await;
    relay.stop().await;
}

#[tokio::test]
async fn what_an_operator_has_to_decide_is_shown_in_words() {
    let Some(chromium) = chromium() else { return };
    let mut scene = Scene::new().await;
    scene.set("QUARANTINE__OWNER", "<img src=x onerror=alert(1)>");
    let relay = scene.ready_relay().await;
    let unfit = "INSERT INTO outbox.message (routing_key, payload, properties) \
         SELECT 'q', '1', '{\"priority\": 999}' FROM generate_series(1, 20)";
    scene.run(unfit).await;
    scene.write(&[Draft::by("nowhere", "x")]).await;
    eventually("rows are given up", async || {
        scene.quarantined().await == 20
    })
    .await;
    let filled = [
        "20 invalid_properties",
        "Due rows waiting",
        "there is no exchange `nowhere`",
    ];
    shows(chromium, &relay, &filled).await;
    let document = document(chromium, &relay).await;
    let is_text = document.contains("&lt;img src=x") && !document.contains("<img");
    assert!(is_text, "{document}");

    let pause = "INSERT INTO outbox.pause (by_whom, reason) VALUES ('ann', 'broker upgrade')";
    scene.run(pause).await;
    let paused = ["ready", "Due rows paused", "paused by ann: broker upgrade"];
    shows(chromium, &relay, &paused).await;
    relay.stop().await;
}

/// What a relay said before it died is no longer so.
#[tokio::test]
async fn a_relay_that_fell_silent_holds_nothing_and_is_connected_to_nothing() {
    let Some(chromium) = chromium() else { return };
    let scene = Scene::new().await;
    let gone = "INSERT INTO outbox.instance (instance, relation, name, version, heartbeat_at, ready, \
           database_state, broker_state, partitions) \
         VALUES (gen_random_uuid(), 'message', 'pod-gone', '0.0.9', now() - interval '10 min', true, \
           'connected', 'connected', 128)";
    scene.run(gone).await;
    let relay = scene.ready_relay().await;
    let told = ["pod-gone silent for", "– – 0 none yet 0.0.9", "256"];
    shows(chromium, &relay, &told).await;
    relay.stop().await;
}

#[tokio::test]
async fn a_broker_that_is_gone_is_shown_with_the_reason() {
    let Some(chromium) = chromium() else { return };
    let mut rabbit = Rabbit::start().await;
    let database = database().await;
    let scene = Scene::on(database.url.clone(), rabbit.create_vhost().await).await;
    let relay = scene.ready_relay().await;
    rabbit.kill();
    relay.answers("/readyz", 503).await;
    let down = [
        "not ready",
        "RabbitMQ disconnected",
        "Connection refused",
        "PostgreSQL connected",
    ];
    shows(chromium, &relay, &down).await;
    relay.stop().await;
}
