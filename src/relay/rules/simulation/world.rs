//! The world around the rules: writers, a database, a broker, a network, and time.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::broker::Broker;
use super::checks::{Checks, Written};
use super::dice::Dice;
use crate::broker::ChannelLost;
use crate::message::{Body, OutboxRow, RowId, Rules};
use crate::relay::rules::{
    ChannelNo, Fetched, Flow, FlowLimits, PartitionSet, Reading, Request, SettleReport, Settlement,
    Ticket, Verdict,
};
use crate::runtime::{Jitter, Moment, RetryPolicy};
use crate::store::memory::Table;

const CHANNELS: usize = 2;

/// Work on its way to the reading connection and back.
enum Errand {
    Asked(Request),
    Read(Reading),
    Fetched(Vec<(RowId, Fetched)>),
}

/// A batch on its way to the settling connection and back.
enum Settling {
    Asked(Vec<Settlement>),
    Done(Vec<Settlement>, SettleReport),
}

struct Writer {
    xid: u64,
    rows: Vec<(RowId, Written)>,
}

/// Everything.
pub(super) struct World {
    flow: Flow,
    table: Table,
    broker: Broker,
    checks: Checks,
    now: Moment,
    seed: u64,
    errand: Option<Errand>,
    settling: Option<Settling>,
    to_settle: VecDeque<Settlement>,
    questions: VecDeque<String>,
    writers: Vec<Writer>,
    /// Keys whose lock a writer holds.
    locked_keys: HashMap<String, u64>,
    calm: bool,
}

