//! What a read brings: pages of what is pending, and what was committed since the last one.

use std::collections::BTreeSet;
use std::time::Duration;

use outbox_relay::message::RowId;
use outbox_relay::relay::rules::{Found, Partition, PartitionSet, ReadRequest};
use outbox_relay::store::Settler;

use super::settling::{quarantine, retry, sent};
use super::{New, Stage, first, id_set, ids, owner, position, read, reader, since, suite};

suite!(
    a_first_read_pages_through_everything_and_brings_no_news,
    a_page_walks_by_id_and_tells_how_far,
    a_page_shows_what_was_walked_over_only_if_it_may_be_sent,
    news_is_exactly_what_was_committed_since,
    a_late_commit_is_news_and_delays_nobody,
    a_row_inserted_in_a_savepoint_is_news,
    what_was_rolled_back_is_never_seen,
    no_news_is_missed_or_repeated_over_many_reads,
    more_news_than_the_limit_is_told_by_its_first_id,
    a_read_with_limit_zero_brings_nothing_and_loses_nothing,
    news_above_a_bound_is_left_to_the_page,
    rows_of_other_partitions_are_walked_over,
    a_waiting_row_says_how_long_it_waits,
    what_was_settled_is_no_longer_pending,
    a_row_behind_a_quarantined_one_of_its_key_says_so,
);

async fn a_first_read_pages_through_everything_and_brings_no_news<S: Stage>(stage: &S) {
    let rows = stage.commit_small(5).await;
    let mut reader = reader(stage).await;
    let reading = read(&mut reader, &first()).await;
    assert_eq!(ids(&reading.page), rows);
    assert!(reading.news.is_empty() && reading.due.is_empty());
    assert_eq!((reading.walked_to, reading.more_news_from), (None, None));
    assert!(!reading.more_due);
}

async fn a_page_walks_by_id_and_tells_how_far<S: Stage>(stage: &S) {
    let rows = stage.commit_small(5).await;
    let mut reader = reader(stage).await;
    let mut request = ReadRequest {
        limit: 2,
        page_limit: 2,
        ..first()
    };
    let mut pages = Vec::new();
    loop {
        let reading = read(&mut reader, &request).await;
        pages.push(ids(&reading.page));
        let Some(walked_to) = reading.walked_to else {
            break;
        };
        assert_eq!(
            Some(RowId(walked_to)),
            pages.last().and_then(|page| page.last().copied())
        );
        request.page_after = Some(walked_to);
    }
    assert_eq!(
        pages,
        [&rows[..2], &rows[2..4], &rows[4..]].map(<[RowId]>::to_vec)
    );
}

async fn a_page_shows_what_was_walked_over_only_if_it_may_be_sent<S: Stage>(stage: &S) {
    let scheduled = New {
        scheduled: Some(Duration::from_secs(3600)),
        ..New::small()
    };
    let rows = stage
        .commit_each([New::small(), scheduled, New::small()])
        .await;
    let mut reader = reader(stage).await;
    let request = ReadRequest {
        limit: 2,
        page_limit: 2,
        ..first()
    };
    let reading = read(&mut reader, &request).await;
    assert_eq!(ids(&reading.page), rows[..1]);
    assert_eq!(
        reading.walked_to,
        Some(rows[1].0),
        "the scheduled one counts as walked"
    );
    // Nor is it news.
    let position = reading.position;
    let later = New {
        scheduled: Some(Duration::from_secs(3600)),
        ..New::small()
    };
    stage.commit_each([later]).await;
    assert!(read(&mut reader, &since(&position)).await.news.is_empty());
}

async fn news_is_exactly_what_was_committed_since<S: Stage>(stage: &S) {
    stage.commit_small(3).await;
    let mut reader = reader(stage).await;
    let before = position(&mut reader).await;
    let rows = stage.commit_small(3).await;
    let reading = read(&mut reader, &since(&before)).await;
    assert_eq!(ids(&reading.news), rows);
    assert!(reading.page.is_empty() && reading.due.is_empty());
    let again = read(&mut reader, &since(&reading.position)).await;
    assert!(again.news.is_empty());
}

