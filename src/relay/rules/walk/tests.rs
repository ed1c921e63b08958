//! Walks over tables of rows of every kind.

use super::*;

const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);
const INSTANT: Duration = Duration::from_millis(1);

fn at(millis: u64) -> Moment {
    Moment::from_origin(Duration::from_millis(millis))
}

/// A table as the walk sees it: ids, and what became of the rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Row {
    Pending,
    Young,
    Old,
    /// Old, and something refuses its removal.
    Referred,
}

struct Table {
    rows: std::collections::BTreeMap<i64, Row>,
    now: Moment,
    statements: usize,
    /// The server names what is in the way.
    names: bool,
    /// Found to be what cannot be removed.
    passed: Vec<i64>,
}

impl Table {
    fn of(rows: impl IntoIterator<Item = (i64, Row)>) -> Self {
        let (rows, now) = (rows.into_iter().collect(), at(1));
        Self {
            rows,
            now,
            statements: 0,
            names: false,
            passed: Vec::new(),
        }
    }

    /// Refused, perhaps with the row that is in the way.
    fn sweep(&mut self, stretch: Stretch, left_out: &[i64]) -> Result<Swept, Option<i64>> {
        self.statements += 1;
        let range = stretch.after.saturating_add(1)..=stretch.up_to;
        let rows = self.rows.range(range);
        let rows = rows.filter(|(id, _)| !left_out.contains(id));
        let looked: Vec<_> = rows.take(SWEEP_ROWS).collect();
        let referred = looked.iter().find(|(_, row)| **row == Row::Referred);
        if let Some((id, _)) = referred {
            return Err(self.names.then_some(**id));
        }
        let mut swept = Swept {
            looked: looked.len(),
            last: looked.last().map(|(id, _)| **id),
            top: self.rows.keys().next_back().copied().unwrap_or(0),
            ..Swept::default()
        };
        swept.young = looked.iter().any(|(_, row)| **row == Row::Young);
        let old: Vec<i64> = looked
            .iter()
            .filter(|(_, row)| **row == Row::Old)
            .map(|(id, _)| **id)
            .collect();
        swept.removed = old.len();
        self.rows.retain(|id, _| !old.contains(id));
        Ok(swept)
    }

    /// Walks until it rests.
    fn walk(&mut self, walk: &mut Walk) {
        for _ in 0..10_000 {
            self.now = self.now.max(walk.due_at());
            let stretch = walk.stretch(self.now);
            let swept = self.sweep(stretch, &walk.left_out(stretch));
            self.now = self.now + INSTANT;
            match swept {
                Ok(swept) => walk.swept(stretch, &swept, INSTANT, self.now),
                Err(named) => {
                    let passed = walk.refused(stretch, named, INSTANT, self.now);
                    self.passed.extend(passed);
                }
            }
            if walk.due_at() >= self.now + PAUSE[0] {
                return;
            }
        }
        panic!("no rest");
    }
}

fn each(ids: impl IntoIterator<Item = i64>, row: Row) -> impl Iterator<Item = (i64, Row)> {
    ids.into_iter().map(move |id| (id, row))
}

#[test]
fn what_is_old_goes_and_everything_else_stays() {
    let rows = each(1..=5, Row::Pending)
        .chain(each(6..=9_000, Row::Old))
        .chain(each(9_001..=9_010, Row::Pending))
        .chain(each(9_011..=20_000, Row::Old))
        .chain(each(20_001..=25_000, Row::Young));
    let (mut table, mut walk) = (Table::of(rows), Walk::new(WEEK));
    table.walk(&mut walk);
    assert!(table.rows.values().all(|row| *row != Row::Old));
    assert_eq!(table.rows.len(), 15 + 5_000);
    assert!(table.statements < 60, "{}", table.statements);
}

#[test]
fn a_walk_goes_on_where_the_last_one_ended() {
    let young = each(100_001..=110_000, Row::Young);
    let rows = each(1..=3_000, Row::Pending).chain(young);
    let (mut table, mut walk) = (Table::of(rows), Walk::new(WEEK));
    table.walk(&mut walk);
    table.statements = 0;
    for id in 100_001..=100_500 {
        table.rows.insert(id, Row::Old);
    }
    table.walk(&mut walk);
    assert!(
        table.statements <= 2,
        "the pending rows are not met again: {}",
        table.statements
    );
    assert!(!table.rows.contains_key(&100_001));
}

#[test]
fn what_was_pending_when_the_walk_passed_is_found_by_a_later_one() {
    let rows = each([1], Row::Pending).chain(each(2..=50, Row::Old));
    let (mut table, mut walk) = (Table::of(rows), Walk::new(WEEK));
    table.walk(&mut walk);
    table.rows.insert(1, Row::Old);
    table.walk(&mut walk);
    assert!(table.rows.contains_key(&1), "not yet");
    table.now = table.now + ANEW[1];
    table.walk(&mut walk);
    assert!(table.rows.is_empty());
}

#[test]
fn gaps_between_ids_are_passed_in_few_steps() {
    let far = 1_000_000_000_000_i64;
    let rows = each(far..far + 10, Row::Old);
    let (mut table, mut walk) = (Table::of(rows), Walk::new(WEEK));
    table.walk(&mut walk);
    assert!(table.rows.is_empty());
    assert!(table.statements < 60, "{}", table.statements);
    table.rows.extend(each(far + 10..far + 20, Row::Old));
    table.walk(&mut walk);
    assert!(table.rows.is_empty(), "rows written since are met");
}

