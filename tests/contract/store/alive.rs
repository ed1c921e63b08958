//! Signs of life: written, renewed, taken back, and never in anybody's way.

use std::time::Duration;

use outbox_relay::relay::rules::{HeldBack, Unwritten, Withheld};
use outbox_relay::store::{Announcement, Settler};
use uuid::Uuid;

use super::{Stage, settler, suite};

suite!(
    a_sign_of_life_is_written_and_renewed,
    a_relay_that_stops_takes_back_its_own_sign_only,
);

pub fn sign(instance: u128) -> Announcement {
    Announcement {
        instance: Uuid::from_u128(instance),
        name: "pod:7".to_owned(),
        version: "0.1.0".to_owned(),
        ready: true,
        waits_for: None,
        database: ("connected".to_owned(), String::new()),
        broker: ("connected".to_owned(), String::new()),
        last_confirm: None,
        lease: Duration::from_secs(15),
        partitions: 256,
        held_back: Vec::new(),
    }
}

fn refusing() -> HeldBack {
    HeldBack {
        what: Withheld::Destination {
            exchange: "orders".to_owned(),
            routing_key: Some("eu \"quoted\"".to_owned()),
            tried_by: Some(7),
        },
        for_seconds: 9,
        why: "404 NOT_FOUND".to_owned(),
    }
}

fn unmarked() -> HeldBack {
    HeldBack {
        what: Withheld::Unmarked {
            fate: Unwritten::Sent,
            ids: vec![1, 2],
            rows: 2,
        },
        for_seconds: 8,
        why: "locked".to_owned(),
    }
}

async fn a_sign_of_life_is_written_and_renewed<S: Stage>(stage: &S) {
    let mut settler = settler(stage).await;
    assert!(settler.announce(&sign(1)).await.expect("written"));
    let told = Announcement {
        ready: false,
        waits_for: Some("broker blocked: memory".to_owned()),
        broker: ("blocked".to_owned(), "memory".to_owned()),
        last_confirm: Some(Duration::from_secs(90)),
        lease: Duration::from_millis(2_500),
        partitions: 3,
        held_back: vec![refusing(), unmarked()],
        ..sign(1)
    };
    settler.announce(&told).await.expect("renewed");
    let mut alive = stage.alive().await;
    assert_eq!(alive.len(), 1);
    let found = alive.remove(0);
    let ago = found.last_confirm.expect("known").as_secs();
    assert!((90..180).contains(&ago), "{ago}");
    let expected = Announcement {
        last_confirm: found.last_confirm,
        ..told
    };
    assert_eq!(found, expected);
}

async fn a_relay_that_stops_takes_back_its_own_sign_only<S: Stage>(stage: &S) {
    let mut settler = settler(stage).await;
    assert!(settler.announce(&sign(1)).await.expect("written"));
    settler.announce(&sign(2)).await.expect("written");
    settler.withdraw().await.expect("taken back");
    settler.withdraw().await.expect("harmless");
    let alive = stage.alive().await;
    let alive: Vec<_> = alive.iter().map(|sign| sign.instance).collect();
    assert_eq!(alive, [sign(2).instance]);
}
