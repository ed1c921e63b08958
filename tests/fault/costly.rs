//! Rows over which the broker ends the whole connection, with everything that is under way on it.

use std::collections::BTreeMap;

use crate::support::postgres::database;
use crate::support::rabbit::Rabbit;
use crate::support::scene::{Draft, QUEUE, Scene, eventually};

const FRAIL: &str = "frail";

/// Of those that the broker can route.
const OTHERS_SENT: &str = "SELECT NOT EXISTS (SELECT FROM outbox.message
                           WHERE sent_at IS NULL AND headers IS NULL)";

/// A broker with an exchange that fails over a header with a list, and the scene's queue behind it.
async fn frail(rabbit: &Rabbit) -> Scene {
    rabbit.enable("rabbitmq_jms_topic_exchange").await;
    let database = database().await;
    let mut scene = Scene::on(database.url.clone(), rabbit.create_vhost().await).await;
    scene.keep(database);
    scene.queues.frail_exchange(FRAIL, QUEUE, "k").await;
    scene.set("RETRY__INITIAL", "500ms");
    scene.set("RETRY__MAX_DELAY", "2s");
    scene
}

/// Rows to the exchange that the broker cannot route.
async fn write_costly(scene: &Scene, rows: usize) {
    let insert = format!(
        "INSERT INTO outbox.message (exchange, routing_key, ordering_key, payload, headers)
         SELECT '{FRAIL}', 'k', 'costly-' || n, '{{}}', '{{\"list\": [1]}}'
         FROM generate_series(1, {rows}) AS n"
    );
    scene.run(&insert).await;
}

/// Waits until there is no connection but the relay's one and the scene's.
async fn one_connection_is_left(rabbit: &Rabbit) {
    let ours = async || rabbit.connections().await == 2;
    eventually("the relay has one connection", ours).await;
}

/// Every row that was sent arrived, and none more than twice: one connection was lost.
async fn arrived(scene: &Scene) -> BTreeMap<i64, usize> {
    let mut times = BTreeMap::new();
    for letter in scene.collect(QUEUE).await {
        *times.entry(letter.id).or_default() += 1;
    }
    let sent = scene.count("sent_at IS NOT NULL").await;
    assert_eq!(i64::try_from(times.len()).expect("few"), sent);
    let most = times.values().max();
    assert!(most <= Some(&2), "{times:?}");
    times
}

/// P4, P6, P8: it costs a connection once, and each further attempt nobody but itself.
#[tokio::test]
async fn a_row_that_ends_the_connection_is_quarantined_and_costs_the_others_one() {
    let rabbit = Rabbit::start().await;
    let mut scene = frail(&rabbit).await;
    scene.set("RETRY__MAX_ATTEMPTS", "4");
    scene.write_many(500, 100).await;
    write_costly(&scene, 1).await;
    let costly: i64 = scene.ask("SELECT max(id) FROM outbox.message").await;
    let behind = [
        Draft::to(QUEUE).of("costly-1"),
        Draft::by(FRAIL, "k").of("another"),
    ];
    let behind = scene.write(&behind).await;
    scene.write_many(500, 100).await;
    let relay = scene.ready_relay().await;
    while scene.count(&format!("id = {costly}")).await > 0 {
        scene.flows(Draft::to(QUEUE)).await;
        scene.flows(Draft::by(FRAIL, "k")).await;
    }
    scene.drained().await;
    let reason: String = scene
        .ask("SELECT concat_ws(' ', reason_class, attempts, reason) FROM outbox.quarantine")
        .await;
    for said in ["refused 4", "541", "connection"] {
        assert!(reason.contains(said), "{said} is not in: {reason}");
    }
    one_connection_is_left(&rabbit).await;
    relay.stop().await;
    let times = arrived(&scene).await;
    assert!(!times.contains_key(&costly));
    assert!(behind.iter().all(|id| times.contains_key(id)));
}

