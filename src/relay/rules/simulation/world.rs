//! The world around the rules: writers, a database, a broker, relays, and time.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::broker::Broker;
use super::checks::{Checks, Written};
use super::dice::Dice;
use super::misfortune::RIGHT;
use super::node::Node;
use super::settling::{Order, Settling};
use super::writers::Writer;
use crate::message::RowId;
use crate::relay::rules::PartitionSet;
use crate::runtime::Moment;
use crate::store::memory::Table;

/// Everything.
pub(super) struct World {
    pub(super) nodes: Vec<Node>,
    pub(super) table: Table,
    pub(super) broker: Broker,
    pub(super) checks: Checks,
    pub(super) now: Moment,
    /// When the world began, by every wall clock.
    began: SystemTime,
    pub(super) seed: u64,
    /// Relays so far.
    born: u64,
    pub(super) writers: Vec<Writer>,
    /// Keys whose lock a writer holds.
    pub(super) locked_keys: HashMap<String, u64>,
    pub(super) calm: bool,
    /// When the database's clock was last set.
    pub(super) stepped: Moment,
    /// Rows that an operator decided about: others of their key may go on.
    pub(super) decided: HashSet<RowId>,
}

/// In every second run rows behind a quarantined one wait. All relays are configured alike.
fn successors_wait(seed: u64) -> bool {
    seed % 2 == 1
}

impl World {
    pub(super) fn new(seed: u64, relays: usize) -> Self {
        let mut table = Table::default();
        table.max_message_size = 7_000;
        table.successors_wait = successors_wait(seed);
        let mut world = Self {
            nodes: Vec::new(),
            began: table.now(),
            table,
            broker: Broker::default(),
            checks: Checks::default(),
            now: Moment::ORIGIN,
            seed,
            born: 0,
            writers: Vec::new(),
            locked_keys: HashMap::new(),
            calm: false,
            decided: HashSet::new(),
            stepped: Moment::ORIGIN,
        };
        for _ in 0..relays {
            let node = world.new_node();
            world.nodes.push(node);
        }
        world
    }

    pub(super) fn new_node(&mut self) -> Node {
        self.born += 1;
        // Mixed, so that a new relay's rank among the others is anybody's guess.
        let token = self.born.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let token = Uuid::from_u64_pair(token, self.born);
        Node::new(
            token,
            self.seed + self.born * 1_000_000,
            successors_wait(self.seed),
        )
    }

    /// A right wall clock.
    pub(super) fn wall(&self) -> SystemTime {
        self.began + self.now.since_origin()
    }

    /// One thing happens.
    pub(super) fn step(&mut self, dice: &mut Dice) {
        let no = dice.below(self.nodes.len());
        match dice.below(100) {
            0..=11 => self.write(dice),
            12..=19 => self.end_transaction(dice),
            20..=97 => self.work(no, dice),
            _ => self.misfortune(no, dice),
        }
        for node in self.nodes.iter_mut().filter(|node| !node.stopped) {
            node.pump(self.now);
        }
        self.replace_stopped(no);
        self.look();
    }

    /// One part of a relay does something, or the broker does with what it sent.
    fn work(&mut self, no: usize, dice: &mut Dice) {
        let stopped = self.nodes[no].stopped;
        match dice.below(78) {
            20..=34 => self.broker_works(no, dice),
            67..=71 => self.pass_time(no, dice),
            _ if stopped => {}
            0..=19 => self.nodes[no].run_errand(&self.table, self.now),
            35..=49 => self.nodes[no].hear(&self.broker, dice, self.now),
            50..=61 => {
                self.settle(no);
                self.settle(no);
            }
            62..=66 => self.nodes[no].reconnect(dice),
            72 => self.nodes[no].answer(&self.broker, self.now),
            _ => {
                self.nodes[no].answer(&self.broker, self.now);
                self.nodes[no].reconnect(dice);
            }
        }
    }

    fn broker_works(&mut self, no: usize, dice: &mut Dice) {
        let node = &mut self.nodes[no];
        if let Some(lost) = node.broker_works(&mut self.broker, dice) {
            node.lose(lost, &mut self.checks, self.now);
        }
    }