async fn a_late_commit_is_news_and_delays_nobody<S: Stage>(stage: &S) {
    let mut reader = reader(stage).await;
    let start = position(&mut reader).await;
    let mut slow = stage.begin().await;
    let first = stage.insert(&mut slow, New::small()).await;
    let second = stage.commit_small(1).await[0];
    assert!(first < second);
    let reading = read(&mut reader, &since(&start)).await;
    assert_eq!(ids(&reading.news), [second]);
    let idle = read(&mut reader, &since(&reading.position)).await;
    assert!(idle.news.is_empty());
    let third = stage.commit_small(1).await[0];
    stage.commit(slow).await;
    let reading = read(&mut reader, &since(&idle.position)).await;
    assert_eq!(
        ids(&reading.news),
        [first, third],
        "by id, whoever committed first"
    );
}

async fn a_row_inserted_in_a_savepoint_is_news<S: Stage>(stage: &S) {
    let mut reader = reader(stage).await;
    let start = position(&mut reader).await;
    let mut slow = stage.begin().await;
    let outer = stage.insert(&mut slow, New::small()).await;
    let inner = stage.insert_in_savepoint(&mut slow, New::small()).await;
    let other = stage.commit_small(1).await[0];
    let reading = read(&mut reader, &since(&start)).await;
    assert_eq!(ids(&reading.news), [other]);
    stage.commit(slow).await;
    let reading = read(&mut reader, &since(&reading.position)).await;
    assert_eq!(ids(&reading.news), [outer, inner]);
}

async fn what_was_rolled_back_is_never_seen<S: Stage>(stage: &S) {
    let mut reader = reader(stage).await;
    let start = position(&mut reader).await;
    let mut transaction = stage.begin().await;
    stage.insert(&mut transaction, New::small()).await;
    let open = read(&mut reader, &since(&start)).await;
    assert!(open.news.is_empty());
    stage.roll_back(transaction).await;
    let reading = read(&mut reader, &since(&open.position)).await;
    assert!(reading.news.is_empty());
    assert!(read(&mut reader, &first()).await.page.is_empty());
}

async fn no_news_is_missed_or_repeated_over_many_reads<S: Stage>(stage: &S) {
    let mut reader = reader(stage).await;
    let mut at = position(&mut reader).await;
    let (mut committed, mut seen) = (BTreeSet::new(), BTreeSet::new());
    let mut open = Vec::new();
    for round in 0..12 {
        let mut transaction = stage.begin().await;
        for _ in 0..round % 3 {
            committed.insert(stage.insert(&mut transaction, New::small()).await);
        }
        open.push(transaction);
        // Commits one that began some rounds ago, in no particular order.
        if round % 2 == 1 {
            let chosen = open.remove(round * 7 % open.len());
            stage.commit(chosen).await;
        }
        let reading = read(&mut reader, &since(&at)).await;
        for id in id_set(&reading.news) {
            assert!(seen.insert(id), "{id} came twice");
        }
        at = reading.position;
    }
    for transaction in open {
        stage.commit(transaction).await;
    }
    let last = read(&mut reader, &since(&at)).await;
    seen.extend(id_set(&last.news));
    assert_eq!(seen, committed);
}

async fn more_news_than_the_limit_is_told_by_its_first_id<S: Stage>(stage: &S) {
    let mut reader = reader(stage).await;
    let start = position(&mut reader).await;
    let rows = stage.commit_small(5).await;
    let limited = |limit| ReadRequest {
        limit,
        ..since(&start)
    };
    let reading = read(&mut reader, &limited(3)).await;
    assert_eq!(ids(&reading.news), rows[..3]);
    assert_eq!(reading.more_news_from, Some(rows[3].0));
    let reading = read(&mut reader, &limited(5)).await;
    assert_eq!((reading.news.len(), reading.more_news_from), (5, None));
}

async fn a_read_with_limit_zero_brings_nothing_and_loses_nothing<S: Stage>(stage: &S) {
    let old = stage.commit_small(2).await;
    let mut reader = reader(stage).await;
    let start = position(&mut reader).await;
    let full = |since| ReadRequest {
        limit: 0,
        page_limit: 0,
        ..since
    };
    let nothing_new = read(&mut reader, &full(since(&start))).await;
    assert_eq!(
        (nothing_new.more_news_from, nothing_new.walked_to),
        (None, None)
    );
    let rows = stage.commit_small(2).await;
    let request = ReadRequest {
        page_after: Some(old[0].0),
        ..full(since(&start))
    };
    let reading = read(&mut reader, &request).await;
    assert!(reading.news.is_empty() && reading.page.is_empty());
    assert_eq!(reading.more_news_from, Some(rows[0].0));
    assert_eq!(reading.walked_to, Some(old[0].0), "the page has not moved");
}

