//! Exchanges that are missing, deleted or forbidden, and queues that are full: the rows wait,
//! everybody else flows.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::soak;
use crate::support::PATIENCE;
use crate::support::queues::Letter;
use crate::support::rabbit;
use crate::support::relay::Relay;
use crate::support::scene::{Draft, QUEUE, Scene, port};

/// A scene that does not wait long for a destination.
async fn impatient() -> Scene {
    let mut scene = Scene::new().await;
    scene.set("RETRY__INITIAL", "200ms");
    scene.set("RETRY__MAX_DELAY", "1s");
    scene
}

/// # Panics
/// If a message was delivered more than twice, with what the relay said. A connection that was lost
/// on the way, as on a machine that stands still for seconds, costs another delivery.
fn at_most_twice(letters: &[Letter], said: &[String]) {
    let mut counts = std::collections::BTreeMap::new();
    for letter in letters {
        *counts.entry(letter.id).or_insert(0) += 1;
    }
    let connections = said
        .iter()
        .filter(|line| line.contains("connected to the broker"));
    let allowed = 1 + connections.count();
    counts.retain(|_, count| *count > allowed);
    let said = said.join("\n");
    assert!(counts.is_empty(), "deliveries of rows: {counts:?}\n{said}");
}

/// Waits until the rows in `QUEUE`'s destination are sent, whatever waits elsewhere.
async fn good_rows_sent(scene: &Scene) {
    scene
        .until(
            "SELECT NOT EXISTS (SELECT FROM outbox.message
             WHERE sent_at IS NULL AND exchange = '' AND routing_key = 'q')",
        )
        .await;
}

/// F3.
#[tokio::test]
async fn rows_to_a_missing_exchange_wait_and_stop_nobody() {
    let scene = impatient().await;
    let drafts: Vec<Draft> = (0..10_000)
        .map(|n| match n % 1000 {
            500 => Draft::by("missing", "x").of(format!("missing-{n}")),
            _ => Draft::to(QUEUE).of(format!("key-{}", n % 500)),
        })
        .collect();
    scene.write(&drafts).await;
    let relay = scene.ready_relay().await;
    good_rows_sent(&scene).await;
    scene
        .until("SELECT count(*) = 10 FROM outbox.message WHERE sent_at IS NULL")
        .await;
    scene
        .until(
            "SELECT EXISTS (SELECT FROM outbox.message WHERE last_error LIKE '%404%missing%'
             AND retry_at IS NOT NULL)",
        )
        .await;
    let letters = scene.collect(QUEUE).await;
    assert_eq!(letters.len(), 9_990, "none was repeated");
    // Declared in time, it lets them go.
    scene.queues.exchange("missing").await;
    scene.queues.bind(QUEUE, "missing", "#").await;
    scene.drained().await;
    relay.stop().await;
    assert_eq!(
        (scene.quarantined().await, scene.count("attempts > 0").await),
        (0, 0)
    );
    scene.judge().await;
}

/// F3.
#[tokio::test]
async fn rows_to_an_exchange_that_stays_missing_are_quarantined_with_404() {
    let mut scene = impatient().await;
    scene.set("RETRY__DESTINATION_AFTER", "2s");
    scene
        .write(&[
            Draft::by("missing", "x").of("a"),
            Draft::by("missing", "y").of("b"),
            Draft::to(QUEUE).of("a"),
        ])
        .await;
    let relay = scene.ready_relay().await;
    scene
        .until("SELECT count(*) = 2 FROM outbox.quarantine")
        .await;
    let reasons: i64 = scene
        .ask("SELECT count(*) FROM outbox.quarantine WHERE reason LIKE '%404%missing%'")
        .await;
    assert_eq!(reasons, 2);
    // The row behind goes on: `successors = "continue"`.
    scene.drained().await;
    relay.stop().await;
    assert_eq!(scene.collect(QUEUE).await.len(), 1);
}

/// F3: the exchange goes away while rows are in flight to it.
#[tokio::test]
async fn an_exchange_deleted_under_load_stops_nobody() {
    let scene = impatient().await;
    scene.queues.exchange("live").await;
    scene.queues.classic("other").await;
    scene.queues.bind("other", "live", "#").await;
    let batch = |from: usize| -> Vec<Draft> {
        let draft = |n: usize| match n % 3 {
            0 => Draft::by("live", "x").of(format!("live-{}", n % 300)),
            _ => Draft::to(QUEUE).of(format!("key-{}", n % 500)),
        };
        (from..from + 3000).map(draft).collect()
    };
    let relay = scene.ready_relay().await;
    for round in 0..soak(3, 30) {
        scene.write(&batch(round * 9000)).await;
        scene.queues.reaches("other", 1).await;
        scene.queues.delete_exchange("live").await;
        scene.write(&batch(round * 9000 + 3000)).await;
        good_rows_sent(&scene).await;
        scene.queues.exchange("live").await;
        scene.queues.bind("other", "live", "#").await;
        scene.write(&batch(round * 9000 + 6000)).await;
        scene.drained().await;
        let letters = scene.collect("other").await;
        at_most_twice(&letters, &relay.output());
    }
    let said = relay.output();
    relay.stop().await;
    let letters = scene.collect(QUEUE).await;
    at_most_twice(&letters, &said);
    scene.ledger.report().assert_clean();
    assert_eq!(scene.quarantined().await, 0);
}

