//! Rows whose time comes: each is found once, at its time and not before.

use std::collections::BTreeSet;
use std::time::Duration;

use outbox_relay::message::RowId;
use outbox_relay::relay::rules::{PartitionSet, ReadRequest};
use outbox_relay::store::Settler;

use super::settling::retry;
use super::{Due, New, Stage, first, id_set, ids, owner, position, read, reader, since, suite};

suite!(
    a_row_whose_retry_time_came_is_due_once,
    a_row_whose_availability_came_is_due_once,
    a_row_whose_time_has_not_come_is_not_due,
    more_retries_at_one_instant_than_the_limit_all_come,
    more_scheduled_rows_at_one_instant_than_the_limit_all_come,
    both_kinds_come_in_one_read,
    a_row_that_waits_for_both_comes_when_the_later_time_came,
    due_rows_of_other_partitions_are_passed_by,
);

fn scheduled() -> New {
    New {
        scheduled: Some(Duration::from_secs(3600)),
        ..New::small()
    }
}

async fn a_row_whose_retry_time_came_is_due_once<S: Stage>(stage: &S) {
    comes_once(stage, Due::RetryAt).await;
}

async fn a_row_whose_availability_came_is_due_once<S: Stage>(stage: &S) {
    comes_once(stage, Due::AvailableAt).await;
}

async fn comes_once<S: Stage>(stage: &S, due: Due) {
    let rows = stage.commit_small(3).await;
    let mut reader = reader(stage).await;
    let start = position(&mut reader).await;
    stage.fall_due(due, &rows[1..2]).await;
    let reading = read(&mut reader, &since(&start)).await;
    assert_eq!(ids(&reading.due), rows[1..2]);
    assert!(!reading.more_due);
    let again = read(&mut reader, &since(&reading.position)).await;
    assert!(again.due.is_empty());
    stage.fall_due(due, &rows[1..2]).await;
    let once_more = read(&mut reader, &since(&again.position)).await;
    assert_eq!(ids(&once_more.due), rows[1..2]);
}

async fn a_row_whose_time_has_not_come_is_not_due<S: Stage>(stage: &S) {
    let rows = stage.commit_each([New::small(), scheduled()]).await;
    let (mut reader, mut settler) = (reader(stage).await, owner(stage).await);
    let start = position(&mut reader).await;
    let wait = Duration::from_secs(3600);
    settler
        .settle(&[retry(rows[0], 1, wait, 0)])
        .await
        .expect("settled");
    assert!(read(&mut reader, &since(&start)).await.due.is_empty());
}

async fn more_retries_at_one_instant_than_the_limit_all_come<S: Stage>(stage: &S) {
    all_come(stage, Due::RetryAt).await;
}

async fn more_scheduled_rows_at_one_instant_than_the_limit_all_come<S: Stage>(stage: &S) {
    all_come(stage, Due::AvailableAt).await;
}

async fn all_come<S: Stage>(stage: &S, due: Due) {
    let rows = stage.commit_small(7).await;
    let mut reader = reader(stage).await;
    let mut at = position(&mut reader).await;
    stage.fall_due(due, &rows).await;
    let mut seen: BTreeSet<RowId> = BTreeSet::new();
    for expected in [3, 3, 1] {
        let request = ReadRequest {
            limit: 3,
            page_limit: 3,
            ..since(&at)
        };
        let reading = read(&mut reader, &request).await;
        for id in id_set(&reading.due) {
            assert!(seen.insert(id), "{id} came twice");
        }
        assert_eq!(reading.due.len(), expected);
        assert_eq!(reading.more_due, expected == 3);
        at = reading.position;
    }
    assert_eq!(seen, rows.into_iter().collect());
    // With no room at all the mark stays where it is.
    let rows = stage.commit_small(1).await;
    stage.fall_due(due, &rows).await;
    let request = ReadRequest {
        limit: 0,
        page_limit: 0,
        ..since(&at)
    };
    let none = read(&mut reader, &request).await;
    assert!(none.due.is_empty() && none.more_due);
    let reading = read(&mut reader, &since(&none.position)).await;
    assert_eq!(ids(&reading.due), rows);
}

async fn both_kinds_come_in_one_read<S: Stage>(stage: &S) {
    let rows = stage.commit_small(4).await;
    let mut reader = reader(stage).await;
    let start = position(&mut reader).await;
    stage.fall_due(Due::RetryAt, &rows[..2]).await;
    stage.fall_due(Due::AvailableAt, &rows[2..]).await;
    let request = ReadRequest {
        limit: 2,
        page_limit: 2,
        ..since(&start)
    };
    let reading = read(&mut reader, &request).await;
    assert_eq!(id_set(&reading.due), rows.into_iter().collect());
    assert!(!reading.more_due);
}

async fn a_row_that_waits_for_both_comes_when_the_later_time_came<S: Stage>(stage: &S) {
    let rows = stage.commit_each([scheduled()]).await;
    let mut reader = reader(stage).await;
    let start = position(&mut reader).await;
    stage.fall_due(Due::RetryAt, &rows).await;
    let early = read(&mut reader, &since(&start)).await;
    assert!(early.due.is_empty(), "it is not available yet");
    stage.fall_due(Due::AvailableAt, &rows).await;
    let reading = read(&mut reader, &since(&early.position)).await;
    assert_eq!(ids(&reading.due), rows);
}

async fn due_rows_of_other_partitions_are_passed_by<S: Stage>(stage: &S) {
    let rows = stage.commit_each(["a", "b", "c"].map(New::of)).await;
    let mut reader = reader(stage).await;
    let start = position(&mut reader).await;
    let page = read(&mut reader, &first()).await.page;
    let partitions: PartitionSet = [page[1].partition].into_iter().collect();
    stage.fall_due(Due::RetryAt, &rows).await;
    let request = ReadRequest {
        partitions,
        ..since(&start)
    };
    let reading = read(&mut reader, &request).await;
    assert_eq!(ids(&reading.due), rows[1..2]);
    let again = read(&mut reader, &since(&reading.position)).await;
    assert!(again.due.is_empty(), "they were passed by, not put off");
}
