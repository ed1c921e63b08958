use super::*;
use crate::relay::rules::Partition;

const LEASE: Duration = Duration::from_secs(15);

fn own(seconds: f64) -> Moment {
    Moment::from_origin(Duration::from_secs_f64(seconds))
}

/// The database's clock when ours shows so much, if it was never set.
fn db(seconds: f64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs_f64(1_000_000_000.0 + seconds)
}

fn range(partitions: std::ops::RangeInclusive<u8>) -> PartitionSet {
    partitions.map(Partition).collect()
}

fn peer(no: u128, renewed_at: f64, held: PartitionSet) -> Peer {
    Peer {
        instance: Uuid::from_u128(no),
        renewed_at: db(renewed_at),
        lease: LEASE,
        able: true,
        held,
    }
}

fn leases(at: f64, peers: Vec<Peer>) -> Leases {
    let owned = peers
        .iter()
        .fold(PartitionSet::NONE, |all, peer| all.union(&peer.held));
    Leases {
        at: db(at),
        peers,
        free: PartitionSet::ALL.minus(&owned),
    }
}

fn look(ownership: &mut Ownership, leases: &Leases, at: f64) -> Plan {
    ownership.look(leases, &PartitionSet::NONE, own(at), db(at))
}

fn first() -> Ownership {
    Ownership::new(Uuid::from_u128(1), LEASE)
}

#[test]
fn alone_it_takes_everything() {
    let mut me = first();
    let plan = look(
        &mut me,
        &leases(0.0, vec![peer(1, 0.0, PartitionSet::NONE)]),
        0.0,
    );
    let take = plan.take.expect("free ones");
    assert_eq!((take.limit, take.dead.len()), (256, 0));
    assert!(!plan.settled && !plan.stands_by);
    let plan = look(
        &mut me,
        &leases(1.0, vec![peer(1, 0.0, PartitionSet::ALL)]),
        1.0,
    );
    assert_eq!((plan.held, plan.take), (PartitionSet::ALL, None));
    assert!(plan.settled && plan.surplus.is_empty());
}

#[test]
fn shares_are_fair_and_make_up_the_whole() {
    for relays in [1_u128, 2, 3, 7, 256, 300] {
        let peers: Vec<_> = (1..=relays)
            .map(|no| peer(no, 0.0, PartitionSet::NONE))
            .collect();
        let view = leases(0.0, peers);
        let shares: Vec<usize> = (1..=relays)
            .map(|no| {
                let mut one = Ownership::new(Uuid::from_u128(no), LEASE);
                look(&mut one, &view, 0.0).take.map_or(0, |take| take.limit)
            })
            .collect();
        assert_eq!(shares.iter().sum::<usize>(), 256, "{relays} relays");
        let (least, most) = (shares.iter().min(), shares.iter().max());
        assert!(
            most.zip(least)
                .is_some_and(|(most, least)| most - least <= 1)
        );
    }
}

#[test]
fn who_has_too_much_hands_over_and_who_has_too_little_waits_for_it() {
    let view = leases(
        1.0,
        vec![
            peer(1, 0.5, PartitionSet::ALL),
            peer(2, 0.9, PartitionSet::NONE),
        ],
    );
    let mut old = first();
    let plan = look(&mut old, &view, 1.0);
    assert_eq!((plan.surplus, plan.take), (range(128..=255), None));
    let leaving = plan.surplus;
    let plan = old.look(&view, &leaving, own(1.1), db(1.1));
    assert!(plan.surplus.is_empty(), "what is leaving counts as gone");
    let mut new = Ownership::new(Uuid::from_u128(2), LEASE);
    let plan = look(&mut new, &view, 1.0);
    assert!(plan.take.is_none() && plan.stands_by && !plan.settled);
    assert_eq!(plan.look_at, own(1.1), "soon");
    assert_eq!(
        look(&mut new, &view, 1.1).look_at,
        own(1.3),
        "then less soon"
    );
}

#[test]
fn a_lease_that_is_not_renewed_is_over_when_it_ends_and_not_before() {
    let mut me = first();
    let half = range(0..=127);
    let other = PartitionSet::ALL.minus(&half);
    let view = |at: f64, renewed: f64| leases(at, vec![peer(1, at, half), peer(2, renewed, other)]);
    look(&mut me, &view(0.0, 0.0), 0.0);
    let plan = look(&mut me, &view(5.0, 3.0), 5.0);
    assert!(plan.settled, "it was seen to renew");
    let plan = look(&mut me, &view(17.9, 3.0), 17.9);
    assert_eq!((plan.take, plan.look_at), (None, own(18.0)));
    let plan = look(&mut me, &view(18.0, 3.0), 18.0);
    let take = plan.take.expect("the other is dead");
    assert_eq!(take.dead, [(Uuid::from_u128(2), db(3.0))]);
    assert_eq!(take.limit, 128);
}

