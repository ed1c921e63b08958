//! `/metrics` of a running relay.

use std::time::Duration;

use crate::outbox::outbox;
use crate::support::PATIENCE;
use crate::support::proxy::{Fault, Proxy};
use crate::support::rabbit::vhost;
use crate::support::relay::{Relay, Settings};
use crate::support::scene::{port, through};

/// Waits until the page holds all of these lines.
async fn told(relay: &Relay, lines: &[&str]) {
    let mut page = String::new();
    let all = async {
        loop {
            if let Some((200, body)) = relay.get("/metrics").await {
                page = body;
                if lines
                    .iter()
                    .all(|line| page.lines().any(|told| told == *line))
                {
                    return;
                }
            }
            // A page tells how things are when it is asked for.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let outcome = tokio::time::timeout(PATIENCE, all).await;
    assert!(outcome.is_ok(), "{lines:?} are never all in\n{page}");
}

#[tokio::test]
async fn what_happens_is_counted_and_what_waits_is_measured() {
    let (database, admin) = outbox().await;
    // Confirmed without any queue, because nobody has to be bound to it.
    let settings = Settings::new(&database.url, &vhost().await.url)
        .with("OUTBOX_RELAY__RELAY__OPTIONAL_EXCHANGES", "amq.fanout")
        .with("OUTBOX_RELAY__RETRY__INITIAL", "1h")
        .with("OUTBOX_RELAY__RETRY__MAX_DELAY", "1h");
    let relay = Relay::start(&settings);
    relay.ready().await;
    let rows = "INSERT INTO outbox.message (exchange, routing_key, payload) \
             SELECT 'amq.fanout', '', '1' FROM generate_series(1, 20); \
         INSERT INTO outbox.message (routing_key, payload, ordering_key) \
             VALUES ('nowhere', '1', 'k'); \
         INSERT INTO outbox.message (exchange, payload, properties) \
             VALUES ('amq.fanout', '1', '{\"priority\": 999}'); \
         INSERT INTO outbox.pause (by_whom, reason, exchange) VALUES ('ann', 'test', 'other')";
    admin.batch_execute(rows).await.expect("rows");
    told(
        &relay,
        &[
            "outbox_relay_publishes_total{exchange=\"amq.fanout\",outcome=\"confirmed\"} 20",
            "outbox_relay_publishes_total{exchange=\"(default)\",outcome=\"returned\"} 1",
            "outbox_relay_commit_to_confirm_duration_seconds_count 20",
            "outbox_relay_confirm_duration_seconds_count 21",
            "outbox_relay_retries_total{reason=\"unroutable\"} 1",
            "outbox_relay_pending_rows 1.0",
            "outbox_relay_blocked_keys 1.0",
            "outbox_relay_quarantine_rows{reason=\"invalid_properties\"} 1.0",
            "outbox_relay_paused{exchange=\"other\"} 1.0",
            "outbox_relay_broker_connected 1",
            "outbox_relay_database_connected 1",
            "outbox_relay_partitions_held 256",
            "outbox_relay_in_flight 0",
            "outbox_relay_reconnects_total{target=\"broker\"} 0",
        ],
    )
    .await;
    let page = relay.get("/metrics").await.expect("a page").1;
    for name in [
        "oldest_pending_age_seconds",
        "last_confirm_timestamp_seconds",
    ] {
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix(&format!("outbox_relay_{name} ")));
        let value: f64 = line.expect(name).parse().expect("a number");
        assert!(value > 0.0, "{name} {value}");
    }
    relay.stop().await;
}

#[tokio::test]
async fn connections_made_anew_are_counted() {
    let (database, admin) = outbox().await;
    let relay = Relay::start(&Settings::new(&database.url, &vhost().await.url));
    relay.ready().await;
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE datname = current_database() AND application_name LIKE 'outbox-relay/%'";
    admin.batch_execute(kill).await.expect("killed");
    told(
        &relay,
        &["outbox_relay_reconnects_total{target=\"database\"} 2"],
    )
    .await;
    relay.stop().await;
}

#[tokio::test]
async fn a_relay_whose_lease_may_be_over_says_that_it_holds_nothing() {
    let (database, _admin) = outbox().await;
    let proxy = Proxy::start(port(&database.url)).await;
    let settings = Settings::new(&through(&database.url, &proxy), &vhost().await.url)
        .with("OUTBOX_RELAY__RELAY__LEASE", "3s");
    let relay = Relay::start(&settings);
    relay.ready().await;
    let oldest = "outbox_relay_oldest_pending_age_seconds 0.0";
    told(&relay, &["outbox_relay_partitions_held 256", oldest]).await;
    proxy.set(Fault::Stall);
    // Perhaps nobody can ask the database: what waits is told, and grows older.
    told(&relay, &["outbox_relay_partitions_held 0", oldest]).await;
    proxy.set(Fault::None);
    told(&relay, &["outbox_relay_partitions_held 256"]).await;
    relay.stop().await;
}
