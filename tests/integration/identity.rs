//! P3: a message is the same on every attempt, over restarts and repetitions.

use std::collections::HashMap;

use crate::support::proxy::{Fault, Proxy, Way};
use crate::support::queues::Letter;
use crate::support::scene::{QUEUE, Scene, port, through};

#[tokio::test]
async fn a_repeated_message_is_the_same_message() {
    let mut scene = Scene::new().await;
    let proxy = Proxy::start(port(&scene.vhost.url)).await;
    let url = through(&scene.vhost.url, &proxy);
    scene.set("BROKER__URL", &url);
    let mut relay = scene.ready_relay().await;
    proxy.set_way(Way::ToClient, Fault::Stall);
    scene
        .run(
            "INSERT INTO outbox.message (message_id, routing_key, ordering_key, payload, headers, type)
             SELECT 'invoice:' || n || ':send', 'q', 'k' || n, json_build_object('n', n),
               '{\"a\": [1, 2.5, true, null]}', 'invoice'
             FROM generate_series(1, 100) AS n",
        )
        .await;
    // Published, but the relay never hears of it.
    scene.queues.reaches(QUEUE, 100).await;
    relay.kill();
    proxy.reset_all();
    proxy.set(Fault::None);
    scene.run_until_empty().await;
    // Sent once more by hand.
    scene
        .run("UPDATE outbox.message SET sent_at = NULL, xid = pg_current_xact_id()")
        .await;
    scene.run_until_empty().await;
    let letters = scene.queues.take_all(QUEUE).await;
    assert_eq!(letters.len(), 300);
    let mut first: HashMap<i64, &Letter> = HashMap::new();
    for letter in &letters {
        let before = first.entry(letter.id).or_insert(letter);
        assert_eq!(*before, letter);
        let n = letter.message_id.split(':').nth(1).expect("our own id");
        assert_eq!(letter.key.as_deref(), Some(format!("k{n}").as_str()));
        assert_eq!(letter.body, format!("{{\"n\" : {n}}}").as_bytes());
    }
    assert_eq!(first.len(), 100);
}

/// W3C Trace Context: what the writer put into `headers` arrives as it is, on every attempt.
#[tokio::test]
async fn a_trace_goes_on_behind_the_outbox() {
    let scene = Scene::new().await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let row = format!(
        "INSERT INTO outbox.message (routing_key, payload, headers)
         VALUES ('q', '1', jsonb_build_object('traceparent', '{trace}', 'tracestate', 'shop=1'))"
    );
    scene.run(&row).await;
    scene.run_until_empty().await;
    scene
        .run("UPDATE outbox.message SET sent_at = NULL, xid = pg_current_xact_id()")
        .await;
    scene.run_until_empty().await;
    let letters = scene.queues.take_all(QUEUE).await;
    let traces = letters.iter().map(|letter| letter.traceparent.as_deref());
    assert_eq!(traces.collect::<Vec<_>>(), [Some(trace); 2]);
}