    /// Something happens on the settling connection. Where that takes partitions from others, what
    /// those have under way may be sent twice.
    pub(super) fn settle(&mut self, no: usize) {
        let takes = matches!(
            self.nodes[no].settling,
            Some(Settling::Order(Order::Take(_)))
        );
        let before = takes.then(|| self.holdings());
        let wall = self.wall();
        self.nodes[no].settle(&mut self.table, self.now, wall);
        let Some(before) = before else {
            return;
        };
        for (node, had) in self.nodes.iter().zip(before) {
            let taken = had.minus(&self.holding(node.token));
            node.deprived(&taken, &self.table, &mut self.checks);
        }
    }

    fn holdings(&self) -> Vec<PartitionSet> {
        self.nodes
            .iter()
            .map(|node| self.holding(node.token))
            .collect()
    }

    fn holding(&self, token: Uuid) -> PartitionSet {
        let owned = |partition: &_| self.table.leases.owner(*partition) == Some(token);
        PartitionSet::ALL.iter().filter(owned).collect()
    }

    fn look(&mut self) {
        let table = &self.table;
        let decided = &self.decided;
        self.checks.look(&self.broker.delivered, |id| {
            let waits = table.successors_wait && !decided.contains(&id);
            table.quarantined.contains_key(&id.0) && !waits || decided.contains(&id)
        });
    }

    fn pass_time(&mut self, no: usize, dice: &mut Dice) {
        let by = Duration::from_millis(dice.next() % 700);
        self.now = self.now + by;
        self.table.advance(by);
        let node = &mut self.nodes[no];
        let channel = dice.below(node.connection.channels());
        if !node.stopped
            && dice.once_in(8)
            && let Some(lost) = node.connection.time_out(channel)
        {
            node.lose((channel, lost), &mut self.checks, self.now);
        }
    }

    /// No more misfortune. What the world does not refuse must arrive while it still refuses the
    /// rest; then it refuses nothing, and everything must arrive.
    pub(super) fn finish(&mut self, dice: &mut Dice) {
        self.calm = true;
        for node in &mut self.nodes {
            node.stopped = false;
        }
        self.table.set_clock(self.wall() + RIGHT);
        while !self.writers.is_empty() {
            self.end_transaction(dice);
        }
        self.unlock_rows();
        self.broker.missing.remove("events");
        self.table.pauses.clear();
        let untroubled = self.checks.untroubled_keys();
        self.settle_down(dice, |world| world.missing(&untroubled).is_empty());
        self.check_arrival("P6", &untroubled);
        self.broker.missing.clear();
        self.broker.unbound.clear();
        self.broker.full.clear();
        self.broker.silent.clear();
        self.broker.broken.clear();
        self.settle_down(dice, |world| world.unmarked() == 0);
        self.check_arrival("P1", &|_: &Written| true);
        assert_eq!(self.unmarked(), 0, "P1: rows arrived and were never marked");
    }

    fn unlock_rows(&mut self) {
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
        let states: Vec<_> = self.nodes.iter().map(Node::describe).collect();
        let states = states.join("\n");
        let (now, leases) = (self.now, self.table.leases.look(self.table.now()));
        assert!(
            missing.is_empty(),
            "{promise}: rows {missing:?} did not arrive\n{states}\n{now:?} {leases:?}"
        );
    }

    /// Lets time pass in which every part does its work, until that is enough, or far too much
    /// time has passed.
    fn settle_down(&mut self, dice: &mut Dice, enough: impl Fn(&Self) -> bool) {
        for round in 0..3000 {
            for no in 0..self.nodes.len() {
                self.nodes[no].reconnect(dice);
                self.nodes[no].answer(&self.broker, self.now);
                self.nodes[no].run_errand(&self.table, self.now);
                self.broker_works(no, dice);
                self.nodes[no].hear(&self.broker, dice, self.now);
                for _ in 0..4 {
                    self.settle(no);
                }
                self.nodes[no].pump(self.now);
                self.replace_stopped(no);
            }
            self.decide(dice);
            self.pass_time(round % self.nodes.len(), dice);
            self.look();
            if round % 50 == 0 && enough(self) {
                break;
            }
        }
    }
}