/// F8.
#[tokio::test]
async fn a_full_queue_is_asked_seldom_and_stops_nobody() {
    let mut scene = impatient().await;
    scene.set("RETRY__INITIAL", "500ms");
    scene.set("RETRY__MAX_DELAY", "2s");
    scene.queues.limited("full", 5).await;
    let drafts: Vec<Draft> = (0..200)
        .map(|n| Draft::to("full").of(format!("full-{}", n % 50)))
        .collect();
    scene.write(&drafts).await;
    let relay = scene.ready_relay().await;
    scene
        .until("SELECT EXISTS (SELECT FROM outbox.message WHERE last_error LIKE '%nack%')")
        .await;
    // What was on its way when the first refusal came back is no knock.
    let nacks_before = nacks_at_rest(&relay).await;
    let full = Instant::now();
    while full.elapsed() < soak(Duration::from_secs(6), Duration::from_secs(60)) {
        scene.flows(Draft::to(QUEUE).of("quick")).await;
    }
    let knocks = nacks(&relay).await - nacks_before;
    let allowed = full.elapsed().as_secs_f64() / 0.5 * 1.3 + 2.0;
    assert!(
        knocks as f64 <= allowed,
        "{knocks} knocks in {:?}",
        full.elapsed()
    );
    // Drained, it takes everything, however often it fills up again meanwhile.
    let mut taken = Vec::new();
    while scene.count("sent_at IS NULL").await > 0 {
        taken.extend(scene.queues.take_ready("full").await);
    }
    relay.stop().await;
    taken.extend(scene.queues.take_ready("full").await);
    for letter in &taken {
        scene.ledger.delivered(&letter.message_id);
    }
    assert_eq!(taken.len(), 200, "a refused message is in no queue");
    assert_eq!(
        (scene.quarantined().await, scene.count("attempts > 0").await),
        (0, 0)
    );
    scene.judge().await;
}

/// RabbitMQ 3.10 to 3.13 do not tell the channels that they refused (issue 12206).
#[tokio::test]
async fn a_queue_whose_limit_is_taken_away_takes_rows_again() {
    let scene = impatient().await;
    scene.queues.quorum("full").await;
    let rabbit = rabbit::shared().await;
    rabbit.limit(&scene.vhost.name, "full", 1).await;
    let drafts: Vec<Draft> = (0..200).map(|_| Draft::to("full")).collect();
    let relay = scene.ready_relay().await;
    // A queue that is filled at once takes some more before it refuses.
    while nacks(&relay).await == 0 {
        scene.write(&drafts).await;
    }
    scene.flows(Draft::to(QUEUE)).await;
    rabbit.take_limit_away(&scene.vhost.name).await;
    scene.drained().await;
    relay.stop().await;
    scene.collect("full").await;
    assert_eq!(scene.quarantined().await, 0);
    assert_eq!(scene.judge().await.duplicates, 0);
}

/// Publications that a queue refused so far.
async fn metrics(relay: &Relay) -> String {
    let (code, page) = relay.get("/metrics").await.expect("a page");
    assert_eq!(code, 200);
    page
}

