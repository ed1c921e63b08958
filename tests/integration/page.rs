//! The page `/` by HTTP: what it is made of, what it may load, and what its script is told. What
//! a browser makes of it: `browser`.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::relay::Relay;
use crate::support::scene::{Draft, QUEUE, Scene, eventually};

/// Head and body of an answer.
async fn ask(relay: &Relay, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", relay.http_port()))
        .await
        .expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_lowercase(), body.to_owned())
}

async fn told(relay: &Relay) -> Value {
    let (head, body) = ask(relay, "/page.json").await;
    assert!(head.contains("content-type: application/json"), "{head}");
    serde_json::from_str(&body).expect("JSON")
}

#[tokio::test]
async fn the_page_loads_nothing_from_elsewhere_and_says_so_to_the_browser() {
    let scene = Scene::new().await;
    let relay = scene.ready_relay().await;
    for (path, media) in [
        ("/", "text/html"),
        ("/page.js", "text/javascript"),
        ("/page.css", "text/css"),
        ("/page.json", "application/json"),
        ("/metrics", "application/openmetrics-text"),
        ("/readyz", "application/json"),
        ("/nothing", "text/plain"),
    ] {
        let (head, body) = ask(&relay, path).await;
        assert!(head.contains(&format!("content-type: {media}")), "{head}");
        let policy = head
            .lines()
            .find_map(|line| line.strip_prefix("content-security-policy: "))
            .unwrap_or_else(|| panic!("{path} has no policy: {head}"));
        assert!(policy.starts_with("default-src 'none'; "), "{policy}");
        for weak in ["unsafe", "http", "data:", "blob:", "*", "nonce"] {
            assert!(!policy.contains(weak), "{weak} in {policy}");
        }
        assert!(head.contains("x-content-type-options: nosniff"), "{head}");
        // The name of SVG's namespace is a name, nothing is loaded from there.
        let body = body.replace("http://www.w3.org/2000/svg", "");
        for elsewhere in ["http:", "https:", "src=\"//", "href=\"//", "url("] {
            assert!(!body.contains(elsewhere), "{elsewhere} in {path}");
        }
    }
    relay.stop().await;
}

#[tokio::test]
async fn the_script_writes_text_and_never_markup() {
    let scene = Scene::new().await;
    let relay = scene.ready_relay().await;
    let (_, script) = ask(&relay, "/page.js").await;
    for way in [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "DOMParser",
        ".setHTML",
    ] {
        assert!(!script.contains(way), "{way}");
    }
    // Without inline scripts, styles and handlers the policy needs no exception.
    let (_, page) = ask(&relay, "/").await;
    for inline in ["<style", "style=", " onload=", " onclick=", "<script>"] {
        assert!(!page.contains(inline), "{inline}");
    }
    relay.stop().await;
}

#[tokio::test]
async fn what_happens_is_told_and_hostile_names_stay_text() {
    let mut scene = Scene::new().await;
    let hostile = "<img src=x onerror=alert(1)>";
    scene.set("QUARANTINE__OWNER", hostile);
    scene.set("RETRY__INITIAL", "1h");
    scene.set("RETRY__MAX_DELAY", "1h");
    let relay = scene.ready_relay().await;
    scene.write_many(40, 5).await;
    scene.write(&[Draft::by(hostile, "x")]).await;
    scene
        .run(
            "INSERT INTO outbox.message (routing_key, payload, properties)
             VALUES ('q', '1', '{\"priority\": 999}');
             INSERT INTO outbox.pause (exchange, by_whom, reason)
             VALUES ('other', '<b>ann</b>', 'a \"reason\"')",
        )
        .await;
    let mut page = Value::Null;
    eventually("the page tells all of it", async || {
        page = told(&relay).await;
        let whole = &page["whole"];
        page["publishes"]["confirmed"] == 40
            && whole["reasons"].as_array().is_some_and(|r| r.len() == 1)
            && whole["quarantine"][0]["reason"] == "invalid_properties"
            && whole["pauses"][0]["by"] == "<b>ann</b>"
            && whole["instances"][0]["ready"] == true
            && whole["pending"]["rows"] == 1
    })
    .await;
    assert_eq!(page["owner"], hostile);
    assert_eq!(page["outbox"], "outbox.message");
    assert_eq!(page["partitions_held"], 256);
    assert_eq!(page["readiness"]["broker"]["state"], "connected");
    let reason = page["whole"]["reasons"][0]["reason"].as_str();
    assert!(
        reason.is_some_and(|reason| reason.contains(hostile)),
        "{reason:?}"
    );
    // The page itself is the same whatever is told.
    let (_, markup) = ask(&relay, "/").await;
    assert!(!markup.contains("onerror"), "{markup}");
    relay.stop().await;
}

#[tokio::test]
async fn the_charts_have_a_history_before_anybody_looks() {
    let scene = Scene::new().await;
    let relay = scene.ready_relay().await;
    scene.write_many(40, 5).await;
    eventually("a step of history is told", async || {
        let series = told(&relay).await["series"].take();
        let known = |column: &str| {
            let column = series[column].as_array().expect("a column");
            column
                .iter()
                .any(|value| value.as_f64().is_some_and(|v| v > 0.0))
        };
        ["at", "rate", "p50", "p99"].iter().all(|c| known(c))
    })
    .await;
    relay.stop().await;
}

/// While somebody looks, an idle outbox is measured more often than every half minute.
#[tokio::test]
async fn looking_makes_an_idle_relay_measure_more_often() {
    let scene = Scene::new().await;
    let relay = scene.ready_relay().await;
    eventually("it was measured", async || {
        !told(&relay).await["whole"].is_null()
    })
    .await;
    scene
        .run(
            "INSERT INTO outbox.message (routing_key, payload, available_at)
             VALUES ('q', '1', now() + interval '1 day')",
        )
        .await;
    let start = tokio::time::Instant::now();
    eventually("the scheduled row is told", async || {
        told(&relay).await["whole"]["scheduled"]["rows"] == 1
    })
    .await;
    assert!(
        start.elapsed() < Duration::from_secs(25),
        "{:?}",
        start.elapsed()
    );
    relay.stop().await;
    assert!(scene.queues.take_all(QUEUE).await.is_empty());
}

#[tokio::test]
async fn a_stand_by_tells_of_itself_only() {
    let scene = Scene::new().await;
    let first = scene.ready_relay().await;
    let second = scene.ready_relay().await;
    eventually("the first tells of the whole", async || {
        let whole = told(&first).await["whole"].take();
        whole["instances"]
            .as_array()
            .is_some_and(|all| all.len() == 2)
    })
    .await;
    let page = told(&second).await;
    assert!(page["whole"].is_null(), "{page}");
    assert_eq!(page["speaks"], false);
    second.stop().await;
    first.stop().await;
}
