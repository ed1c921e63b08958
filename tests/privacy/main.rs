//! No password and no payload reaches the log, not even at the finest level (promise P10).
//!
//! The log belongs to a process, so the one that is looked at is this test run once more. Without
//! our guard the same run must show both: that is what makes the test able to fail, and what will
//! tell when a newer client crate logs differently.

mod program;
#[path = "../support/mod.rs"]
mod support;

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use outbox_relay::broker::{AmqpBroker, Broker, Channel, Link, Outcome};
use outbox_relay::config::{BrokerAccess, BrokerEndpoint, LogFormat, LogSection, Login};
use outbox_relay::message::{Body, OutboxRow, Publication, RowId, Rules};
use outbox_relay::ops::Telemetry;
use tokio::time::timeout;

use support::PATIENCE;
use support::rabbit::Rabbit;

const ROLE: &str = "OUTBOX_RELAY_TEST_LOG";
const PORT: &str = "OUTBOX_RELAY_TEST_PORT";
const NAME: &str = "neither_password_nor_payload_is_logged_at_the_finest_level";
const PASSWORD: &str = "canary-of-the-password";
const PAYLOAD: &str = "canary-of-the-payload";

#[tokio::test]
async fn neither_password_nor_payload_is_logged_at_the_finest_level() {
    if let Ok(role) = std::env::var(ROLE) {
        return publish_what_nobody_takes(&role).await;
    }
    let rabbit = Rabbit::start().await;
    rabbit.add_user("relay", PASSWORD).await;
    rabbit.set_permissions("relay", "/", ["", ".*", ""]).await;

    let bare = log_of("bare", rabbit.port());
    assert!(
        holds(&bare, PAYLOAD),
        "unguarded, the payload is not logged"
    );
    assert!(
        holds(&bare, PASSWORD),
        "unguarded, the password is not logged"
    );

    for format in ["text", "json"] {
        let guarded = log_of(format, rabbit.port());
        assert!(guarded.contains("our own line"), "{guarded}");
        assert!(!holds(&guarded, PAYLOAD), "{guarded}");
        assert!(!holds(&guarded, PASSWORD), "{guarded}");
    }
}

/// As text, or as the list of bytes that `Debug` makes of it.
fn holds(log: &str, canary: &str) -> bool {
    let bytes: Vec<String> = canary.bytes().map(|byte| byte.to_string()).collect();
    log.contains(canary) || log.contains(&bytes.join(", "))
}

fn log_of(role: &str, port: u16) -> String {
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", NAME, "--nocapture"])
        .env(ROLE, role)
        .env(PORT, port.to_string())
        .stdin(Stdio::null())
        .output()
        .expect("this test runs");
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{log}");
    log
}

async fn publish_what_nobody_takes(role: &str) {
    match role {
        "bare" => tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(std::io::stderr)
            .init(),
        format => {
            let format = match format {
                "json" => LogFormat::Json,
                _ => LogFormat::Text,
            };
            let level = "trace,lapin::returned_messages=trace".to_owned();
            Telemetry::install(&LogSection { format, level }).expect("the first log");
        }
    }
    tracing::trace!("our own line");
    let link = broker().connect().await.expect("a connection");
    let mut channel = link.open_channel().await.expect("a channel");
    channel.publish(vec![unroutable()]).await;
    let judged = timeout(PATIENCE, channel.judged()).await.expect("in time");
    let judged = judged.expect("a channel that lives");
    assert!(matches!(judged[..], [(RowId(1), Outcome::Returned { .. })]));
    link.close().await;
}

fn broker() -> AmqpBroker {
    let port = std::env::var(PORT).expect("a port");
    let endpoint = BrokerEndpoint {
        host: "127.0.0.1".to_owned(),
        port: port.parse().expect("a number"),
        vhost: "/".to_owned(),
        tls: None,
        login: Login::Plain {
            user: "relay".to_owned(),
            password: PASSWORD.into(),
        },
        heartbeat: Duration::from_secs(10),
        connect_timeout: Duration::from_secs(20),
    };
    AmqpBroker::new(move || {
        Ok(BrokerAccess {
            endpoints: vec![endpoint.clone()],
            confirm_timeout: Duration::from_secs(30),
        })
    })
}

fn unroutable() -> Arc<Publication> {
    let row = OutboxRow {
        id: RowId(1),
        message_id: "1".to_owned(),
        exchange: String::new(),
        routing_key: "no such queue".to_owned(),
        ordering_key: None,
        payload: Body::Bytes(PAYLOAD.into()),
        headers: None,
        message_type: None,
        correlation_id: None,
        content_type: None,
        properties: None,
        created_at: UNIX_EPOCH,
        attempts: 0,
    };
    let rules = Rules {
        max_message_size: 1024,
        frame_max: 131_072,
        mandatory: true,
        optional_exchanges: Vec::new(),
        allowed_exchanges: vec!["*".to_owned()],
        default_content_type: "text/plain",
        login: None,
    };
    Arc::new(Publication::from_row(row, &rules).expect("a fit row"))
}
