//! A reader at rest: woken by a commit and by a nudge, and by itself when its rest is over.

use std::sync::Arc;
use std::time::Duration;

use outbox_relay::relay::rules::{Position, ReadRequest};
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
    a_reader_asleep_beside_one_that_wakes_late_misses_no_commit,
    a_reader_asleep_beside_one_that_leaves_misses_no_commit,
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

/// The first is woken by a commit and slow to hear of it. Meanwhile the other sent the row, has
/// nothing more to do, and sleeps again: beside a gate that the first is about to leave.
async fn a_reader_asleep_beside_one_that_wakes_late_misses_no_commit<S: Stage>(stage: &S) {
    let (mut slow, mut quick) = (stage.reader_of(1).await, stage.reader_of(2).await);
    let start = position(&mut slow).await;
    fall_asleep(&mut slow, &start).await;
    fall_asleep(&mut quick, &start).await;
    stage.commit_small(1).await;
    let at = resting(&mut quick, &at_rest(&start)).await.position;
    fall_asleep(&mut quick, &at).await;
    resting(&mut slow, &at_rest(&start)).await;
    a_commit_wakes(&mut quick, &at, stage).await;
}

async fn a_reader_asleep_beside_one_that_leaves_misses_no_commit<S: Stage>(stage: &S) {
    let (mut first, mut other) = (stage.reader_of(1).await, stage.reader_of(2).await);
    let at = position(&mut first).await;
    fall_asleep(&mut first, &at).await;
    fall_asleep(&mut other, &at).await;
    first.leave().await.expect("a goodbye");
    a_commit_wakes(&mut other, &at, stage).await;
}

/// Looks, without news, until it sleeps: the first rests are pauses.
async fn fall_asleep<R: Reader>(reader: &mut R, at: &Position) {
    let rest = Some(Duration::from_millis(1));
    for _ in 0..20 {
        let reading = read(reader, &ReadRequest { rest, ..since(at) }).await;
        assert!(reading.news.is_empty());
    }
}

async fn a_commit_wakes<S: Stage>(reader: &mut impl Reader, at: &Position, stage: &S) {
    let request = at_rest(at);
    let (reading, rows) = tokio::join!(resting(reader, &request), stage.commit_small(1));
    assert_eq!(ids(&reading.news), rows);
}

fn at_rest(at: &Position) -> ReadRequest {
    ReadRequest {
        rest: Some(FOR_EVER),
        ..since(at)
    }
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
