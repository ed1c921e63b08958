//! A reader at rest: woken by a commit and by a nudge, and by itself when its rest is over.

use std::sync::Arc;
use std::time::Duration;

use outbox_relay::relay::rules::ReadRequest;
use outbox_relay::store::Reader;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::{Stage, ids, position, read, reader, since, suite};
use crate::support::PATIENCE;

suite!(
    a_commit_ends_the_rest,
    a_nudge_ends_the_rest,
    a_rest_ends_by_itself,
    a_reader_that_is_put_to_rest_again_and_again_misses_no_commit,
);

/// Longer than any test takes: only a signal ends it.
const FOR_EVER: Duration = Duration::from_secs(3600);

async fn a_commit_ends_the_rest<S: Stage>(stage: &S) {
    let mut reader = reader(stage).await;
    let mut at = position(&mut reader).await;
    for _ in 0..3 {
        let request = ReadRequest {
            rest: Some(FOR_EVER),
            ..since(&at)
        };
        let (reading, rows) = tokio::join!(resting(&mut reader, &request), stage.commit_small(1));
        assert_eq!(ids(&reading.news), rows);
        at = reading.position;
    }
}

async fn a_nudge_ends_the_rest<S: Stage>(stage: &S) {
    let mut reader = reader(stage).await;
    let at = position(&mut reader).await;
    let nudge = Arc::new(Notify::new());
    // Several reads, because the first ones may not sleep yet.
    for _ in 0..20 {
        let request = ReadRequest {
            rest: Some(FOR_EVER),
            ..since(&at)
        };
        nudge.notify_one();
        let reading = timeout(PATIENCE, reader.read(&request, &nudge)).await;
        assert!(
            reading
                .expect("in time")
                .expect("a reading")
                .news
                .is_empty()
        );
    }
}

async fn a_rest_ends_by_itself<S: Stage>(stage: &S) {
    let mut reader = reader(stage).await;
    let at = position(&mut reader).await;
    let rest = Duration::from_millis(50);
    let start = Instant::now();
    // Falls asleep in steps; every step is at most so long.
    for _ in 0..20 {
        let request = ReadRequest {
            rest: Some(rest),
            ..since(&at)
        };
        read(&mut reader, &request).await;
    }
    assert!(start.elapsed() >= rest, "it rested at all");
}

async fn a_reader_that_is_put_to_rest_again_and_again_misses_no_commit<S: Stage>(stage: &S) {
    let mut reader = reader(stage).await;
    let mut at = position(&mut reader).await;
    let writing = async {
        for _ in 0..50 {
            stage.commit_small(1).await;
        }
    };
    let reading = async {
        let mut seen = 0;
        while seen < 50 {
            let request = ReadRequest {
                rest: Some(FOR_EVER),
                ..since(&at)
            };
            let reading = resting(&mut reader, &request).await;
            seen += reading.news.len();
            at = reading.position;
        }
        seen
    };
    let ((), seen) = tokio::join!(writing, reading);
    assert_eq!(seen, 50);
}

/// Rests until there is news, however often it has to be put to rest for that.
async fn resting<R: Reader>(
    reader: &mut R,
    request: &ReadRequest,
) -> outbox_relay::relay::rules::Reading {
    let nudge = Arc::new(Notify::new());
    let looking = async {
        loop {
            let reading = reader.read(request, &nudge).await.expect("a reading");
            if !reading.news.is_empty() {
                return reading;
            }
        }
    };
    timeout(PATIENCE, looking).await.expect("woken in time")
}