#[test]
fn a_database_clock_that_is_set_forward_ends_nobody_s_lease() {
    let mut me = first();
    let hour = 3600.0;
    let view = |at: f64, renewed: f64| {
        leases(
            at,
            vec![
                peer(1, at, PartitionSet::NONE),
                peer(2, renewed, PartitionSet::ALL),
            ],
        )
    };
    look(&mut me, &view(0.0, 0.0), 0.0);
    let plan = look(&mut me, &view(hour + 5.0, 4.0), 5.0);
    assert_eq!(
        plan.take, None,
        "renewed at 4, lease over at 19 of our clock at the earliest"
    );
    assert_eq!(look(&mut me, &view(hour + 19.0, 4.0), 19.0).take, None);
    assert!(
        look(&mut me, &view(hour + 20.0, 4.0), 20.0).take.is_some(),
        "really dead"
    );
}

#[test]
fn a_database_clock_that_is_set_back_keeps_nobody_alive() {
    let mut me = first();
    let view = |at: f64| {
        leases(
            at,
            vec![
                peer(1, at, PartitionSet::NONE),
                peer(2, 0.0, PartitionSet::ALL),
            ],
        )
    };
    look(&mut me, &view(0.0), 0.0);
    assert_eq!(look(&mut me, &view(-3590.0), 10.0).take, None);
    assert!(look(&mut me, &view(-3584.0), 16.0).take.is_some());
}

/// The database's clock is wrong at both looks and was right in between, when the other renewed.
#[test]
fn a_database_clock_that_is_set_and_set_back_between_looks_ends_nobody_s_lease() {
    let mut me = first();
    let hour = 3600.0;
    let view = |at: f64, renewed: f64| {
        let held = [PartitionSet::NONE, PartitionSet::ALL];
        let [mine, others] = held;
        leases(at, vec![peer(1, at, mine), peer(2, renewed, others)])
    };
    look(&mut me, &view(hour, hour), 0.0);
    look(&mut me, &view(hour + 1.0, hour), 1.0);
    assert_eq!(look(&mut me, &view(hour + 2.0, 1.5), 2.0).take, None);
    assert_eq!(look(&mut me, &view(hour + 15.0, 1.5), 15.0).take, None);
    let after = look(&mut me, &view(hour + 16.5, 1.5), 16.5);
    assert!(after.take.is_some(), "really dead");
}

#[test]
fn at_first_sight_an_old_lease_is_over_only_if_the_clocks_agree() {
    let view = leases(
        100.0,
        vec![
            peer(1, 100.0, PartitionSet::NONE),
            peer(2, 10.0, PartitionSet::ALL),
        ],
    );
    assert!(look(&mut first(), &view, 100.0).take.is_some());
    let mut careful = first();
    let hour_ahead = |at: f64| db(at + 3600.0);
    let plan = careful.look(&view, &PartitionSet::NONE, own(100.0), hour_ahead(100.0));
    assert_eq!(plan.take, None);
    let later = Leases {
        at: db(115.0),
        ..view
    };
    let plan = careful.look(&later, &PartitionSet::NONE, own(115.0), hour_ahead(115.0));
    assert!(plan.take.is_some());
}

/// A view of the first relay and a second one; whether each is connected.
fn two(at: f64, held: [PartitionSet; 2], able: [bool; 2]) -> Leases {
    let one = |no: usize| Peer {
        able: able[no],
        ..peer(no as u128 + 1, at, held[no])
    };
    leases(at, vec![one(0), one(1)])
}

#[test]
fn who_cannot_reach_the_broker_for_long_leaves_its_share_to_those_who_can() {
    let mut me = first();
    let mut surplus = |at: f64, able| {
        let view = two(at, [PartitionSet::ALL, PartitionSet::NONE], able);
        look(&mut me, &view, at).surplus.len()
    };
    assert_eq!(surplus(0.0, [true, true]), 128);
    assert_eq!(surplus(1.0, [false, true]), 128, "a hiccup moves nothing");
    assert_eq!(surplus(15.0, [false, true]), 128);
    assert_eq!(surplus(16.0, [false, true]), 256);
    assert_eq!(surplus(17.0, [true, true]), 128);
    assert_eq!(surplus(18.0, [false, false]), 128);
    assert_eq!(
        surplus(40.0, [false, false]),
        128,
        "an outage for all is no reason to move"
    );
}

