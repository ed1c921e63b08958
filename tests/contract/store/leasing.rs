//! Leases: taken once, renewed by signs of life, and a guard before what only an owner decides.

use std::time::{Duration, SystemTime};

use outbox_relay::message::RowId;
use outbox_relay::relay::rules::{Leases, Partition, PartitionSet, Peer, Take, Ticket};
use outbox_relay::store::{Announcement, Settler};
use uuid::Uuid;

use super::alive::sign;
use super::on_postgres::OnPostgres;
use super::settling::{quarantine, retry, sent};
use super::{SettlerOf, Stage, first, owner, read, reader, settler, suite};

suite!(
    a_relay_takes_what_is_free_up_to_its_limit,
    what_was_given_back_is_free,
    a_relay_that_stops_leaves_everything_free,
    a_relay_whose_broker_blocks_is_connected,
    a_read_tells_whether_there_are_partitions_without_an_owner,
    only_from_the_silent_is_taken,
    only_the_owner_decides_that_a_row_waits_or_is_given_up,
);

const ALL: usize = 256;

fn free(limit: usize) -> Take {
    let dead = Vec::new();
    Take { dead, limit }
}

async fn announced<S: Stage>(stage: &S, relay: u128) -> SettlerOf<S> {
    let mut settler = stage.settler_of(relay).await;
    assert!(settler.announce(&sign(relay)).await.expect("a sign"));
    settler
}

async fn look<T: Settler>(settler: &mut T) -> Leases {
    settler.leases().await.expect("leases")
}

fn peer(leases: &Leases, relay: u128) -> &Peer {
    let named = |peer: &&Peer| peer.instance == Uuid::from_u128(relay);
    leases.peers.iter().find(named).expect("known")
}

async fn a_relay_takes_what_is_free_up_to_its_limit<S: Stage>(stage: &S) {
    let (mut one, mut two) = (announced(stage, 1).await, announced(stage, 2).await);
    assert_eq!(look(&mut one).await.free, PartitionSet::ALL);
    one.take(&free(100)).await.expect("taken");
    two.take(&free(ALL)).await.expect("taken");
    let leases = look(&mut two).await;
    let (first, second) = (peer(&leases, 1), peer(&leases, 2));
    assert_eq!((first.held.len(), second.held.len()), (100, 156));
    assert!(first.held.intersection(&second.held).is_empty() && leases.free.is_empty());
    assert_eq!((first.lease, first.able), (Duration::from_secs(15), true));
}

async fn what_was_given_back_is_free<S: Stage>(stage: &S) {
    let (mut one, mut two) = (announced(stage, 1).await, announced(stage, 2).await);
    one.take(&free(ALL)).await.expect("taken");
    let some: PartitionSet = [Partition(0), Partition(255)].into_iter().collect();
    two.release(&some)
        .await
        .expect("not its own: nothing happens");
    assert!(look(&mut two).await.free.is_empty());
    one.release(&some).await.expect("given back");
    assert_eq!(look(&mut two).await.free, some);
    two.take(&free(1)).await.expect("taken");
    assert_eq!(peer(&look(&mut one).await, 2).held.len(), 1);
}

async fn a_relay_that_stops_leaves_everything_free<S: Stage>(stage: &S) {
    let (mut one, mut two) = (announced(stage, 1).await, announced(stage, 2).await);
    one.take(&free(ALL)).await.expect("taken");
    one.withdraw().await.expect("gone");
    let leases = look(&mut two).await;
    assert_eq!((leases.free, leases.peers.len()), (PartitionSet::ALL, 1));
}

async fn a_relay_whose_broker_blocks_is_connected<S: Stage>(stage: &S) {
    let mut one = settler(stage).await;
    for (state, able) in [("blocked", true), ("disconnected", false)] {
        let told = Announcement {
            broker: (state.to_owned(), String::new()),
            ..sign(1)
        };
        assert!(one.announce(&told).await.expect("a sign"));
        assert_eq!(peer(&look(&mut one).await, 1).able, able, "{state}");
    }
}

async fn a_read_tells_whether_there_are_partitions_without_an_owner<S: Stage>(stage: &S) {
    let mut reader = reader(stage).await;
    let mut one = owner(stage).await;
    assert!(!read(&mut reader, &first()).await.orphans);
    let last = [Partition(255)].into_iter().collect();
    one.release(&last).await.expect("given back");
    assert!(read(&mut reader, &first()).await.orphans);
}

