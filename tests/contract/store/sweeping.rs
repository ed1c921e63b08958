//! Removal of sent rows: what is swept, what is not, and in how large pieces.

use std::time::Duration;

use outbox_relay::message::RowId;
use outbox_relay::relay::rules::{SWEEP_ROWS, Stretch, Swept};
use outbox_relay::store::Settler;

use super::settling::sent;
use super::{Stage, settler, suite};

suite!(
    what_was_sent_long_ago_is_removed_and_nothing_else,
    what_was_sent_lately_stays_and_is_told,
    a_stretch_bounds_what_is_looked_at,
    a_locked_row_is_left_for_later,
    one_sweep_looks_at_so_many_rows_and_tells_where_it_ended,
);

const LONG: Duration = Duration::from_secs(3600);

/// Everything that was ever sent is old.
const ALL: Stretch = Stretch {
    after: 0,
    up_to: i64::MAX,
    retention: Duration::ZERO,
};

/// Commits so many rows, of which these are marked as sent.
async fn rows<S: Stage>(
    stage: &S,
    count: usize,
    marked: impl Iterator<Item = usize>,
) -> Vec<RowId> {
    let ids = stage.commit_small(count).await;
    let mut batch = Vec::new();
    for (ticket, place) in marked.enumerate() {
        batch.push(sent(ids[place], ticket as u64).await);
    }
    let report = settler(stage).await.settle(&batch).await.expect("settled");
    assert_eq!(report.written.len(), batch.len());
    ids
}

async fn left<S: Stage>(stage: &S, ids: &[RowId]) -> Vec<usize> {
    let mut left = Vec::new();
    for (place, id) in ids.iter().enumerate() {
        if stage.stored(*id).await.is_some() {
            left.push(place);
        }
    }
    left
}

async fn what_was_sent_long_ago_is_removed_and_nothing_else<S: Stage>(stage: &S) {
    let ids = rows(stage, 6, [0, 2, 4].into_iter()).await;
    let swept = settler(stage).await.sweep(ALL, &[]).await.expect("swept");
    let expected = Swept {
        looked: 6,
        last: Some(ids[5].0),
        removed: 3,
        held: 0,
        kept: Vec::new(),
        young: false,
        top: ids[5].0,
    };
    assert_eq!(swept, expected);
    assert_eq!(left(stage, &ids).await, [1, 3, 5]);
}

async fn what_was_sent_lately_stays_and_is_told<S: Stage>(stage: &S) {
    let ids = rows(stage, 3, [1].into_iter()).await;
    let stretch = Stretch {
        retention: LONG,
        ..ALL
    };
    let swept = settler(stage)
        .await
        .sweep(stretch, &[])
        .await
        .expect("swept");
    assert_eq!((swept.removed, swept.young), (0, true));
    assert_eq!(left(stage, &ids).await, [0, 1, 2]);
}

async fn a_stretch_bounds_what_is_looked_at<S: Stage>(stage: &S) {
    let ids = rows(stage, 5, 0..5).await;
    let stretch = Stretch {
        after: ids[0].0,
        up_to: ids[2].0,
        ..ALL
    };
    let swept = settler(stage)
        .await
        .sweep(stretch, &[])
        .await
        .expect("swept");
    assert_eq!((swept.looked, swept.last), (2, Some(ids[2].0)));
    assert_eq!(left(stage, &ids).await, [0, 3, 4]);
}

async fn a_locked_row_is_left_for_later<S: Stage>(stage: &S) {
    let ids = rows(stage, 3, 0..3).await;
    let lock = stage.lock(ids[1]).await;
    let mut settler = settler(stage).await;
    let swept = settler.sweep(ALL, &[]).await.expect("no wait");
    assert_eq!((swept.looked, swept.removed, swept.held), (3, 2, 1));
    stage.unlock(lock).await;
    let swept = settler.sweep(ALL, &[]).await.expect("swept");
    assert_eq!((swept.looked, swept.removed, swept.held), (1, 1, 0));
    assert!(left(stage, &ids).await.is_empty());
}

async fn one_sweep_looks_at_so_many_rows_and_tells_where_it_ended<S: Stage>(stage: &S) {
    let mut transaction = stage.begin().await;
    let mut ids = Vec::new();
    for _ in 0..SWEEP_ROWS + 5 {
        ids.push(stage.insert(&mut transaction, super::New::small()).await);
    }
    stage.commit(transaction).await;
    let swept = settler(stage).await.sweep(ALL, &[]).await.expect("swept");
    let last = Some(ids[SWEEP_ROWS - 1].0);
    assert_eq!((swept.looked, swept.last), (SWEEP_ROWS, last));
}
