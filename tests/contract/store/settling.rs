//! What a settlement writes, and what it says of rows it could not write.

use std::time::Duration;

use outbox_relay::broker::memory::MemoryBroker;
use outbox_relay::broker::{Broker, Channel, Confirmed, Link, Outcome};
use outbox_relay::message::{ReasonClass, RowId, Unfit};
use outbox_relay::relay::rules::{
    Fingerprint, Partition, SettleReport, Settlement, Ticket, Verdict,
};
use outbox_relay::store::Settler;

use super::{New, Quarantined, SettlerOf, Stage, Stored, first, owner, read, reader, suite};
use crate::rows::publication;

suite!(
    what_was_confirmed_is_marked_sent,
    a_row_that_waits_keeps_its_attempts_and_its_reason,
    a_row_that_was_quarantined_is_moved,
    a_locked_row_is_told_and_stops_nobody,
    a_row_that_is_gone_is_told,
    a_row_that_was_given_the_id_of_another_is_left_alone,
    settling_twice_is_harmless,
    a_row_that_waited_and_was_then_sent_ends_as_sent,
    of_several_waits_the_last_counts,
    a_reason_may_hold_anything,
    an_empty_batch_is_settled,
);

/// Only a broker's confirm can prove that a row was sent, so one is asked.
async fn proof() -> Confirmed {
    let broker = MemoryBroker::new();
    broker.declare_queue("q");
    let link = broker.connect().await.expect("a connection");
    let mut channel = link.open_channel().await.expect("a channel");
    channel.publish(vec![publication(1, "", "q")]).await;
    let judged = channel.judged().await.expect("judged");
    let Some((_, Outcome::Confirmed(proof))) = judged.into_iter().next() else {
        panic!("not confirmed")
    };
    proof
}

pub async fn sent(id: RowId, ticket: u64) -> Settlement {
    Settlement {
        id,
        partition: Partition(0),
        fingerprint: None,
        ticket: Ticket(ticket),
        verdict: Verdict::Sent(proof().await),
    }
}

pub fn retry(id: RowId, ticket: u64, delay: Duration, attempts: u32) -> Settlement {
    Settlement {
        id,
        partition: Partition(0),
        fingerprint: None,
        ticket: Ticket(ticket),
        verdict: Verdict::RetryAt {
            delay,
            attempts,
            class: ReasonClass::Refused,
            error: format!("reason {ticket}"),
        },
    }
}

pub fn quarantine(id: RowId, ticket: u64, reason: &str) -> Settlement {
    Settlement {
        id,
        partition: Partition(0),
        fingerprint: None,
        ticket: Ticket(ticket),
        verdict: Verdict::Quarantine {
            attempts: 0,
            why: Unfit {
                class: ReasonClass::TooLarge,
                reason: reason.to_owned(),
            },
        },
    }
}

async fn settle<T: Settler>(settler: &mut T, batch: Vec<Settlement>) -> SettleReport {
    let mut report = settler.settle(&batch).await.expect("settled");
    report.written.sort_unstable();
    report
}

fn written(rows: &[(RowId, u64)]) -> SettleReport {
    SettleReport {
        written: rows
            .iter()
            .map(|(id, ticket)| (*id, Ticket(*ticket)))
            .collect(),
        ..SettleReport::default()
    }
}

const HOUR: Duration = Duration::from_secs(3600);

async fn with_rows<S: Stage>(stage: &S, count: usize) -> (Vec<RowId>, SettlerOf<S>) {
    (stage.commit_small(count).await, owner(stage).await)
}

async fn what_was_confirmed_is_marked_sent<S: Stage>(stage: &S) {
    let (rows, mut settler) = with_rows(stage, 3).await;
    let batch = vec![sent(rows[2], 7).await, sent(rows[0], 8).await];
    let report = settle(&mut settler, batch).await;
    assert_eq!(report, written(&[(rows[0], 8), (rows[2], 7)]));
    for (row, is_sent) in [(rows[0], true), (rows[1], false), (rows[2], true)] {
        assert_eq!(stage.stored(row).await.expect("kept").sent, is_sent);
    }
}