fn new_flow(seed: u64) -> Flow {
    let limits = FlowLimits {
        batch_size: 5,
        max_in_flight: 6,
        channels: CHANNELS,
        max_buffered_bytes: 9_000,
        poll_interval: Duration::from_secs(1),
        ordered: true,
        retry: RetryPolicy::new(Duration::from_millis(200), 2.0, Duration::from_secs(5), 0.2),
        max_attempts: 3,
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
        Self {
            flow: new_flow(seed),
            table,
            broker: Broker::new(CHANNELS),
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
        self.checks.look(&self.broker.delivered, |id| {
            table.quarantined.contains_key(&id.0)
        });
    }

    fn write(&mut self, dice: &mut Dice) {
        if self.writers.is_empty() || (self.writers.len() < 4 && dice.once_in(3)) {
            let xid = self.table.begin();
            self.writers.push(Writer {
                xid,
                rows: Vec::new(),
            });
        }
        let place = dice.below(self.writers.len());
        let xid = self.writers[place].xid;
        let key = (!dice.once_in(4)).then(|| format!("k{}", dice.below(6)));
        if let Some(key) = &key {
            // The key's row lock serialises its writers until their transaction ends.
            if *self.locked_keys.entry(key.clone()).or_insert(xid) != xid {
                return;
            }
        }
        let (row, available_at, written) = self.new_row(key, dice);
        let id = self.table.insert(xid, row, available_at);
        self.writers[place].rows.push((id, written));
    }

    fn new_row(
        &self,
        key: Option<String>,
        dice: &mut Dice,
    ) -> (OutboxRow, Option<SystemTime>, Written) {
        let long = "k".repeat(300);
        let (exchange, routing_key) = match dice.below(24) {
            0 => ("", long.as_str()),
            1 => ("", "poison"),
            2 => ("events", "nowhere"),
            3 => ("events", "full"),
            4 => ("absent", "x"),
            5..=12 => ("events", "a"),
            13..=16 => ("events", "b"),
            _ => ("", "queue"),
        };
        let troubled = matches!(routing_key, "nowhere" | "full" | "x");
        let size = if dice.once_in(8) {
            2_001 + dice.below(6_000)
        } else {
            40
        };
        let scheduled = dice.once_in(12);
        let delay = Duration::from_millis(dice.next() % 4_000);
        let row = OutboxRow {
            id: RowId(0),
            message_id: "m".to_owned(),
            exchange: exchange.to_owned(),
            routing_key: routing_key.to_owned(),
            ordering_key: key.clone(),
            payload: Body::Bytes(Bytes::from(vec![b'x'; size])),
            headers: None,
            message_type: None,
            correlation_id: None,
            content_type: None,
            properties: None,
            created_at: SystemTime::UNIX_EPOCH,
            attempts: 0,
        };
        let available_at = scheduled.then(|| self.table.now() + delay);
        (
            row,
            available_at,
            Written {
                key,
                scheduled,
                troubled,
            },
        )
    }

    fn end_transaction(&mut self, dice: &mut Dice) {
        if self.writers.is_empty() {
            return;
        }
        let writer = self.writers.swap_remove(dice.below(self.writers.len()));
        if dice.once_in(6) {
            self.table.rollback(writer.xid);
        } else {
            self.table.commit(writer.xid);
            for (id, written) in writer.rows {
                self.checks.committed(id, written);
            }
        }
        self.locked_keys.retain(|_, holder| *holder != writer.xid);
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

    fn lose(&mut self, no: usize, lost: ChannelLost) {
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
    }

    fn misfortune(&mut self, dice: &mut Dice) {
        if self.calm {
            return;
        }
        match dice.below(9) {
            0 => self.cut_link(dice),
            1 => self.crash(dice),
            2 => {
                self.errand = None;
                self.flow.reader_lost();
                self.flow.reader_ready("application/json");
            }
            3 => self.lose_settler(dice),
            4 => toggle(&mut self.broker.missing, "absent"),
            5 => toggle(&mut self.broker.unbound, "nowhere"),
            6 => toggle(&mut self.broker.full, "full"),
            7 => self.lock_row(dice),
            _ => toggle(&mut self.broker.missing, "events"),
        }
    }

    fn cut_link(&mut self, dice: &mut Dice) {
        self.flow.link_lost();
        self.questions.clear();
        self.broker.linked = false;
        for no in 0..self.broker.channels() {
            if let Some(lost) = self.broker.cut(no, dice) {
                self.lose(no, lost);
            }
        }
    }

    /// The settling connection breaks: the batch may have been written or not, and is settled
    /// again.
    fn lose_settler(&mut self, dice: &mut Dice) {
        let batch = match self.settling.take() {
            Some(Settling::Asked(batch)) => {
                if dice.once_in(2) {
                    self.table.settle(&batch);
                }
                batch
            }
            Some(Settling::Done(batch, _)) => batch,
            None => return,
        };
        for settlement in batch.into_iter().rev() {
            self.to_settle.push_front(settlement);
        }
    }

    /// `kill -9` of the relay: all it knew is gone.
    fn crash(&mut self, dice: &mut Dice) {
        match self.settling.take() {
            Some(Settling::Asked(batch)) => {
                let report = if dice.once_in(2) {
                    self.table.settle(&batch)
                } else {
                    SettleReport::default()
                };
                self.unwritten(batch, &report);
            }
            Some(Settling::Done(batch, report)) => self.unwritten(batch, &report),
            None => {}
        }
        for settlement in self.to_settle.drain(..) {
            if matches!(settlement.verdict, Verdict::Sent(_)) {
                self.checks.doubt(settlement.id);
            }
        }
        self.errand = None;
        self.seed += 1_000_000;
        let mut old = std::mem::replace(&mut self.flow, new_flow(self.seed));
        // What the old one had decided but not handed over is gone, too.
        for settlement in old.take_settlements() {
            self.checks.doubt(settlement.id);
        }
        for no in 0..self.broker.channels() {
            if let Some(lost) = self.broker.cut(no, dice) {
                for id in lost.unknown {
                    self.checks.doubt(id);
                }
            }
        }
        self.questions.clear();
        self.broker.linked = false;
    }

    /// What the table did not take of a batch is still to be settled.
    fn unwritten(&mut self, batch: Vec<Settlement>, report: &SettleReport) {
        let done: HashSet<Ticket> = report
            .written
            .iter()
            .chain(&report.gone)
            .map(|(_, ticket)| *ticket)
            .collect();
        self.to_settle
            .extend(batch.into_iter().filter(|s| !done.contains(&s.ticket)));
    }

    fn lock_row(&mut self, dice: &mut Dice) {
        let pending: Vec<RowId> = self
            .table
            .rows()
            .filter(|row| row.sent_at.is_none())
            .map(|row| row.row.id)
            .collect();
        if !pending.is_empty() {
            let id = pending[dice.below(pending.len())];
            if let Some(row) = self.table.row_mut(id) {
                row.locked = !row.locked;
            }
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
        self.settle_down(dice);
        let untroubled = self.checks.untroubled_keys();
        self.check_arrival("P6", untroubled);
        self.broker.missing.clear();
        self.broker.unbound.clear();
        self.broker.full.clear();
        self.settle_down(dice);
        self.check_arrival("P1", |_| true);
        let pending = self
            .table
            .rows()
            .filter(|row| row.sent_at.is_none())
            .count();
        assert_eq!(pending, 0, "P1: rows arrived and were never marked");
    }

    fn check_arrival(&self, promise: &str, expected: impl Fn(&Written) -> bool) {
        let quarantined = |id: RowId| self.table.quarantined.contains_key(&id.0);
        let missing = self.checks.missing(quarantined, expected);
        assert!(
            missing.is_empty(),
            "{promise}: rows {missing:?} did not arrive\n{}",
            self.flow.describe()
        );
    }

    /// Lets a minute pass in which every part does its work.
    fn settle_down(&mut self, dice: &mut Dice) {
        for _ in 0..1500 {
            self.reconnect(dice);
            self.answer();
            self.run_errand();
            self.broker_works(dice);
            self.hear(dice);
            self.settle();
            self.pass_time(dice);
            self.pump();
            self.look();
        }
    }
}

fn toggle(set: &mut HashSet<String>, name: &str) {
    if !set.remove(name) {
        set.insert(name.to_owned());
    }
}
