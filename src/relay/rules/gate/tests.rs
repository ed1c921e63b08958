//! Who passes a gate, who knocks, and who is held back.

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(60);

fn row(id: i64, seconds: u64) -> Traveller {
    let now = Moment::ORIGIN + SECOND * u32::try_from(seconds).unwrap();
    Traveller {
        id: RowId(id),
        waiting_since: Moment::ORIGIN,
        convict: false,
        now,
    }
}

fn refuse(gates: &mut Gates, row: Traveller) -> Refused {
    let sign = Sign {
        exchange: "orders".to_owned(),
        routing_key: Some("eu".to_owned()),
        why: "404".to_owned(),
    };
    gates.refused(7, row, PATIENCE, sign, |failures| SECOND * failures)
}

#[test]
fn one_row_knocks_and_the_others_are_held_back() {
    let mut gates = Gates::default();
    let next = Moment::ORIGIN + SECOND;
    assert_eq!(refuse(&mut gates, row(3, 0)), Refused::KnockAgain(next));
    assert_eq!(refuse(&mut gates, row(4, 0)), Refused::HeldBack);
    assert_eq!(gates.passage([1, 7], row(3, 0)), Passage::Probe(next));
    assert_eq!(gates.passage([1, 7], row(5, 0)), Passage::Shut);
    assert_eq!(gates.passage([1, 2], row(5, 0)), Passage::Free);
    let told = HeldBack {
        what: Withheld::Destination {
            exchange: "orders".to_owned(),
            routing_key: Some("eu".to_owned()),
            tried_by: Some(3),
        },
        for_seconds: 9,
        why: "404".to_owned(),
    };
    assert_eq!(gates.held_back(row(3, 9).now), [told]);
    gates.shelve([1, 7], 5);
    gates.shelve([1, 7], 4);
    assert_eq!(gates.passed(7).and_then(|gate| gate.shelved_from), Some(4));
    assert_eq!(gates.closed(), 0);
}

#[test]
fn a_gate_without_a_probe_takes_the_next_row_as_one() {
    let mut gates = Gates::default();
    refuse(&mut gates, row(3, 0));
    gates.shelve([1, 7], 8);
    assert_eq!(gates.withdrew([1, 7], RowId(3)), Some(8));
    let next = Moment::ORIGIN + SECOND;
    assert_eq!(gates.passage([1, 7], row(8, 0)), Passage::Probe(next));
    assert_eq!(gates.passage([1, 7], row(9, 0)), Passage::Shut);
}

#[test]
fn where_a_connection_was_lost_the_next_row_knocks_at_its_time_though_nobody_waited() {
    let mut gates = Gates::default();
    let next = Moment::ORIGIN + SECOND;
    refuse(&mut gates, row(3, 0));
    gates.has_cost(7, Solitude::Connection);
    assert_eq!(gates.withdrew([1, 7], RowId(3)), None);
    assert!(gates.closed.contains_key(&7));
    assert_eq!(gates.closed(), 0, "to nobody");
    assert_eq!(gates.held_back(row(3, 1).now), []);
    assert_eq!(gates.passage([1, 7], row(8, 0)), Passage::Probe(next));
    for id in [8, 9] {
        let cost = gates.cost_of_passing([1, 7], RowId(id));
        assert_eq!(cost, Some(Solitude::Connection), "whoever passes");
    }
    assert_eq!(gates.closed(), 1);
    gates.withdrew([1, 7], RowId(8));
    assert_eq!(gates.expire(row(8, 119).now), None);
    assert!(gates.closed.contains_key(&7));
    assert_eq!(gates.expire(row(8, 120).now), None);
    assert!(!gates.closed.contains_key(&7), "nobody came for long");
}

#[test]
fn a_barred_gate_lets_nobody_knock_and_remembers_from_where_on_rows_wait() {
    let pause = |exchange: Option<&str>| Pause {
        exchange: exchange.map(str::to_owned),
        by: "ann".to_owned(),
        reason: "deploy".to_owned(),
    };
    let mut gates = Gates::default();
    let [orders, others] = [gates_of("orders", "q"), gates_of("others", "q")];
    assert_eq!(gates.bar(&[pause(Some("orders"))]), None);
    assert_eq!(gates.passage(orders, row(3, 0)), Passage::Shut);
    assert_eq!(gates.passage(others, row(4, 0)), Passage::Free);
    gates.shelve(orders, 3);
    assert_eq!(gates.bar(&[pause(Some("orders")), pause(None)]), None);
    assert_eq!(gates.passage(others, row(4, 0)), Passage::Shut);
    gates.shelve(others, 4);
    assert_eq!(gates.bar(&[pause(Some("orders"))]), Some(4));
    assert_eq!(gates.passage(others, row(4, 0)), Passage::Free);
    assert_eq!(gates.passage(orders, row(3, 0)), Passage::Shut);
    assert_eq!(gates.bar(&[]), Some(3));
    assert_eq!(gates.passage(orders, row(3, 0)), Passage::Free);
}

#[test]
fn when_patience_is_over_rows_that_waited_as_long_are_given_up_and_no_others() {
    let mut gates = Gates::default();
    refuse(&mut gates, row(3, 0));
    gates.shelve([1, 7], 4);
    assert_eq!(gates.expire(row(3, 59).now), None);
    assert_eq!(gates.expire(row(3, 60).now), Some(4));
    assert_eq!(gates.expire(row(3, 61).now), None, "only once");
    assert_eq!(gates.passage([1, 7], row(4, 61)), Passage::Free);
    assert_eq!(refuse(&mut gates, row(4, 61)), Refused::GivenUp);
    let young = Traveller {
        waiting_since: row(9, 30).now,
        ..row(9, 61)
    };
    assert_eq!(gates.passage([1, 7], young), Passage::Shut);
    assert_eq!(refuse(&mut gates, young), Refused::HeldBack);
}

#[test]
fn of_many_closed_gates_those_that_are_closed_for_longest_are_told() {
    let mut gates = Gates::default();
    for id in 0..1_100 {
        let row = row(id, u64::try_from(id).unwrap());
        let sign = Sign {
            why: id.to_string(),
            ..Sign::default()
        };
        gates.refused(row.id.0.unsigned_abs(), row, PATIENCE, sign, |_| SECOND);
    }
    let told = gates.held_back(row(0, 2_000).now);
    assert_eq!((told.len(), told[0].for_seconds), (21, 2_000));
    assert_eq!(told[20].what, Withheld::Others { others: 1_080 });
    assert_eq!(told[0].why, "0");
    let signed = gates.closed.values().filter(|closed| closed.sign.is_some());
    assert_eq!(signed.count(), SIGNS);
}