#[test]
fn who_comes_without_a_way_to_the_broker_has_no_share_until_it_has_one() {
    let mut new = Ownership::new(Uuid::from_u128(2), LEASE);
    let mut old = first();
    let held = [PartitionSet::ALL, PartitionSet::NONE];
    for at in [0.0, 5.0] {
        let view = two(at, held, [true, false]);
        assert!(look(&mut old, &view, at).surplus.is_empty());
        assert!(look(&mut new, &view, at).stands_by);
    }
    let view = two(6.0, [PartitionSet::NONE; 2], [true, false]);
    let limit = |plan: Plan| plan.take.map(|take| take.limit);
    assert_eq!(
        limit(look(&mut new, &view, 6.0)),
        None,
        "not what is free, either"
    );
    assert_eq!(limit(look(&mut old, &view, 6.0)), Some(256));
    let view = two(7.0, held, [true, true]);
    assert_eq!(look(&mut old, &view, 7.0).surplus.len(), 128);
    let view = two(8.0, [range(0..=127), PartitionSet::NONE], [true, true]);
    assert_eq!(limit(look(&mut new, &view, 8.0)), Some(128));
    let view = two(9.0, [range(0..=127), range(128..=255)], [true, false]);
    assert!(
        look(&mut new, &view, 9.0).surplus.is_empty(),
        "it has been there"
    );
}

#[test]
fn without_a_broker_for_anybody_shares_are_as_ever() {
    let mut alone = peer(1, 0.0, PartitionSet::NONE);
    alone.able = false;
    let take = look(&mut first(), &leases(0.0, vec![alone]), 0.0).take;
    assert_eq!(take.map(|take| take.limit), Some(256));
    let view = two(0.0, [PartitionSet::NONE; 2], [false, false]);
    for no in [1, 2] {
        let mut one = Ownership::new(Uuid::from_u128(no), LEASE);
        let take = look(&mut one, &view, 0.0).take;
        assert_eq!(take.map(|take| take.limit), Some(128));
    }
}

#[test]
fn who_joins_in_a_hiccup_leaves_no_partition_without_an_owner() {
    let mut old = first();
    let none = PartitionSet::NONE;
    let alone = leases(0.0, vec![peer(1, 0.0, PartitionSet::ALL)]);
    look(&mut old, &alone, 0.0);
    let view = two(1.0, [PartitionSet::ALL, none], [false, false]);
    let plan = look(&mut old, &view, 1.0);
    assert!(plan.surplus.is_empty(), "it is the only one that was able");
    let mut new = Ownership::new(Uuid::from_u128(2), LEASE);
    assert!(look(&mut new, &view, 1.0).stands_by);
    let view = two(2.0, [range(0..=127), none], [false, true]);
    let limit = |plan: Plan| plan.take.map_or(0, |take| take.limit);
    let old = limit(look(&mut old, &view, 2.0));
    assert_eq!((old, limit(look(&mut new, &view, 2.0))), (0, 256));
}

#[test]
fn relays_with_different_leases_agree_who_leaves_its_share() {
    let long = Duration::from_secs(60);
    let mut cut_off = Ownership::new(Uuid::from_u128(1), LEASE);
    let mut other = Ownership::new(Uuid::from_u128(2), long);
    let view = |at: f64, held: PartitionSet| {
        let mut first = peer(1, at, held);
        first.able = at < 1.0;
        let mut second = peer(2, at, range(128..=255));
        second.lease = long;
        leases(at, vec![first, second])
    };
    for at in [0.0, 1.0, 10.0] {
        let view = view(at, range(0..=127));
        assert!(look(&mut cut_off, &view, at).surplus.is_empty());
        assert_eq!(look(&mut other, &view, at).take, None);
    }
    let plan = look(&mut cut_off, &view(16.0, range(0..=127)), 16.0);
    assert_eq!(plan.surplus, range(0..=127));
    let take = look(&mut other, &view(16.1, PartitionSet::NONE), 16.1).take;
    assert_eq!(take.map(|take| take.limit), Some(128));
}
