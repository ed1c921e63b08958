//! The rule against a model of lapin, and against rules that are almost right.

use std::collections::BTreeMap;

use super::model::{Found, Lapin, Truth, look};
use super::*;

fn id(seq: Seq) -> RowId {
    RowId(i64::try_from(seq).unwrap() * 3)
}

fn returned(seq: Option<Seq>) -> Option<Return> {
    seq.map(|seq| Return {
        id: Some(id(seq)),
        code: 312,
        text: "NO_ROUTE".into(),
    })
}

/// Reads a round's findings; the difference between the rule and its mutants.
type Reading = fn(&mut Judge, Found);

fn by_the_rule(judge: &mut Judge, found: Found) {
    for (seq, answer, carried) in found {
        judge.answered(seq, answer, returned(carried)).unwrap();
    }
    judge.end_round();
}

/// Mutant: believes that a confirm carries its own return or none.
fn naively(judge: &mut Judge, found: Found) {
    for (seq, answer, carried) in found {
        judge
            .answered(seq, answer, returned(carried.map(|_| seq)))
            .unwrap();
    }
    judge.end_round();
}

/// Mutant: does not wait for the rest of the round.
fn at_once(judge: &mut Judge, found: Found) {
    for (seq, answer, carried) in found {
        // Its return may come when the publication is closed already.
        let _ = judge.answered(seq, answer, returned(carried));
        judge.end_round();
    }
}

/// Mutant: takes any plain answer of the same round for a later one.
fn plain_counts_as_later(judge: &mut Judge, found: Found) {
    let (plain, carrying): (Vec<_>, Vec<_>) = found.into_iter().partition(|f| f.2.is_none());
    for group in [carrying, plain] {
        for (seq, answer, carried) in group {
            let _ = judge.answered(seq, answer, returned(carried));
        }
        judge.end_round();
    }
}

#[derive(Default)]
struct Tally {
    wrong: usize,
    judged: usize,
    carried_for_another: usize,
}

/// One channel: publishes with a sliding window, is observed, ends by running empty or by being
/// lost.
struct Life {
    lapin: Lapin,
    judge: Judge,
    window: usize,
    total: usize,
    published: usize,
    /// `None` for unknown.
    fates: BTreeMap<RowId, Option<Outcome>>,
    tally: Tally,
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut lapin = Lapin::new(seed);
        Self {
            window: 1 + lapin.random.below(60),
            total: 200 + lapin.random.below(300),
            lapin,
            judge: Judge::default(),
            published: 0,
            fates: BTreeMap::new(),
            tally: Tally::default(),
        }
    }

    fn fill_window(&mut self, unroutable_percent: usize) {
        let now = Instant::now();
        while self.published < self.total
            && self.judge.open() < self.window
            && !self.lapin.random.one_in(8)
        {
            let truth = match self.lapin.random.below(100) {
                n if n < unroutable_percent => Truth::Unroutable,
                n if n < unroutable_percent + 3 => Truth::Nacked,
                _ => Truth::Routed,
            };
            let seq = self.judge.published(id(self.published as Seq), now);
            self.lapin.publish(seq, truth);
            self.published += 1;
        }
    }

    fn report(&mut self, unknown: Vec<RowId>) {
        for (id, outcome) in self.judge.take_judged() {
            let before = self.fates.insert(id, Some(outcome));
            assert!(before.is_none(), "{id} judged twice");
        }
        for id in unknown {
            let before = self.fates.insert(id, None);
            assert!(before.is_none(), "{id} judged and unknown");
        }
    }

    fn live(mut self, unroutable_percent: usize, reading: Reading) -> Tally {
        let lost_at = self.lapin.random.below(2 * self.total);
        for turn in 0.. {
            self.fill_window(unroutable_percent);
            self.lapin.run_a_little();
            let found = look(&mut self.lapin);
            let strangers = found.iter().filter(|f| f.2.is_some_and(|z| z != f.0));
            self.tally.carried_for_another += strangers.count();
            reading(&mut self.judge, found);
            let lost = turn == lost_at;
            let unknown = if lost { self.judge.lost() } else { Vec::new() };
            self.report(unknown);
            if lost || (self.published == self.total && self.judge.open() == 0) {
                break;
            }
        }
        self.count()
    }

    fn count(mut self) -> Tally {
        assert_eq!(self.fates.len(), self.published, "each is reported once");
        for (id, fate) in self.fates {
            let truth = self.lapin.truths[usize::try_from(id.0 / 3).unwrap()];
            let right = match &fate {
                None => continue,
                Some(Outcome::Confirmed(_)) => truth == Truth::Routed,
                Some(Outcome::Returned { .. }) => truth == Truth::Unroutable,
                Some(Outcome::Nacked) => truth == Truth::Nacked,
            };
            self.tally.judged += 1;
            self.tally.wrong += usize::from(!right);
        }
        self.tally
    }
}

fn many_lives(reading: Reading) -> Tally {
    let mut sum = Tally::default();
    for seed in 0..600 {
        let unroutable_percent = [1, 5, 30, 90][usize::try_from(seed % 4).unwrap()];
        let tally = Life::new(seed).live(unroutable_percent, reading);
        sum.wrong += tally.wrong;
        sum.judged += tally.judged;
        sum.carried_for_another += tally.carried_for_another;
    }
    sum
}

