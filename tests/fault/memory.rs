//! Bodies of very many times the memory budget.

use crate::soak;
use crate::support::scene::{QUEUE, Scene};

const MIB: u64 = 1 << 20;

/// F47: rows of 10 MB with a budget of 64 MiB. `storage` is the column's TOAST strategy.
async fn pass_within_the_budget(storage: &str, payload: &str) {
    let mut scene = Scene::new().await;
    scene.set("RELAY__MAX_BUFFERED_BYTES", "64MiB");
    let rows = soak(30, 200);
    scene
        .run(&format!(
            "ALTER TABLE outbox.message ALTER COLUMN payload SET STORAGE {storage};
             INSERT INTO outbox.message (routing_key, ordering_key, payload)
             SELECT 'q', 'k' || n, {payload} FROM generate_series(1, {rows}) AS n"
        ))
        .await;
    let relay = scene.ready_relay().await;
    let mut taken = 0;
    while taken < rows {
        // A broker that holds it all is another test.
        let letters = scene.queues.take_ready(QUEUE).await;
        assert!(letters.iter().all(|letter| letter.body.len() > 9_999_999));
        taken += i64::try_from(letters.len()).expect("few");
    }
    scene.drained().await;
    let most = relay.peak();
    eprintln!(
        "{rows} rows, {storage}: at most {} KiB resident",
        most >> 10
    );
    assert!(most <= (64 + 40) * MIB, "{most} bytes");
    relay.stop().await;
    assert_eq!(taken, rows);
}

#[tokio::test]
async fn large_bodies_that_compress_pass_within_the_budget() {
    pass_within_the_budget("EXTENDED", "to_json(repeat('x', 10000000))").await;
}

#[tokio::test]
async fn large_bodies_that_do_not_compress_pass_within_the_budget() {
    let body =
        "(SELECT to_json(string_agg(md5(g::text || n), '')) FROM generate_series(1, 312500) AS g)";
    pass_within_the_budget("EXTERNAL", body).await;
}
