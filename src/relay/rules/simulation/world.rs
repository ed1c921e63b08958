//! The world around the rules: writers, a database, a broker, a network, and time.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use super::broker::Broker;
use super::checks::{Checks, Written};
use super::dice::Dice;
use super::writers::Writer;
use crate::broker::ChannelLost;
use crate::message::{RowId, Rules};
use crate::relay::rules::{
    ChannelNo, Fetched, Flow, FlowLimits, PartitionSet, Pause, Reading, Request, SettleReport,
    Settlement,
};
use crate::runtime::{Jitter, Moment, RetryPolicy};
use crate::store::memory::Table;

const CHANNELS: usize = 2;

/// Work on its way to the reading connection and back.
pub(super) enum Errand {
    Asked(Request),
    Read(Reading),
    Fetched(Vec<(RowId, Fetched)>),
}

/// A batch on its way to the settling connection and back.
pub(super) enum Settling {
    Asked(Vec<Settlement>),
    Done(Vec<Settlement>, SettleReport),
}

/// Everything.
pub(super) struct World {
    pub(super) flow: Flow,
    pub(super) table: Table,
    pub(super) broker: Broker,
    pub(super) checks: Checks,
    pub(super) now: Moment,
    pub(super) seed: u64,
    pub(super) errand: Option<Errand>,
    pub(super) settling: Option<Settling>,
    pub(super) to_settle: VecDeque<Settlement>,
    pub(super) questions: VecDeque<String>,
    pub(super) writers: Vec<Writer>,
    /// Keys whose lock a writer holds.
    pub(super) locked_keys: HashMap<String, u64>,
    pub(super) calm: bool,
    /// What the relay was last told is paused.
    heard: Vec<Pause>,
    /// Rows that an operator decided about: others of their key may go on.
    pub(super) decided: HashSet<RowId>,
}

/// In every second run rows behind a quarantined one wait. A relay that is started after a crash
/// has the same configuration: crashes change seeds by an even number.
fn successors_wait(seed: u64) -> bool {
    seed % 2 == 1
}

