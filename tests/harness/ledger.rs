//! The ledger sees what it is there to see.

use crate::support::checker::Ledger;

#[test]
fn a_clean_run_is_clean() {
    let ledger = Ledger::default();
    ledger.committed("a", Some(("k", 1)));
    ledger.committed("b", Some(("k", 2)));
    ledger.rolled_back("c");
    for id in ["a", "b", "a"] {
        ledger.delivered(id);
    }
    let report = ledger.report();
    report.assert_clean();
    assert_eq!((report.committed, report.delivered), (2, 2));
    assert_eq!((report.duplicates, report.rolled_back), (1, 1));
}

#[test]
fn a_message_that_never_arrives_is_lost() {
    let ledger = Ledger::default();
    ledger.committed("a", None);
    assert_eq!(ledger.report().lost, ["a"]);
    assert!(!ledger.report().is_clean());
}

#[test]
fn what_was_rolled_back_or_never_written_is_a_ghost() {
    let ledger = Ledger::default();
    ledger.rolled_back("a");
    ledger.delivered("a");
    ledger.delivered("b");
    assert_eq!(ledger.report().ghosts, ["a", "b"]);
}

#[test]
fn a_message_may_arrive_before_its_writer_knows_of_the_commit() {
    let ledger = Ledger::default();
    ledger.delivered("a");
    ledger.committed("a", None);
    ledger.report().assert_clean();
}

#[test]
fn an_unknown_commit_is_neither_lost_nor_a_ghost() {
    let ledger = Ledger::default();
    ledger.unknown("a");
    ledger.unknown("b");
    ledger.delivered("a");
    ledger.report().assert_clean();
}

#[test]
fn order_is_judged_per_key_and_by_first_deliveries_only() {
    let ledger = Ledger::default();
    for (id, key, place) in [
        ("a1", "a", 1),
        ("b1", "b", 2),
        ("a2", "a", 3),
        ("b2", "b", 4),
    ] {
        ledger.committed(id, Some((key, place)));
    }
    for id in ["b1", "a1", "b2", "b1", "a2"] {
        ledger.delivered(id);
    }
    ledger.report().assert_clean();

    let ledger = Ledger::default();
    for (id, place) in [("one", 1), ("two", 2), ("three", 3)] {
        ledger.committed(id, Some(("k", place)));
    }
    for id in ["two", "three", "one"] {
        ledger.delivered(id);
    }
    let report = ledger.report();
    assert_eq!(report.disordered.len(), 1);
    assert_eq!(report.disordered[0].earlier, "one");
}

#[test]
fn of_a_first_delivery_that_nobody_saw_the_order_is_not_judged() {
    let ledger = Ledger::default();
    for (place, id) in (1..).zip(["a", "b", "c"]) {
        ledger.committed(id, Some(("k", place)));
    }
    ledger.delivered("c");
    assert!(!ledger.redelivered("a"));
    assert!(ledger.redelivered("c"));
    assert_eq!(ledger.report().disordered, []);
    ledger.delivered("b");
    assert_eq!(ledger.report().disordered.len(), 1);
}