#[test]
fn rows_that_cannot_be_removed_are_named_and_hold_back_no_other() {
    let rows = each(1..=5_000, Row::Old)
        .chain(each([700, 701, 4_000], Row::Referred))
        .chain(each(5_001..=5_010, Row::Young));
    let (mut table, mut walk) = (Table::of(rows), Walk::new(WEEK));
    for _ in 0..3 {
        table.walk(&mut walk);
    }
    assert_eq!(table.passed, [700, 701, 4_000]);
    assert_eq!(table.rows.len(), 3 + 10);
    assert!(table.statements < 120, "{}", table.statements);
}

#[test]
fn what_the_server_names_takes_one_refusal_and_is_not_tried_again_for_a_day() {
    let referred = (1..=10_000).step_by(100);
    let rows = each(1..=10_000, Row::Old).chain(each(referred.clone(), Row::Referred));
    let mut table = Table::of(rows.chain(each(10_001..=10_010, Row::Young)));
    table.names = true;
    let mut walk = Walk::new(Duration::from_secs(60));
    table.walk(&mut walk);
    assert_eq!(table.passed, referred.collect::<Vec<_>>());
    assert_eq!(table.rows.len(), 100 + 10);
    assert!(table.now < at(60_000), "{:?}", table.now);
    // A walk begins anew every minute.
    table.rows.extend(each(2..=3, Row::Old));
    (table.now, table.statements) = (at(120_000), 0);
    table.walk(&mut walk);
    assert_eq!((table.passed.len(), table.rows.len()), (100, 110));
    assert!(table.statements < 30, "{}", table.statements);
    table.rows.insert(1, Row::Old);
    table.now = at(120_000) + ANEW[1];
    table.walk(&mut walk);
    assert!(!table.rows.contains_key(&1));
}

#[test]
fn those_above_many_that_cannot_be_removed_are_removed_all_the_same() {
    let rows = each((1..=30_000).step_by(100), Row::Referred);
    let mut table = Table::of(rows.chain(each(30_001..=60_000, Row::Old)));
    table.names = true;
    let mut walk = Walk::new(WEEK);
    while table.rows.len() > 300 {
        table.walk(&mut walk);
        assert!(table.now < at(300_000), "{}", table.rows.len());
    }
}

#[test]
fn where_nothing_can_be_removed_the_walk_rests_ever_longer() {
    let mut walk = Walk::new(WEEK);
    let mut rests = Vec::new();
    let mut now = at(1);
    for refusal in 1..=REFUSALS as usize * 600 {
        let stretch = walk.stretch(now);
        walk.refused(stretch, None, INSTANT, now);
        if refusal % REFUSALS as usize == 0 {
            rests.push(now.until(walk.due_at()));
        }
        now = walk.due_at();
    }
    let seconds = |rest: &Duration| rest.as_secs();
    let first: Vec<u64> = rests.iter().take(5).map(seconds).collect();
    assert_eq!(first, [2; 5], "rows are found");
    assert_eq!(rests.last(), Some(&BREATH[1]), "no more are remembered");
}

#[test]
fn what_is_slow_to_remove_is_removed_in_ever_smaller_pieces() {
    let (mut walk, mut now) = (Walk::new(WEEK), at(1));
    let each = Duration::from_millis(80);
    let limit = Duration::from_secs(1);
    for _ in 0..30 {
        let stretch = walk.stretch(now);
        let rows = usize::try_from(stretch.up_to - stretch.after).unwrap();
        let took = (each * u32::try_from(rows).unwrap()).min(limit);
        now = now + took;
        if took == limit {
            assert_eq!(walk.refused(stretch, None, took, now), None);
        } else {
            let swept = Swept {
                looked: rows,
                removed: rows,
                top: i64::MAX,
                last: Some(stretch.up_to),
                ..Swept::default()
            };
            walk.swept(stretch, &swept, took, now);
        }
        assert_eq!(walk.due_at(), now + took * SHARE);
        now = walk.due_at();
    }
    let stretch = walk.stretch(now);
    assert_eq!(stretch.up_to - stretch.after, 1);
    assert!(stretch.after > 20, "it gets on");
}

#[test]
fn a_row_that_somebody_held_is_met_again_soon() {
    let (mut walk, now) = (Walk::new(WEEK), at(1));
    let first = walk.stretch(now);
    let held = Swept {
        looked: 1,
        held: 1,
        top: i64::MAX,
        ..Swept::default()
    };
    walk.swept(first, &held, INSTANT, now);
    assert_eq!(walk.stretch(now).after, first.up_to);
    assert_eq!(walk.stretch(now + ANEW[0]).after, 0);
}

#[test]
fn a_slow_sweep_takes_a_shorter_stretch_and_a_longer_pause() {
    let mut walk = Walk::new(WEEK);
    let now = at(1);
    let nothing = Swept {
        top: i64::MAX,
        ..Swept::default()
    };
    for _ in 0..5 {
        let stretch = walk.stretch(now);
        walk.swept(stretch, &nothing, INSTANT, now);
    }
    let quick = walk.stretch(now);
    assert_eq!(quick.up_to - quick.after, USUAL * 1024);
    let took = Duration::from_millis(200);
    walk.swept(quick, &nothing, took, now);
    let slow = walk.stretch(now);
    assert_eq!(slow.up_to - slow.after, USUAL * 512);
    assert_eq!(walk.due_at(), now + took * SHARE);
}

#[test]
fn a_failed_sweep_is_not_repeated_at_once() {
    let mut walk = Walk::new(Duration::from_secs(60));
    let stretch = walk.stretch(at(1));
    walk.failed(at(1));
    assert_eq!(walk.due_at(), at(1) + PAUSE[0]);
    assert_eq!(walk.stretch(at(2)), stretch);
}
