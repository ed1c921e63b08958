//! The Rust consumer when all servers are well.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use outbox_relay::inbox::{Ended, Failure, Settings};
use serde_json::json;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::timeout;

use crate::entries::{ask, entry, number, state};
use crate::support::PATIENCE;
use crate::world::{Counts, World, result};

#[tokio::test(flavor = "multi_thread")]
async fn every_message_has_one_effect_however_often_it_is_published() {
    let world = World::new().await;
    for round in 0..3 {
        for number in 0..40 {
            let key = format!("k{}", number % 7);
            world
                .publish(&format!("m{number}"), (round != 1).then_some(key.as_str()))
                .await;
        }
    }
    let consumer = world.transactional(world.settings(), async |message| Ok(result(&message)));
    world.are("done", 40).await;
    let (counts, seen) = (Arc::clone(&consumer.counts), &consumer.counts.duplicates);
    // Copies that met a running first one were conflicts, or waited for their turn.
    counts.reaches(seen, 1).await;
    assert_eq!(consumer.stop().await, Ended::Drained);
    assert_eq!(world.effects().await, 40);
    assert_eq!(Counts::get(&counts.completed), 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn effect_and_result_are_rolled_back_together() {
    let world = World::new().await;
    world.publish("m", None).await;
    let consumer = world.transactional(world.settings(), async |message| match message.attempt {
        1 => Err(Failure::temporary("not yet")),
        2 => panic!("a handler may panic"),
        _ => Ok(result(&message)),
    });
    world.are("done", 1).await;
    consumer.stop().await;
    assert_eq!(world.effects().await, 1);
    let entry = entry(&world.client, "m").await;
    assert_eq!(entry["result"], json!({"attempt": 3, "taken_over": false}));
    world.invariants(1).await;
}

/// F65, the handler that always fails.
#[tokio::test(flavor = "multi_thread")]
async fn an_always_failing_handler_runs_max_attempts_times_and_its_message_is_dead_once() {
    let world = World::new().await;
    for id in ["m", "m", "last"] {
        world.publish(id, None).await;
    }
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let consumer = world.leased(world.settings(), move |message| {
        let fails = message.message_id == "m";
        counted.fetch_add(usize::from(fails), Ordering::SeqCst);
        async move {
            match fails {
                true => Err(Failure::temporary(format!(
                    "attempt {} failed",
                    message.attempt
                ))),
                false => Ok(None),
            }
        }
    });
    world.are("done", 1).await;
    world.are("dead", 1).await;
    assert_eq!(consumer.stop().await, Ended::Drained);
    assert_eq!(runs.load(Ordering::SeqCst), 3);
    let entry = entry(&world.client, "m").await;
    assert_eq!(
        (&entry["attempt"], &entry["reason"]),
        (&json!(3), &json!("attempt 3 failed"))
    );
    assert_eq!(entry["reason_class"], "attempts_exhausted");
    assert_eq!(
        number(
            &world.client,
            "SELECT count(*) FROM inbox.message WHERE message_id = 'm' AND first_failed_at < done_at"
        )
        .await,
        1
    );
    world.invariants(2).await;
}

/// F64, with a shorter time.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_not_tried_again_before_retry_after() {
    let world = World::new().await;
    world.publish("m", None).await;
    let consumer = world.leased(world.settings(), async |message| match message.attempt {
        1 => Err(Failure::retry_after(
            Duration::from_secs(3),
            "429 Too Many Requests",
        )),
        _ => Ok(result(&message)),
    });
    world.are("done", 1).await;
    let waited = "SELECT extract(epoch FROM done_at - first_failed_at)::float8 FROM inbox.message";
    let waited: f64 = ask(&world.client, waited, &[]).await[0].get(0);
    assert!((3.0..6.0).contains(&waited), "{waited}");
    assert_eq!(consumer.stop().await, Ended::Drained);
    world.invariants(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permanent_failure_is_dead_after_one_run() {
    let world = World::new().await;
    world.publish("m", None).await;
    let consumer = world.leased(world.settings(), async |_| {
        Err(Failure::permanent("no such account"))
    });
    world.are("dead", 1).await;
    consumer.stop().await;
    let entry = entry(&world.client, "m").await;
    assert_eq!(
        (&entry["attempt"], &entry["reason_class"]),
        (&json!(1), &json!("permanent"))
    );
    world.invariants(1).await;
}

/// F66.
#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_envelope_is_dead_once_and_never_bounces() {
    let world = World::new().await;
    let mut list = FieldTable::default();
    list.insert("x-outbox-key".into(), AMQPValue::Boolean(true));
    for _ in 0..2 {
        world
            .publish_with(BasicProperties::default(), b"no identity")
            .await;
        let properties = BasicProperties::default().with_message_id("m".into());
        world
            .publish_with(properties.with_headers(list.clone()), b"no key")
            .await;
    }
    // Behind it nothing is left.
    world.publish("last", None).await;
    let consumer = world.leased(world.settings(), async |message| {
        assert_eq!(message.message_id, "last", "nothing else can be worked on");
        Ok(None)
    });
    world.are("done", 1).await;
    world.are("dead", 2).await;
    let counts = Arc::clone(&consumer.counts);
    consumer.stop().await;
    assert_eq!(Counts::get(&counts.handled), 1);
    assert_eq!(Counts::get(&counts.redelivered), 0);
    let kept = "SELECT count(*) FROM inbox.message WHERE reason_class = 'malformed' AND payload IS NOT NULL \
                AND (message_id = 'm' AND reason LIKE '%x-outbox-key%' \
                     OR message_id LIKE 'invalid:%' AND reason LIKE '%message-id%')";
    assert_eq!(number(&world.client, kept).await, 2);
    world.invariants(3).await;
}

/// F70, with shorter times.
#[tokio::test(flavor = "multi_thread")]
async fn a_retried_message_holds_back_its_own_key_only() {
    let world = World::new().await;
    for (id, key) in [("a", "k"), ("b", "k"), ("c", "k"), ("x", "l"), ("y", "l")] {
        world.publish(id, Some(key)).await;
    }
    let (tell, mut told) = mpsc::unbounded_channel();
    let consumer = world.leased(world.settings(), move |message| {
        let tell = tell.clone();
        async move {
            tell.send(format!("{}{}", message.message_id, message.attempt))
                .expect("heard");
            match (message.message_id.as_str(), message.attempt) {
                ("a", 1) => Err(Failure::retry_after(Duration::from_secs(2), "later")),
                _ => Ok(None),
            }
        }
    });
    world.are("done", 5).await;
    assert_eq!(consumer.stop().await, Ended::Drained);
    let mut order = Vec::new();
    while let Ok(run) = told.try_recv() {
        order.push(run);
    }
    let of = |run: &str| order.iter().position(|one| one == run).expect(run);
    assert!(
        of("x1") < of("y1") && of("y1") < of("a2"),
        "other keys undelayed: {order:?}"
    );
    assert!(of("a2") < of("b1") && of("b1") < of("c1"), "{order:?}");
    world.invariants(5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hot_key_is_worked_off_in_order_without_waiting_for_the_next_poll() {
    const MESSAGES: usize = 60;
    let world = World::new().await;
    for number in 0..MESSAGES {
        world.publish(&format!("m{number:03}"), Some("hot")).await;
    }
    let settings = world.settings();
    let start = std::sync::Mutex::new(Vec::new());
    let order = Arc::new(start);
    let seen = Arc::clone(&order);
    let consumer = world.leased(settings, move |message| {
        seen.lock().expect("no panic").push(message.message_id);
        async { Ok(None) }
    });
    let all = world.are("done", i64::try_from(MESSAGES).expect("few"));
    // One for each poll would take a minute.
    timeout(Duration::from_secs(30), all)
        .await
        .expect("woken at each end");
    consumer.stop().await;
    let order = order.lock().expect("no panic");
    assert!(order.is_sorted() && order.len() == MESSAGES, "{order:?}");
}

/// F63.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_message_at_two_consumers_has_one_result_and_blocks_neither() {
    let world = World::new().await;
    let settings = Settings {
        prefetch: 1,
        lease: PATIENCE,
        ..world.settings()
    };
    let (entered, go) = (Arc::new(Semaphore::new(0)), Arc::new(Notify::new()));
    let consume = || {
        let (entered, go) = (Arc::clone(&entered), Arc::clone(&go));
        world.leased(settings.clone(), move |message| {
            let (entered, go) = (Arc::clone(&entered), Arc::clone(&go));
            async move {
                if message.message_id == "twice" {
                    entered.add_permits(1);
                    go.notified().await;
                }
                Ok(result(&message))
            }
        })
    };
    let consumers = [consume(), consume()];
    world.publish("twice", None).await;
    timeout(PATIENCE, entered.acquire())
        .await
        .expect("in time")
        .expect("open")
        .forget();
    world.publish("twice", None).await;
    for number in 0..5 {
        world.publish(&format!("other{number}"), None).await;
    }
    // With a prefetch of one: its slot was freed.
    world.are("done", 5).await;
    assert_eq!(state(&world.client, "twice").await, "processing");
    assert_eq!(entered.available_permits(), 0, "its handler ran once");
    go.notify_one();
    world.are("done", 6).await;
    let mut conflicts = 0;
    for consumer in consumers {
        conflicts += Counts::get(&consumer.counts.conflicts);
        assert_eq!(consumer.stop().await, Ended::Drained);
    }
    assert_eq!(conflicts, 1);
    world.invariants(6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_renewed_for_as_long_as_its_handler_runs() {
    let world = World::new().await;
    world.publish("m", None).await;
    let consumer = world.leased(world.settings(), async |message| {
        // Three leases long.
        tokio::time::sleep(Duration::from_secs(3)).await;
        Ok(result(&message))
    });
    world.are("done", 1).await;
    consumer.stop().await;
    let entry = entry(&world.client, "m").await;
    assert_eq!(entry["result"], json!({"attempt": 1, "taken_over": false}));
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_finishes_what_was_started_and_leaves_the_rest_in_the_queue() {
    let world = World::new().await;
    let settings = Settings {
        concurrency: 2,
        ..world.settings()
    };
    let (entered, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (inside, gate) = (Arc::clone(&entered), Arc::clone(&go));
    let consumer = world.leased(settings, move |_| {
        let (inside, gate) = (Arc::clone(&inside), Arc::clone(&gate));
        async move {
            inside.add_permits(1);
            gate.acquire().await.expect("open").forget();
            Ok(None)
        }
    });
    for number in 0..6 {
        world.publish(&format!("m{number}"), None).await;
    }
    timeout(PATIENCE, entered.acquire_many(2))
        .await
        .expect("in time")
        .expect("open")
        .forget();
    consumer.ask_to_stop();
    go.add_permits(10);
    assert_eq!(consumer.stop().await, Ended::Drained);
    assert_eq!(
        number(
            &world.client,
            "SELECT count(*) FROM inbox.message WHERE state = 'done'"
        )
        .await,
        2
    );
    assert_eq!(
        number(&world.client, "SELECT count(*) FROM inbox.message").await,
        2
    );
    let rest = async { while world.ready().await != 4 {} };
    timeout(PATIENCE, rest)
        .await
        .expect("the rest is in the queue");
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_grace_is_over_work_is_given_back_and_the_next_owner_is_told() {
    let world = World::new().await;
    let settings = Settings {
        shutdown_grace: Duration::from_millis(50),
        lease: PATIENCE,
        ..world.settings()
    };
    world.publish("leased", None).await;
    let entered = Arc::new(Semaphore::new(0));
    let inside = Arc::clone(&entered);
    let stuck = world.leased(settings.clone(), move |_| {
        inside.add_permits(1);
        std::future::pending()
    });
    timeout(PATIENCE, entered.acquire())
        .await
        .expect("in time")
        .expect("open")
        .forget();
    assert_eq!(stuck.stop().await, Ended::GraceOver(1));
    let next = world.leased(settings.clone(), async |message| Ok(result(&message)));
    world.are("done", 1).await;
    next.stop().await;
    let leased = entry(&world.client, "leased").await;
    assert_eq!(leased["result"], json!({"attempt": 2, "taken_over": true}));

    world.publish("transactional", None).await;
    let inside = Arc::clone(&entered);
    let stuck = world.transactional(settings.clone(), move |_| {
        inside.add_permits(1);
        std::future::pending()
    });
    timeout(PATIENCE, entered.acquire())
        .await
        .expect("in time")
        .expect("open")
        .forget();
    assert_eq!(stuck.stop().await, Ended::GraceOver(1));
    let next = world.transactional(settings, async |message| Ok(result(&message)));
    world.are("done", 2).await;
    next.stop().await;
    let transactional = entry(&world.client, "transactional").await;
    assert_eq!(
        transactional["result"],
        json!({"attempt": 1, "taken_over": false}),
        "nothing had happened"
    );
    world.invariants(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_are_started_than_max_rate_allows() {
    let world = World::new().await;
    for number in 0..9 {
        world.publish(&format!("m{number}"), None).await;
    }
    let settings = Settings {
        max_rate: Some(4.0),
        ..world.settings()
    };
    let consumer = world.transactional(settings, async |_| Ok(None));
    world.are("done", 9).await;
    consumer.stop().await;
    let span = "SELECT extract(epoch FROM max(at) - min(at))::float8 FROM effect";
    let span: f64 = ask(&world.client, span, &[]).await[0].get(0);
    assert!(span > 1.8, "nine at four per second took {span} s");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_jsonb_cannot_hold_does_not_undo_the_effect() {
    let world = World::new().await;
    world.publish("m", None).await;
    let consumer = world.leased(world.settings(), async |_| Ok(Some(json!("a\u{0}b"))));
    world.are("done", 1).await;
    consumer.stop().await;
    world.invariants(1).await;
}