async fn only_from_the_silent_is_taken<S: Stage>(stage: &S) {
    let mut one = owner(stage).await;
    let mut two = announced(stage, 2).await;
    let dead = |leases: &Leases| vec![(Uuid::from_u128(1), peer(leases, 1).renewed_at)];
    let before = dead(&look(&mut two).await);
    one.announce(&sign(1)).await.expect("it lives");
    let take = |dead: Vec<(Uuid, SystemTime)>| Take { dead, limit: 7 };
    two.take(&take(before.clone())).await.expect("nothing");
    let leases = look(&mut two).await;
    assert_eq!(peer(&leases, 2).held, PartitionSet::NONE);
    let same = before[0].1 == peer(&leases, 1).renewed_at;
    assert!(!same, "a renewal can be told from the one before");
    two.take(&take(dead(&leases))).await.expect("seven");
    let leases = look(&mut one).await;
    assert_eq!(
        (peer(&leases, 1).held.len(), peer(&leases, 2).held.len()),
        (249, 7)
    );
}

async fn only_the_owner_decides_that_a_row_waits_or_is_given_up<S: Stage>(stage: &S) {
    let rows = stage.commit_small(4).await;
    let mut one = owner(stage).await;
    let other = [Partition(0)].into_iter().collect();
    one.release(&other).await.expect("given back");
    let hour = Duration::from_secs(3600);
    let batch = vec![
        retry(rows[0], 1, hour, 9),
        quarantine(rows[1], 2, "no"),
        sent(rows[2], 3).await,
        retry_elsewhere(rows[3], 4),
    ];
    let mut report = one.settle(&batch).await.expect("settled");
    report.disowned.sort_unstable();
    let ticket = |place: usize, no| (rows[place], Ticket(no));
    assert_eq!(report.disowned, [ticket(0, 1), ticket(1, 2)]);
    report.written.sort_unstable();
    assert_eq!(report.written, [ticket(2, 3), ticket(3, 4)]);
    assert_eq!(stage.stored(rows[0]).await.expect("kept").attempts, 0);
    assert!(stage.stored(rows[1]).await.is_some());
    assert!(stage.stored(rows[2]).await.expect("kept").sent);
}

/// In a partition that it still owns.
fn retry_elsewhere(row: RowId, ticket: u64) -> outbox_relay::relay::rules::Settlement {
    let mut settlement = retry(row, ticket, Duration::from_secs(3600), 1);
    settlement.partition = Partition(1);
    settlement
}

/// A plain look at the owner would see the old one until the taker has committed.
#[tokio::test]
async fn a_taking_that_has_not_committed_is_waited_for() {
    let stage = OnPostgres::new().await;
    let rows = stage.commit_small(1).await;
    let mut one = owner(&stage).await;
    let _two = announced(&stage, 2).await;
    let taker = stage.begin().await;
    let take = "UPDATE outbox.lease SET owner = '00000000-0000-0000-0000-000000000002'";
    taker.batch_execute(take).await.expect("taken");
    let batch = [retry(rows[0], 1, Duration::from_secs(3600), 1)];
    let settling = one.settle(&batch);
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    let committing = async {
        while stage
            .client
            .query_one(waits, &[])
            .await
            .expect(waits)
            .get::<_, i64>(0)
            == 0
        {}
        stage.commit(taker).await;
    };
    let (report, ()) = tokio::join!(settling, committing);
    assert_eq!(report.expect("settled").disowned, [(rows[0], Ticket(1))]);
}

/// Several relays see the same free partitions and take at once.
#[tokio::test]
async fn no_partition_is_taken_twice() {
    let stage = OnPostgres::new().await;
    let mut relays = Vec::new();
    for relay in 1..=4 {
        relays.push(announced(&stage, relay).await);
    }
    let take = free(ALL);
    let takes = relays.iter_mut().map(|relay| relay.take(&take));
    for taken in futures_util::future::join_all(takes).await {
        taken.expect("taken or not");
    }
    let leases = look(&mut settler(&stage).await).await;
    let held: usize = leases.peers.iter().map(|peer| peer.held.len()).sum();
    assert_eq!(held + leases.free.len(), ALL);
    assert!(leases.free.is_empty(), "one of them took each");
}