#[test]
fn the_rule_is_never_wrong() {
    let sum = many_lives(by_the_rule);
    assert_eq!(sum.wrong, 0, "of {} judged", sum.judged);
    assert!(sum.judged > 100_000, "{} judged", sum.judged);
    assert!(
        sum.carried_for_another > 5_000,
        "the model mixes returns up"
    );
}

#[test]
fn the_naive_reading_is_caught() {
    let sum = many_lives(naively);
    assert!(sum.wrong > 1_000, "{} of {} wrong", sum.wrong, sum.judged);
}

#[test]
fn judging_before_the_round_is_complete_is_caught() {
    let sum = many_lives(at_once);
    assert!(sum.wrong > 0, "{} of {} wrong", sum.wrong, sum.judged);
}

#[test]
fn taking_any_plain_answer_for_a_later_one_is_caught() {
    let sum = many_lives(plain_counts_as_later);
    assert!(sum.wrong > 100, "{} of {} wrong", sum.wrong, sum.judged);
}

fn judge_of(ids: &[i64]) -> Judge {
    let mut judge = Judge::default();
    for &id in ids {
        judge.published(RowId(id), Instant::now());
    }
    judge
}

fn of(id: i64) -> Option<Return> {
    Some(Return {
        id: Some(RowId(id)),
        code: 312,
        text: "NO_ROUTE".into(),
    })
}

fn confirmed() -> Outcome {
    Outcome::Confirmed(Confirmed::proven())
}

fn no_route() -> Outcome {
    Outcome::Returned {
        code: 312,
        text: "NO_ROUTE".into(),
    }
}

#[test]
fn a_suspect_is_open_until_the_queue_was_seen_empty_later() {
    let mut judge = judge_of(&[7, 8, 9, 10]);
    judge.answered(0, Answer::Ack, of(8)).unwrap();
    judge.end_round();
    assert_eq!(judge.take_judged(), []);
    assert!(judge.oldest_waiting().is_some());
    judge.answered(1, Answer::Ack, of(7)).unwrap();
    judge.end_round();
    assert_eq!(
        judge.take_judged(),
        [(RowId(8), no_route()), (RowId(7), no_route())]
    );

    judge.answered(2, Answer::Ack, of(10)).unwrap();
    judge.end_round();
    assert_eq!(judge.take_judged(), []);
    judge.answered(3, Answer::Ack, None).unwrap();
    judge.end_round();
    assert_eq!(
        judge.take_judged(),
        [(RowId(10), no_route()), (RowId(9), confirmed())]
    );
    assert_eq!(judge.open(), 0);
}

#[test]
fn a_suspect_is_certain_once_everything_is_answered() {
    let mut judge = judge_of(&[7, 8]);
    judge.answered(0, Answer::Ack, of(8)).unwrap();
    judge.answered(1, Answer::Nack, of(7)).unwrap();
    judge.end_round();
    let mut judged = judge.take_judged();
    judged.sort_by_key(|(id, _)| *id);
    assert_eq!(judged, [(RowId(7), no_route()), (RowId(8), no_route())]);
}

#[test]
fn a_return_of_nobody_stops_the_judging() {
    let mut judge = judge_of(&[7, 8]);
    assert_eq!(
        judge.answered(0, Answer::Ack, of(99)),
        Err(Stray(Some(RowId(99))))
    );
    assert_eq!(judge.lost(), [RowId(7), RowId(8)]);
    assert_eq!(judge.take_judged(), []);
}

#[test]
fn a_lost_channel_reports_what_is_certain_and_the_rest_in_order() {
    let mut judge = judge_of(&[5, 6, 7, 8, 9]);
    judge.answered(3, Answer::Ack, of(6)).unwrap();
    judge.answered(2, Answer::Nack, of(8)).unwrap();
    judge.end_round();
    assert_eq!(judge.lost(), [RowId(5), RowId(9)]);
    let mut judged = judge.take_judged();
    judged.sort_by_key(|(id, _)| *id);
    assert_eq!(
        judged,
        [
            (RowId(6), no_route()),
            (RowId(7), Outcome::Nacked),
            (RowId(8), no_route())
        ]
    );
    assert_eq!(judge.open(), 0);
}

#[test]
fn silence_is_told_apart_by_what_was_answered_after_it() {
    let mut judge = judge_of(&[1, 2, 3]);
    judge.answered(0, Answer::Ack, None).unwrap();
    judge.end_round();
    assert!(!judge.later_answered());
    judge.answered(2, Answer::Ack, None).unwrap();
    judge.end_round();
    assert!(judge.later_answered());
    assert_eq!(judge.lost(), [RowId(2)]);
}

#[test]
fn one_row_published_twice_is_never_called_sent_for_a_return_that_was_read() {
    let mut judge = judge_of(&[7, 7]);
    judge.answered(0, Answer::Ack, of(7)).unwrap();
    judge.answered(1, Answer::Ack, of(7)).unwrap();
    judge.end_round();
    assert_eq!(
        judge.take_judged(),
        [(RowId(7), no_route()), (RowId(7), no_route())]
    );
}
