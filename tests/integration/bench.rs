//! `outbox-relay bench`: it measures, and leaves nothing behind.

use rustix::process::Signal;
use serde_json::Value;
use tokio_postgres::Client;

use crate::outbox::until;
use crate::support::ports::Port;
use crate::support::postgres::database;
use crate::support::rabbit::{Rabbit, vhost};
use crate::support::relay::{Relay, Settings, run};

const GONE: &str =
    "SELECT NOT EXISTS (SELECT FROM pg_namespace WHERE nspname LIKE 'outbox_relay_bench%')";

async fn schema_is_gone(admin: &Client) -> bool {
    admin.query_one(GONE, &[]).await.expect(GONE).get(0)
}

#[tokio::test]
async fn relay_and_bare_publisher_are_measured_side_by_side() {
    let database = database().await;
    let settings = Settings::new(&database.url, &vhost().await.url);
    let arguments = [
        "bench",
        "--json",
        "--rows",
        "500",
        "--rounds",
        "1",
        "--rate",
        "200",
        "--for",
        "1s",
        "--writers",
        "2",
        "--keys",
        "20",
        // What the application may use says nothing about the scratch queue.
        "--set",
        "relay.allowed_exchanges=[\"orders\"]",
    ];
    let (status, lines) = run(&settings, &arguments).await;
    let text = lines.join("\n");
    assert_eq!(status.code(), Some(0), "{text}");
    let object = &text[text.find('{').expect("an object")..];
    let object = &object[..=object.rfind('}').expect("an object")];
    let said: Value = serde_json::from_str(object).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(said["version"], 1);
    let measures = said["measures"].as_array().expect("a list");
    let names: Vec<_> = measures.iter().map(|one| one["name"].as_str()).collect();
    let expected = [
        "drain",
        "cpu",
        "latency_p50",
        "latency_p90",
        "latency_p99",
        "latency_max",
    ];
    assert_eq!(names, expected.map(Some));
    for measure in measures {
        for side in ["bare", "relay"] {
            let value = measure[side].as_f64().expect("a number");
            assert!(value > 0.0, "{measure}");
        }
    }
    assert!(schema_is_gone(&database.connect().await).await);
}

#[tokio::test]
async fn servers_elsewhere_are_left_alone_without_a_yes() {
    let database = database().await;
    let settings = Settings::new(&database.url, "amqps://guest:guest@192.0.2.1");
    let (status, lines) = run(&settings, &["bench"]).await;
    assert_eq!(status.code(), Some(2), "{lines:?}");
    assert!(
        lines[0].contains("192.0.2.1:5671 is not on this machine"),
        "{lines:?}"
    );
}

#[tokio::test]
async fn an_interrupted_bench_removes_what_it_made() {
    let database = database().await;
    let admin = database.connect().await;
    let rabbit = Rabbit::start().await;
    let settings = Settings::new(&database.url, &rabbit.url());
    let arguments = ["bench", "--rows", "200", "--rounds", "1", "--for", "1h"];
    let bench = Relay::start_with(&settings, &arguments);
    bench.printed("latency at 1000 rows/s").await;
    until(&admin, &GONE.replacen("NOT ", "", 1)).await;
    bench.signal(Signal::INT);
    assert_eq!(bench.ended().await.code(), Some(1));
    let said = bench.output().join("\n");
    assert!(
        said.contains("interrupted; what was made is removed"),
        "{said}"
    );
    assert!(schema_is_gone(&admin).await);
    let queues = rabbit.ctl(&["--quiet", "list_queues", "name"]).await;
    assert!(!queues.contains("outbox-relay.bench"), "{queues}");
}

#[tokio::test]
async fn a_server_that_is_away_is_told_and_nothing_is_said_of_leftovers() {
    let database = database().await;
    let nobody = Port::take();
    let away = |scheme: &str| format!("{scheme}://guest:guest@127.0.0.1:{}/x", nobody.number());
    for settings in [
        Settings::new(&database.url, &away("amqp")),
        Settings::new(&away("postgres"), &vhost().await.url),
    ] {
        let (status, lines) = run(&settings, &["bench"]).await;
        let said = lines.join("\n");
        assert_eq!(status.code(), Some(75), "{said}");
        assert!(
            said.contains("127.0.0.1") && !said.contains("left behind"),
            "{said}"
        );
    }
    let settings = Settings::new(&database.url, &vhost().await.url);
    let (status, lines) = run(&settings, &["bench", "--for", "0s"]).await;
    assert_eq!(status.code(), Some(2), "{lines:?}");
}
