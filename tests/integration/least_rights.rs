//! Each role does its whole work with exactly the rights that `grants` prints, as a login of its
//! own, with the real program.

use crate::operator::{json, operator, said};
use crate::support::postgres::connect;
use crate::support::relay::{Settings, run};
use crate::support::scene::{Draft, QUEUE, Scene, eventually};

/// A login with the rights of one role; the database's URL for it.
async fn login(scene: &Scene, work: &str) -> String {
    let name: String = scene.ask("SELECT current_database()::text").await;
    let role = format!("{work}_of_{name}");
    scene.run(&format!("CREATE ROLE {role} LOGIN")).await;
    let arguments = ["grants", &format!("--{work}"), &role];
    let (status, lines) = run(
        &Settings::new(&scene.database, &scene.vhost.url),
        &arguments,
    )
    .await;
    assert!(status.success(), "{lines:?}");
    scene.run(&lines.join("\n")).await;
    let (scheme, rest) = scene.database.split_once("://").expect("a URL");
    let host = rest.split_once('@').map_or(rest, |(_, host)| host);
    format!("{scheme}://{role}@{host}")
}

/// Publishes, waits, quarantines, removes, obeys, measures, says that it is alive, takes over.
#[tokio::test]
async fn the_relay_needs_what_is_granted_and_no_more() {
    let mut scene = Scene::new().await;
    scene
        .run(
            "INSERT INTO outbox.message (routing_key, payload, sent_at)
             SELECT 'q', '{}', now() - interval '8 days' FROM generate_series(1, 1500)",
        )
        .await;
    let url = login(&scene, "relay").await;
    scene.set("DATABASE__URL", &url);
    scene.set("RETRY__INITIAL", "1h");
    scene.set("RETRY__MAX_DELAY", "1h");
    scene.set("LOG__LEVEL", "debug");
    let relay = scene.ready_relay().await;
    let stand_by = scene.ready_relay().await;
    scene.write_many(50, 5).await;
    let bad = [Draft::by("nowhere", "x"), Draft::to(&"x".repeat(300))];
    scene.write(&bad).await;
    scene
        .run("INSERT INTO outbox.pause (exchange, by_whom, reason) VALUES ('other', 'ann', 'x')")
        .await;
    scene.write(&[Draft::by("other", "x")]).await;
    scene
        .until(
            "SELECT count(*) FILTER (WHERE sent_at IS NOT NULL) = 50
               AND count(*) FILTER (WHERE retry_at IS NOT NULL) = 1
               AND (SELECT count(*) = 1 FROM outbox.quarantine)
               AND (SELECT count(*) = 2 FROM outbox.instance WHERE ready)
             FROM outbox.message",
        )
        .await;
    eventually("the pause is obeyed and measured", async || {
        let page = relay.get("/metrics").await;
        page.is_some_and(|(_, text)| {
            text.contains("outbox_relay_paused{exchange=\"other\"} 1")
                && text.contains("outbox_relay_rows_removed_total 1500")
        })
    })
    .await;
    relay.stop().await;
    stand_by.printed("reading from the database").await;
    scene.flows(Draft::to(QUEUE)).await;
    for line in stand_by.output() {
        let denied = line.contains("permission denied") || line.contains("42501");
        assert!(!denied, "{line}");
    }
    stand_by.stop().await;
}

#[tokio::test]
async fn the_application_writes_by_both_ways_while_the_relay_sleeps_and_is_heard() {
    let mut scene = Scene::new().await;
    let relay_url = login(&scene, "relay").await;
    let app = connect(&login(&scene, "app").await).await;
    scene.set("DATABASE__URL", &relay_url);
    scene.set("RELAY__POLL_INTERVAL", "10m");
    let relay = scene.ready_relay().await;
    for sql in [
        "SELECT outbox.enqueue('{}', routing_key => 'q', ordering_key => 'k')",
        "INSERT INTO outbox.message (routing_key, ordering_key, payload) VALUES ('q', 'k', '{}')",
    ] {
        app.batch_execute(sql).await.expect(sql);
        scene.drained().await;
    }
    relay.stop().await;
    assert_eq!(scene.queues.take_all(QUEUE).await.len(), 2);
}

/// Everything that an operator can do to rows, and the look at them.
#[tokio::test]
async fn the_operator_uses_every_command_of_his() {
    let scene = Scene::new().await;
    let relay = scene.ready_relay().await;
    let bad = Draft::to(&"x".repeat(300));
    scene.write(&[bad.clone(), bad]).await;
    scene.write_many(3, 1).await;
    scene.drained().await;
    let database = scene.keeper();
    let operator = operator(database, &scene.client).await;
    let why = ["--by", "ann", "--reason", "test"];
    for (arguments, code) in [
        (&["status"][..], 0),
        (&["quarantine", "list"], 0),
        (&["explain", "3"], 0),
        (&["quarantine", "show", "1"], 0),
        (&["pause", "--exchange", "e"], 0),
        (&["resume", "--exchange", "e"], 0),
        (&["quarantine", "replay", "--id", "1"], 0),
        (&["quarantine", "discard", "--id", "2"], 0),
        (&["resend", "--since", "1h"], 0),
    ] {
        let acts = ["pause", "resume", "replay", "discard", "resend"];
        let acts = arguments.iter().any(|word| acts.contains(word));
        let all = if acts {
            [arguments, &why].concat()
        } else {
            arguments.to_vec()
        };
        let (exit, text) = said(&operator, &all).await;
        assert_eq!(exit, code, "{all:?}\n{text}");
        assert!(!text.contains("permission denied"), "{text}");
    }
    relay.stop().await;
    let acts = "SELECT count(DISTINCT act) FROM outbox.audit WHERE by_whom = 'ann'";
    assert_eq!(scene.ask::<i64>(acts).await, 5);
}

#[tokio::test]
async fn monitoring_sees_status_and_why_rows_wait() {
    let scene = Scene::new().await;
    let relay = scene.ready_relay().await;
    scene
        .write(&[Draft::by("nowhere", "x"), Draft::to(&"x".repeat(300))])
        .await;
    scene
        .until("SELECT count(*) = 1 FROM outbox.quarantine")
        .await;
    scene
        .until("SELECT count(*) = 1 FROM outbox.message WHERE retry_at IS NOT NULL")
        .await;
    let monitor = Settings::new(&login(&scene, "monitor").await, &scene.vhost.url);
    let (code, status) = json(&monitor, &["status"]).await;
    assert_eq!(code, 0);
    assert_eq!(status["waiting"]["rows"], 1);
    assert_eq!(status["quarantine"][0]["reason"], "invalid_routing_key");
    assert_eq!(status["instances"].as_array().map(Vec::len), Some(1));
    for arguments in [&["explain", "1"][..], &["quarantine", "list"]] {
        let (code, text) = said(&monitor, arguments).await;
        assert_eq!(code, 0, "{arguments:?}\n{text}");
    }
    let why = ["quarantine", "discard", "--id", "2", "--reason", "x"];
    let (code, text) = said(&monitor, &why).await;
    assert!(code != 0 && text.contains("permission denied"), "{text}");
    relay.stop().await;
}