async fn a_row_that_waits_keeps_its_attempts_and_its_reason<S: Stage>(stage: &S) {
    let (rows, mut settler) = with_rows(stage, 1).await;
    let report = settle(&mut settler, vec![retry(rows[0], 4, HOUR, 3)]).await;
    assert_eq!(report, written(&[(rows[0], 4)]));
    let expected = Stored {
        sent: false,
        waits: true,
        attempts: 3,
        last_error: Some("reason 4".to_owned()),
    };
    assert_eq!(stage.stored(rows[0]).await, Some(expected));
}

async fn a_row_that_was_quarantined_is_moved<S: Stage>(stage: &S) {
    let new = New {
        key: Some("k"),
        ..New::large(3000)
    };
    let row = stage.commit_each([new.clone()]).await[0];
    let mut settler = owner(stage).await;
    let report = settle(
        &mut settler,
        vec![quarantine(row, 1, "3000 bytes, at most 2")],
    )
    .await;
    assert_eq!(report, written(&[(row, 1)]));
    assert_eq!(stage.stored(row).await, None);
    let expected = Quarantined {
        class: "too_large".to_owned(),
        reason: "3000 bytes, at most 2".to_owned(),
        key: Some("k".to_owned()),
        payload: new.payload,
    };
    assert_eq!(stage.quarantined(row).await, Some(expected));
}

async fn a_locked_row_is_told_and_stops_nobody<S: Stage>(stage: &S) {
    let (rows, mut settler) = with_rows(stage, 4).await;
    let mut locks = Vec::new();
    for row in &rows[..3] {
        locks.push(stage.lock(*row).await);
    }
    let batch = |s| {
        vec![
            s,
            retry(rows[1], 2, HOUR, 1),
            quarantine(rows[2], 3, "no"),
            retry(rows[3], 4, HOUR, 1),
        ]
    };
    let report = settle(&mut settler, batch(sent(rows[0], 1).await)).await;
    let mut locked = report.locked.clone();
    locked.sort_unstable();
    assert_eq!(locked, [1, 2, 3].map(Ticket));
    assert_eq!(report.written, [(rows[3], Ticket(4))]);
    assert!(report.gone.is_empty());
    for lock in locks {
        stage.unlock(lock).await;
    }
    let report = settle(&mut settler, batch(sent(rows[0], 5).await)).await;
    assert_eq!(report.written.len(), 4);
    assert!(stage.stored(rows[0]).await.expect("kept").sent);
}

async fn a_row_that_was_given_the_id_of_another_is_left_alone<S: Stage>(stage: &S) {
    let (rows, mut settler) = with_rows(stage, 3).await;
    let mut reader = reader(stage).await;
    let known: Vec<Fingerprint> = read(&mut reader, &first())
        .await
        .page
        .iter()
        .filter_map(|found| found.fingerprint)
        .collect();
    let [Fingerprint(one), ..] = known[..] else {
        panic!("every row is known by more than its id")
    };
    let of = |mut settlement: Settlement, hash: i64| {
        settlement.fingerprint = Some(Fingerprint(hash));
        settlement
    };
    let batch = vec![
        of(sent(rows[0], 1).await, one ^ 1),
        of(retry(rows[1], 2, HOUR, 1), one ^ 1),
        of(quarantine(rows[2], 3, "no"), one ^ 1),
    ];
    let mut report = settle(&mut settler, batch).await;
    report.gone.sort_unstable();
    assert!(report.written.is_empty());
    let gone = [(rows[0], 1), (rows[1], 2), (rows[2], 3)];
    assert_eq!(report.gone, gone.map(|(id, ticket)| (id, Ticket(ticket))));
    for row in &rows {
        let stored = stage.stored(*row).await.expect("left alone");
        assert!(!stored.sent && !stored.waits);
    }
    let report = settle(&mut settler, vec![of(sent(rows[0], 4).await, one)]).await;
    assert_eq!(report.written, [(rows[0], Ticket(4))]);
}