/// Messages that were refused so far, as soon as none is under way.
async fn nacks_at_rest(relay: &Relay) -> u64 {
    let rest = async {
        loop {
            let page = metrics(relay).await;
            if page.lines().any(|line| line == "outbox_relay_in_flight 0") {
                break nacked(&page);
            }
            // A page tells what is under way when it is asked for.
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, rest).await.expect("a moment of rest")
}

async fn nacks(relay: &Relay) -> u64 {
    nacked(&metrics(relay).await)
}

fn nacked(page: &str) -> u64 {
    let nacked = |line: &&str| {
        line.starts_with("outbox_relay_publishes_total{") && line.contains("outcome=\"nacked\"")
    };
    let value = |line: &str| line.rsplit(' ').next()?.parse::<u64>().ok();
    page.lines().filter(nacked).filter_map(value).sum()
}

/// A user who may publish, as far as an administrator lets him.
struct Publisher {
    user: String,
    vhost: String,
}

impl Publisher {
    async fn of(scene: &mut Scene) -> Self {
        let user = rabbit::unique("publisher").replace('-', "_");
        rabbit::shared().await.add_user(&user, "secret").await;
        let vhost = scene.vhost.name.clone();
        let port = port(&scene.vhost.url);
        let url = format!("amqp://{user}:secret@127.0.0.1:{port}/{vhost}");
        scene.set("BROKER__URL", &url);
        Self { user, vhost }
    }

    /// No right to configure, none to read, and to write to these exchanges only (F11).
    async fn may_write(&self, exchanges: &str) {
        let rights = ["^$", exchanges, "^$"];
        let broker = rabbit::shared().await;
        broker
            .set_permissions(&self.user, &self.vhost, rights)
            .await;
    }
}

/// F10.
#[tokio::test]
async fn a_permission_revoked_for_a_while_stops_nobody_and_costs_nothing() {
    let mut scene = impatient().await;
    let publisher = Publisher::of(&mut scene).await;
    publisher.may_write("^(orders|amq.default)$").await;
    scene.queues.exchange("orders").await;
    scene.queues.classic("orders").await;
    scene.queues.bind("orders", "orders", "#").await;
    let relay = scene.ready_relay().await;
    let order = |number: usize| Draft::by("orders", "x").of(format!("o-{}", number % 20));
    scene.write(&[order(0), Draft::to(QUEUE)]).await;
    scene.drained().await;
    publisher.may_write("^amq.default$").await;
    // RabbitMQ's channels remember for a while what they were allowed.
    let (revoked, mut number) = (Instant::now(), 1);
    while scene
        .count("sent_at IS NULL AND last_error LIKE '%403%set_permissions%'")
        .await
        == 0
    {
        assert!(revoked.elapsed() < 2 * PATIENCE, "never refused");
        scene.write(&[order(number)]).await;
        scene.flows(Draft::to(QUEUE)).await;
        // They forget it when they hibernate, ever later on a busy broker, of which nothing tells.
        sleep(Duration::from_secs(number.min(12) as u64)).await;
        number += 1;
    }
    let (refused, lines) = (Instant::now(), relay.output().len());
    while refused.elapsed() < soak(Duration::from_secs(5), Duration::from_secs(30)) {
        scene.write(&[order(number)]).await;
        scene.flows(Draft::to(QUEUE)).await;
        number += 1;
    }
    let said = relay.output().len() - lines;
    assert!(said < 20, "{said} lines:\n{}", relay.output().join("\n"));
    publisher.may_write("^(orders|amq.default)$").await;
    scene.drained().await;
    let said = relay.output();
    relay.stop().await;
    assert_eq!(scene.quarantined().await, 0);
    assert_eq!(scene.count("attempts > 0").await, 0);
    let letters = scene.collect("orders").await;
    at_most_twice(&letters, &said);
    scene.judge().await;
}

/// A topic that the user may not write to is refused by its routing key: others of the exchange
/// go their way.
#[tokio::test]
async fn a_forbidden_topic_stops_no_other_topic_of_its_exchange() {
    let mut scene = impatient().await;
    let publisher = Publisher::of(&mut scene).await;
    publisher.may_write("^(orders|amq.default)$").await;
    let (user, vhost) = (&publisher.user, &publisher.vhost);
    let allow = format!(
        "rabbit_auth_backend_internal:set_topic_permissions(<<\"{user}\">>, <<\"{vhost}\">>, \
         <<\"orders\">>, <<\"^open\">>, <<\"^$\">>, <<\"test\">>)"
    );
    rabbit::shared().await.eval(&allow).await;
    scene.queues.exchange("orders").await;
    scene.queues.bind(QUEUE, "orders", "#").await;
    let relay = scene.ready_relay().await;
    let closed = scene.write(&[Draft::by("orders", "closed").of("c")]).await[0];
    let refused = "last_error LIKE '%403%topic%set_topic_permissions%' AND attempts = 0";
    scene
        .until(&format!(
            "SELECT EXISTS (SELECT FROM outbox.message WHERE {refused})"
        ))
        .await;
    for number in 0..20 {
        let draft = Draft::by("orders", "open").of(format!("o-{number}"));
        scene.flows(draft).await;
    }
    assert_eq!(
        scene.count(&format!("id = {closed} AND {refused}")).await,
        1
    );
    relay.stop().await;
}

/// An exchange that takes messages from other exchanges only.
#[tokio::test]
async fn an_internal_exchange_keeps_its_own_rows_waiting_and_stops_nobody() {
    let scene = impatient().await;
    scene.queues.internal_exchange("inner").await;
    let relay = scene.ready_relay().await;
    scene.write(&[Draft::by("inner", "x").of("i")]).await;
    let refused = "last_error LIKE '%403%internal exchange%; correct the row' AND attempts = 0";
    scene
        .until(&format!(
            "SELECT EXISTS (SELECT FROM outbox.message WHERE {refused})"
        ))
        .await;
    for _ in 0..20 {
        scene.flows(Draft::to(QUEUE)).await;
    }
    let said = relay.output();
    relay.stop().await;
    assert_eq!(scene.count("sent_at IS NULL").await, 1);
    let letters = scene.collect(QUEUE).await;
    at_most_twice(&letters, &said);
}