pub(super) fn new_flow(seed: u64) -> Flow {
    let limits = FlowLimits {
        batch_size: 5,
        max_in_flight: 6,
        channels: CHANNELS,
        max_buffered_bytes: 9_000,
        poll_interval: Duration::from_secs(1),
        // Never: it would mend what the rules must not break.
        sweep_interval: Duration::from_secs(86_400),
        ordered: true,
        retry: RetryPolicy::new(Duration::from_millis(200), 2.0, Duration::from_secs(5), 0.2),
        max_attempts: 3,
        unroutable_after: Duration::from_secs(20),
        destination_after: Duration::from_secs(40),
        successors_wait: successors_wait(seed),
    };
    let rules = Rules {
        max_message_size: 7_000,
        frame_max: 131_072,
        mandatory: true,
        optional_exchanges: Vec::new(),
        allowed_exchanges: vec!["*".to_owned()],
        default_content_type: "application/json",
        login: None,
    };
    let mut flow = Flow::new(limits, rules, Jitter::seeded(seed));
    flow.own(PartitionSet::ALL);
    flow.reader_ready("application/json");
    flow.settler(true);
    flow
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut table = Table::default();
        table.max_message_size = 7_000;
        table.successors_wait = successors_wait(seed);
        Self {
            flow: new_flow(seed),
            table,
            broker: Broker::new(CHANNELS + 1),
            checks: Checks::default(),
            now: Moment::ORIGIN,
            seed,
            errand: None,
            settling: None,
            to_settle: VecDeque::new(),
            questions: VecDeque::new(),
            writers: Vec::new(),
            locked_keys: HashMap::new(),
            calm: false,
            heard: Vec::new(),
            decided: HashSet::new(),
        }
    }

    /// One thing happens.
    pub(super) fn step(&mut self, dice: &mut Dice) {
        match dice.below(100) {
            0..=11 => self.write(dice),
            12..=19 => self.end_transaction(dice),
            20..=39 => self.run_errand(),
            40..=54 => self.broker_works(dice),
            55..=69 => self.hear(dice),
            70..=81 => self.settle(),
            82..=86 => self.reconnect(dice),
            87..=91 => self.pass_time(dice),
            92 => self.answer(),
            93..=97 => {
                self.answer();
                self.reconnect(dice);
            }
            _ => self.misfortune(dice),
        }
        self.pump();
        self.look();
    }

    /// Does what the rules decided.
    fn pump(&mut self) {
        for (channel, batch) in self.flow.publications(self.now) {
            for publication in &batch {
                let exchange = publication.exchange().as_str();
                let stops = |pause: &Pause| pause.exchange.as_deref().is_none_or(|e| e == exchange);
                let paused = self.heard.iter().any(stops);
                assert!(
                    !paused,
                    "row {} was published while paused",
                    publication.id()
                );
            }
            self.broker.send(channel.0, batch);
        }
        self.to_settle.extend(self.flow.take_settlements());
        self.questions.extend(self.flow.take_questions());
        if let Some(request) = self.flow.next_read(self.now) {
            assert!(self.errand.is_none(), "two errands at once");
            self.errand = Some(Errand::Asked(request));
        }
    }

    fn look(&mut self) {
        let table = &self.table;
        let decided = &self.decided;
        self.checks.look(&self.broker.delivered, |id| {
            let waits = table.successors_wait && !decided.contains(&id);
            table.quarantined.contains_key(&id.0) && !waits || decided.contains(&id)
        });
    }

    /// A request reaches the database, or its answer the relay.
    fn run_errand(&mut self) {
        self.errand = match self.errand.take() {
            Some(Errand::Asked(Request::Read(request))) => {
                Some(Errand::Read(self.table.read(&request)))
            }
            Some(Errand::Asked(Request::Fetch { ids, room })) => {
                Some(Errand::Fetched(self.table.fetch(&ids, room)))
            }
            Some(Errand::Read(reading)) => {
                self.heard.clone_from(&reading.pauses);
                self.flow.took_in(reading, self.now);
                None
            }
            Some(Errand::Fetched(bodies)) => {
                self.flow.fetched(bodies);
                None
            }
            None => None,
        };
    }

    fn broker_works(&mut self, dice: &mut Dice) {
        let no = dice.below(self.broker.channels());
        for _ in 0..=dice.below(4) {
            if let Some(lost) = self.broker.work(no) {
                self.lose(no, lost);
                return;
            }
        }
    }

    pub(super) fn lose(&mut self, no: usize, lost: ChannelLost) {
        for id in &lost.unknown {
            self.checks.doubt(*id);
        }
        self.flow.lost(ChannelNo(no), lost, self.now);
    }

    /// Confirms, returns and refusals arrive.
    fn hear(&mut self, dice: &mut Dice) {
        let no = dice.below(self.broker.channels());
        let heard: Vec<_> = (0..=dice.below(5))
            .filter_map(|_| self.broker.report(no, dice))
            .collect();
        self.flow.judged(ChannelNo(no), heard, self.now);
    }

    /// A batch reaches the database, or the report the relay.
    fn settle(&mut self) {
        self.settling = match self.settling.take() {
            Some(Settling::Asked(batch)) => {
                let report = self.table.settle(&batch);
                Some(Settling::Done(batch, report))
            }
            Some(Settling::Done(batch, report)) => {
                self.flow.settled(&report);
                let again = batch
                    .into_iter()
                    .filter(|s| report.locked.contains(&s.ticket));
                self.to_settle.extend(again);
                None
            }
            None if self.to_settle.is_empty() => None,
            None => Some(Settling::Asked(self.to_settle.drain(..).collect())),
        };
    }

    fn answer(&mut self) {
        if let Some(exchange) = self.questions.pop_front() {
            let exists = !self.broker.missing.contains(&exchange);
            self.flow.exchange_answered(&exchange, exists, self.now);
        }
    }

    fn reconnect(&mut self, dice: &mut Dice) {
        if !self.broker.linked {
            self.broker.linked = true;
            self.flow.link_up(131_072);
        }
        let no = dice.below(self.broker.channels());
        if self.broker.open(no) {
            self.flow.channel_open(ChannelNo(no));
        }
    }

    fn pass_time(&mut self, dice: &mut Dice) {
        let by = Duration::from_millis(dice.next() % 700);
        self.now = self.now + by;
        self.table.advance(by);
        let no = dice.below(self.broker.channels());
        if dice.once_in(8)
            && let Some(lost) = self.broker.time_out(no)
        {
            self.lose(no, lost);
        }
    }

    /// No more misfortune. What the world does not refuse must arrive while it still refuses the
    /// rest; then it refuses nothing, and everything must arrive.
    pub(super) fn finish(&mut self, dice: &mut Dice) {
        self.calm = true;
        while !self.writers.is_empty() {
            self.end_transaction(dice);
        }
        let locked: Vec<RowId> = self
            .table
            .rows()
            .filter(|row| row.locked)
            .map(|row| row.row.id)
            .collect();
        for id in locked {
            if let Some(row) = self.table.row_mut(id) {
                row.locked = false;
            }
        }
        self.broker.missing.remove("events");
        self.table.pauses.clear();
        let untroubled = self.checks.untroubled_keys();
        self.settle_down(dice, |world| world.missing(&untroubled).is_empty());
        self.check_arrival("P6", &untroubled);
        self.broker.missing.clear();
        self.broker.unbound.clear();
        self.broker.full.clear();
        self.broker.silent.clear();
        self.settle_down(dice, |world| world.unmarked() == 0);
        self.check_arrival("P1", &|_: &Written| true);
        assert_eq!(self.unmarked(), 0, "P1: rows arrived and were never marked");
    }

    fn unmarked(&self) -> usize {
        let unmarked = self.table.rows().filter(|row| row.sent_at.is_none());
        unmarked.count()
    }

    fn missing(&self, expected: &impl Fn(&Written) -> bool) -> Vec<RowId> {
        let quarantined =
            |id: RowId| self.table.quarantined.contains_key(&id.0) || self.decided.contains(&id);
        self.checks.missing(quarantined, expected)
    }

    fn check_arrival(&self, promise: &str, expected: &impl Fn(&Written) -> bool) {
        let missing = self.missing(expected);
        let state = self.flow.describe();
        assert!(
            missing.is_empty(),
            "{promise}: rows {missing:?} did not arrive\n{state}\n{:?}",
            self.table
                .rows()
                .filter(|row| row.sent_at.is_none())
                .collect::<Vec<_>>()
        );
    }

    /// Lets time pass in which every part does its work, until that is enough, or far too much
    /// time has passed.
    fn settle_down(&mut self, dice: &mut Dice, enough: impl Fn(&Self) -> bool) {
        for round in 0..1500 {
            self.reconnect(dice);
            self.answer();
            self.run_errand();
            self.broker_works(dice);
            self.hear(dice);
            self.settle();
            self.decide(dice);
            self.pass_time(dice);
            self.pump();
            self.look();
            if round % 50 == 0 && enough(self) {
                break;
            }
        }
    }
}