/// P6, P7: where every row ends the connection, it may be the destination's fault. One knocks, on a
/// connection of its own; when it is mended all go.
#[tokio::test]
async fn a_destination_that_ends_connections_stops_nobody_and_loses_no_row() {
    let rabbit = Rabbit::start().await;
    let scene = frail(&rabbit).await;
    scene.write_many(200, 100).await;
    write_costly(&scene, 100).await;
    scene.write_many(200, 100).await;
    let relay = scene.ready_relay().await;
    while scene.count("attempts > 0").await < 3 {
        scene.flows(Draft::to(QUEUE)).await;
    }
    scene.until(OTHERS_SENT).await;
    assert_eq!(scene.quarantined().await, 0);
    assert_eq!(scene.count("attempts > 3").await, 0, "they take turns");
    let waiting = scene.count("sent_at IS NULL").await;
    assert_eq!(waiting, 100);
    scene.queues.delete_exchange(FRAIL).await;
    scene.queues.exchange(FRAIL).await;
    scene.queues.bind(QUEUE, FRAIL, "k").await;
    scene.drained().await;
    relay.stop().await;
    assert_eq!(scene.quarantined().await, 0);
    assert!(arrived(&scene).await.len() >= 500);
}

/// P7: a broker that fails over everything is an outage, and nobody is charged for it.
#[tokio::test]
async fn where_nothing_can_be_sent_no_row_is_charged_for_an_ended_connection() {
    let rabbit = Rabbit::start().await;
    let scene = frail(&rabbit).await;
    write_costly(&scene, 20).await;
    let relay = scene.ready_relay().await;
    let tried = "SELECT count(*) >= 3 FROM outbox.message WHERE last_error LIKE '%541%'";
    scene.until(tried).await;
    assert_eq!(scene.count("attempts > 0").await, 0);
    assert_eq!(scene.quarantined().await, 0);
    scene.queues.delete_exchange(FRAIL).await;
    scene.queues.exchange(FRAIL).await;
    scene.queues.bind(QUEUE, FRAIL, "k").await;
    scene.drained().await;
    relay.stop().await;
    assert_eq!(arrived(&scene).await.len(), 20);
}

/// A user who may have one connection: what may have ended it waits, and is not said to be on its way.
#[tokio::test]
async fn where_no_second_connection_is_allowed_what_waits_for_it_says_so() {
    let rabbit = Rabbit::start().await;
    let scene = frail(&rabbit).await;
    write_costly(&scene, 1).await;
    scene.write(&[Draft::by(FRAIL, "k").of("fine")]).await;
    let limit = |most: i32| format!("{{\"max-connections\": {most}}}");
    // The scene has one itself.
    rabbit.ctl(&["set_user_limits", "guest", &limit(2)]).await;
    let relay = scene.ready_relay().await;
    let told = "SELECT coalesce(bool_or(held_back::text LIKE '%cannot be made%limit%'), false)
                FROM outbox.instance";
    scene.until(told).await;
    scene.flows(Draft::to(QUEUE)).await;
    let relays: String = scene
        .ask("SELECT held_back->0->>'exchange' FROM outbox.instance")
        .await;
    assert_eq!(relays, FRAIL);
    rabbit.ctl(&["set_user_limits", "guest", &limit(-1)]).await;
    scene.until(OTHERS_SENT).await;
    relay.stop().await;
    assert_eq!(arrived(&scene).await.len(), 2);
}

/// P6: those that can be sent do not wait until those that end connections are given up.
#[tokio::test]
async fn rows_of_a_destination_do_not_wait_for_those_before_them_that_end_connections() {
    let rabbit = Rabbit::start().await;
    let scene = frail(&rabbit).await;
    write_costly(&scene, 8).await;
    let fine: Vec<Draft> = (0..50)
        .map(|n| Draft::by(FRAIL, "k").of(format!("key-{n}")))
        .collect();
    scene.write(&fine).await;
    let relay = scene.ready_relay().await;
    scene.until(OTHERS_SENT).await;
    assert_eq!(scene.count("sent_at IS NULL").await, 8);
    assert_eq!(scene.quarantined().await, 0);
    relay.stop().await;
    assert_eq!(arrived(&scene).await.len(), 50);
}