async fn a_row_that_is_gone_is_told<S: Stage>(stage: &S) {
    let (rows, mut settler) = with_rows(stage, 4).await;
    for row in &rows[..3] {
        stage.delete(*row).await;
    }
    let batch = vec![
        sent(rows[0], 1).await,
        retry(rows[1], 2, HOUR, 1),
        quarantine(rows[2], 3, "no"),
        sent(rows[3], 4).await,
    ];
    let mut report = settle(&mut settler, batch).await;
    report.gone.sort_unstable();
    assert_eq!(report.written, [(rows[3], Ticket(4))]);
    let gone = [(rows[0], 1), (rows[1], 2), (rows[2], 3)];
    assert_eq!(report.gone, gone.map(|(id, ticket)| (id, Ticket(ticket))));
    assert_eq!(stage.quarantined(rows[2]).await, None, "nothing to move");
}

async fn settling_twice_is_harmless<S: Stage>(stage: &S) {
    let (rows, mut settler) = with_rows(stage, 1).await;
    settle(&mut settler, vec![sent(rows[0], 1).await]).await;
    let batch = vec![sent(rows[0], 1).await];
    assert_eq!(
        settle(&mut settler, batch).await.gone,
        [(rows[0], Ticket(1))]
    );
    // A verdict that came too late does not make it pending again.
    let report = settle(&mut settler, vec![retry(rows[0], 2, HOUR, 1)]).await;
    assert_eq!(report.gone, [(rows[0], Ticket(2))]);
    let stored = stage.stored(rows[0]).await.expect("kept");
    assert!(stored.sent && !stored.waits);
    let report = settle(&mut settler, vec![quarantine(rows[0], 3, "no")]).await;
    assert_eq!(report.gone, [(rows[0], Ticket(3))]);
    assert!(stage.stored(rows[0]).await.is_some());
}

async fn a_row_that_waited_and_was_then_sent_ends_as_sent<S: Stage>(stage: &S) {
    let (rows, mut settler) = with_rows(stage, 1).await;
    let batch = vec![retry(rows[0], 1, HOUR, 1), sent(rows[0], 2).await];
    let report = settle(&mut settler, batch).await;
    assert_eq!(report, written(&[(rows[0], 1), (rows[0], 2)]));
    assert!(stage.stored(rows[0]).await.expect("kept").sent);
}

async fn of_several_waits_the_last_counts<S: Stage>(stage: &S) {
    let (rows, mut settler) = with_rows(stage, 1).await;
    let batch = vec![retry(rows[0], 1, HOUR, 1), retry(rows[0], 2, HOUR, 2)];
    let report = settle(&mut settler, batch).await;
    assert_eq!(report, written(&[(rows[0], 1), (rows[0], 2)]));
    let stored = stage.stored(rows[0]).await.expect("kept");
    assert_eq!(
        (stored.attempts, stored.last_error.as_deref()),
        (2, Some("reason 2"))
    );
}

async fn a_reason_may_hold_anything<S: Stage>(stage: &S) {
    let (rows, mut settler) = with_rows(stage, 1).await;
    let reason = "it's \"so\" \\ – ünïcode 🐇 {} ;--";
    settle(&mut settler, vec![quarantine(rows[0], 1, reason)]).await;
    let moved = stage.quarantined(rows[0]).await.expect("moved");
    assert_eq!(moved.reason, reason);
}

async fn an_empty_batch_is_settled<S: Stage>(stage: &S) {
    let (_, mut settler) = with_rows(stage, 1).await;
    assert_eq!(
        settle(&mut settler, Vec::new()).await,
        SettleReport::default()
    );
}
