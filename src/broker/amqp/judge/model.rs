//! A model of lapin's bookkeeping, driven step by step and observed the way `in_flight` does it.

use std::collections::{BTreeMap, VecDeque};

use super::{Answer, Seq};

/// SplitMix64: the same numbers for the same seed on every machine.
pub(super) struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }

    pub(super) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Truth {
    Routed,
    Unroutable,
    Nacked,
}

/// What the thread does next; each is indivisible.
enum Step {
    Return(Seq),
    /// Take the head of the queue and store the answer.
    Store(Seq),
    Wake(Seq),
}

/// lapin's thread, its queue of returns, and the stored answers.
pub(super) struct Lapin {
    pub(super) random: Random,
    pub(super) truths: Vec<Truth>,
    /// Published, and the broker has not decided yet when to answer.
    unanswered: Vec<Seq>,
    steps: VecDeque<Step>,
    returns: VecDeque<Seq>,
    stored: BTreeMap<Seq, (Answer, Option<Seq>)>,
    woken: Vec<Seq>,
}

impl Lapin {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Random(seed),
            truths: Vec::new(),
            unanswered: Vec::new(),
            steps: VecDeque::new(),
            returns: VecDeque::new(),
            stored: BTreeMap::new(),
            woken: Vec::new(),
        }
    }

    pub(super) fn publish(&mut self, seq: Seq, truth: Truth) {
        assert_eq!(self.truths.len() as Seq, seq);
        self.truths.push(truth);
        self.unanswered.push(seq);
    }

    /// The broker answers: the returns of a range of publications, then one frame for all of
    /// them, whose confirms lapin resolves in any order. Or it returns some well before.
    fn broker_answers(&mut self) {
        let Some(last) = self.unanswered.len().checked_sub(1) else {
            return;
        };
        let count = 1 + self.random.below(last.min(30) + 1);
        let from = if self.random.one_in(4) {
            self.random.below(last + 1)
        } else {
            0
        };
        let to = (from + count).min(self.unanswered.len());
        let mut answered: Vec<Seq> = self.unanswered.drain(from..to).collect();
        for &seq in &answered {
            if self.truths[usize::try_from(seq).unwrap()] == Truth::Unroutable {
                self.steps.push_back(Step::Return(seq));
            }
        }
        for place in (1..answered.len()).rev() {
            let other = self.random.below(place + 1);
            answered.swap(place, other);
        }
        for seq in answered {
            self.steps.push_back(Step::Store(seq));
            self.steps.push_back(Step::Wake(seq));
        }
    }

    /// The thread does one thing.
    fn step(&mut self) {
        if self.steps.is_empty() {
            self.broker_answers();
        }
        match self.steps.pop_front() {
            Some(Step::Return(seq)) => self.returns.push_back(seq),
            Some(Step::Store(seq)) => {
                let answer = match self.truths[usize::try_from(seq).unwrap()] {
                    Truth::Routed | Truth::Unroutable => Answer::Ack,
                    Truth::Nacked => Answer::Nack,
                };
                let head = self.returns.pop_front();
                self.stored.insert(seq, (answer, head));
            }
            Some(Step::Wake(seq)) => self.woken.push(seq),
            None => {}
        }
    }

    pub(super) fn run_a_little(&mut self) {
        for _ in 0..self.random.below(4) {
            self.step();
        }
    }
}

/// What a round of looking found, in the order of looking.
pub(super) type Found = Vec<(Seq, Answer, Option<Seq>)>;

/// Looks at everything woken until nothing is, while the thread goes on.
pub(super) fn look(lapin: &mut Lapin) -> Found {
    let mut found = Vec::new();
    loop {
        let mut batch = std::mem::take(&mut lapin.woken);
        if batch.is_empty() {
            return found;
        }
        // A waiter is looked at without having been woken: the answer may be there already.
        if lapin.random.one_in(3) && !lapin.truths.is_empty() {
            batch.push(lapin.random.below(lapin.truths.len()) as Seq);
        }
        for seq in batch {
            lapin.run_a_little();
            if let Some((answer, carried)) = lapin.stored.remove(&seq) {
                found.push((seq, answer, carried));
            }
        }
    }
}