async fn news_above_a_bound_is_left_to_the_page<S: Stage>(stage: &S) {
    let mut reader = reader(stage).await;
    let start = position(&mut reader).await;
    let rows = stage.commit_small(4).await;
    let request = ReadRequest {
        news_up_to: rows[1].0,
        page_after: Some(rows[1].0),
        ..since(&start)
    };
    let reading = read(&mut reader, &request).await;
    assert_eq!(ids(&reading.news), rows[..2]);
    assert_eq!(ids(&reading.page), rows[2..]);
    assert_eq!(reading.more_news_from, None);
}

async fn rows_of_other_partitions_are_walked_over<S: Stage>(stage: &S) {
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h", "a", "b"];
    let mut reader = reader(stage).await;
    let start = position(&mut reader).await;
    let rows = stage.commit_each(keys.map(New::of)).await;
    let all = read(&mut reader, &first()).await;
    let of_first: Partition = all.page[0].partition;
    assert_eq!(all.page[8].partition, of_first, "one key, one partition");
    assert_eq!(all.page[8].key, all.page[0].key);
    let expected = |wanted: &PartitionSet| -> Vec<RowId> {
        let owned = all.page.iter().filter(|row| wanted.contains(row.partition));
        owned.map(Found::id).collect()
    };
    let mine: PartitionSet = [of_first].into_iter().collect();
    let others = PartitionSet::ALL.minus(&mine);
    for partitions in [mine, others, PartitionSet::NONE] {
        let page = ReadRequest {
            partitions,
            ..first()
        };
        assert_eq!(
            ids(&read(&mut reader, &page).await.page),
            expected(&partitions)
        );
        let news = ReadRequest {
            partitions,
            ..since(&start)
        };
        assert_eq!(
            ids(&read(&mut reader, &news).await.news),
            expected(&partitions)
        );
        let short = ReadRequest {
            limit: 3,
            page_limit: 3,
            ..page
        };
        assert_eq!(read(&mut reader, &short).await.walked_to, Some(rows[2].0));
    }
}

async fn a_waiting_row_says_how_long_it_waits<S: Stage>(stage: &S) {
    let rows = stage.commit_small(2).await;
    let (mut reader, mut settler) = (reader(stage).await, owner(stage).await);
    let wait = Duration::from_secs(3600);
    settler
        .settle(&[retry(rows[0], 1, wait, 0)])
        .await
        .expect("settled");
    let page = read(&mut reader, &first()).await.page;
    assert_eq!(ids(&page), rows, "a waiting row is shown: it holds its key");
    let left = page[0].wait.expect("it waits");
    assert!(left <= wait && left > wait / 2, "{left:?}");
    assert_eq!(page[1].wait, None);
}

async fn what_was_settled_is_no_longer_pending<S: Stage>(stage: &S) {
    let mut reader = reader(stage).await;
    let start = position(&mut reader).await;
    let rows = stage.commit_small(3).await;
    let mut settler = owner(stage).await;
    settler
        .settle(&[sent(rows[1], 1).await])
        .await
        .expect("settled");
    let left = [rows[0], rows[2]];
    assert_eq!(ids(&read(&mut reader, &since(&start)).await.news), left);
    assert_eq!(ids(&read(&mut reader, &first()).await.page), left);
}

async fn a_row_behind_a_quarantined_one_of_its_key_says_so<S: Stage>(stage: &S) {
    let keys = ["a", "a", "a", "b"].map(New::of);
    let rows = stage.commit_each(keys).await;
    let unordered = stage.commit_small(1).await[0];
    let (mut reader, mut settler) = (reader(stage).await, owner(stage).await);
    let settled = settler.settle(&[quarantine(rows[1], 1, "bad")]).await;
    settled.expect("settled");
    let page = read(&mut reader, &first()).await.page;
    let held = |row: &Found| (row.id(), row.held.is_some());
    let expected = [
        (rows[0], false),
        (rows[2], true),
        (rows[3], false),
        (unordered, false),
    ];
    assert_eq!(page.iter().map(held).collect::<Vec<_>>(), expected);
    assert!(page.iter().all(|row| row.held < Some(HOUR)));
}

const HOUR: Duration = Duration::from_secs(3600);
