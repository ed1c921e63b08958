//! One relay of several: its rules, its connections, and what is under way on them. What happens on
//! the settling connection stands in `settling`.

use std::collections::VecDeque;
use std::time::Duration;

use uuid::Uuid;

use super::broker::{Broker, Connection};
use super::checks::Checks;
use super::dice::Dice;
use super::settling::{LEASE, Order, Settling};
use crate::broker::{ChannelLost, LossCause};
use crate::message::{RowId, Rules};
use crate::relay::rules::{
    ChannelNo, Fetched, Flow, FlowLimits, Ownership, PartitionSet, Pause, Reading, Request,
    Settlement, Verdict,
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

/// A relay.
pub(super) struct Node {
    pub(super) token: Uuid,
    pub(super) flow: Flow,
    pub(super) ownership: Ownership,
    pub(super) connection: Connection,
    pub(super) errand: Option<Errand>,
    pub(super) settling: Option<Settling>,
    pub(super) to_settle: VecDeque<Settlement>,
    pub(super) orders: VecDeque<Order>,
    questions: VecDeque<String>,
    pub(super) announced: Option<Moment>,
    pub(super) look_at: Option<Moment>,
    /// It stands still, as under SIGSTOP.
    pub(super) stopped: bool,
    /// It was told to stop, and drains.
    pub(super) draining: bool,
    /// What it was last told is paused.
    heard: Vec<Pause>,
}

/// Small, so that every limit is met.
pub(in crate::relay::rules) fn limits(successors_wait: bool) -> FlowLimits {
    FlowLimits {
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
        successors_wait,
    }
}

impl Node {
    pub(super) fn new(token: Uuid, seed: u64, successors_wait: bool) -> Self {
        let rules = Rules {
            max_message_size: 7_000,
            ..crate::message::rules()
        };
        let mut flow = Flow::new(limits(successors_wait), rules, Jitter::seeded(seed));
        flow.reader_ready("application/json");
        flow.settler(true);
        Self {
            token,
            flow,
            ownership: Ownership::new(token, LEASE),
            connection: Connection::new(CHANNELS + 2),
            errand: None,
            settling: None,
            to_settle: VecDeque::new(),
            orders: VecDeque::new(),
            questions: VecDeque::new(),
            announced: None,
            look_at: None,
            stopped: false,
            draining: false,
            heard: Vec::new(),
        }
    }

    /// For a failed run.
    pub(super) fn describe(&self) -> String {
        let Self {
            token,
            draining,
            stopped,
            look_at,
            announced,
            ..
        } = self;
        let (flow, owned) = (self.flow.describe(), self.flow.owned());
        let at = format!("look at {look_at:?}, announced {announced:?}");
        format!("{flow}\n{token} draining {draining} stopped {stopped} {at} owned {owned:?}")
    }

    /// Does what the rules decided.
    pub(super) fn pump(&mut self, now: Moment) {
        let free = self.flow.take_releases();
        if !free.is_empty() {
            self.orders.push_back(Order::Release(free));
        }
        if self.look_at.is_some_and(|at| at <= now) {
            self.look_at = None;
            self.orders.push_back(Order::Look);
        }
        for (channel, batch) in self.flow.publications(now) {
            for publication in &batch {
                let exchange = publication.exchange().as_str();
                let stops = |pause: &Pause| pause.exchange.as_deref().is_none_or(|e| e == exchange);
                let paused = self.heard.iter().any(stops);
                let id = publication.id();
                assert!(!paused, "row {id} was published while paused");
            }
            self.connection.send(channel.0, batch);
        }
        self.to_settle.extend(self.flow.take_settlements());
        self.questions.extend(self.flow.take_questions());
        if let Some(request) = self.flow.next_read(now) {
            assert!(self.errand.is_none(), "two errands at once");
            self.errand = Some(Errand::Asked(request));
        }
    }

    /// A request reaches the database, or its answer the relay.
    pub(super) fn run_errand(&mut self, table: &Table, now: Moment) {
        self.errand = match self.errand.take() {
            Some(Errand::Asked(Request::Read(request))) => Some(Errand::Read(table.read(&request))),
            Some(Errand::Asked(Request::Fetch { rows, room })) => {
                Some(Errand::Fetched(table.fetch(&rows, room)))
            }
            Some(Errand::Read(reading)) => {
                self.heard.clone_from(&reading.pauses);
                if reading.orphans
                    && let Some(at) = &mut self.look_at
                {
                    *at = now.min(*at);
                }
                self.flow.took_in(reading, now);
                None
            }
            Some(Errand::Fetched(bodies)) => {
                self.flow.fetched(bodies);
                None
            }
            None => None,
        };
    }

    pub(super) fn broker_works(&mut self, broker: &mut Broker, dice: &mut Dice) -> Option<Lost> {
        let no = dice.below(self.connection.channels());
        for _ in 0..=dice.below(4) {
            if let Some(lost) = self.connection.work(no, broker) {
                return Some((no, lost));
            }
        }
        None
    }

    pub(super) fn lose(&mut self, (no, lost): Lost, checks: &mut Checks, now: Moment) {
        for id in &lost.unknown {
            checks.doubt(*id);
        }
        let shared = no != self.connection.apart();
        let closed = shared && matches!(lost.cause, LossCause::ConnectionClosed { .. });
        self.flow.lost(ChannelNo(no), lost, now);
        if closed {
            self.lose_the_others(checks, now);
            self.lose_link();
        }
    }

    /// The connection was closed over what was sent on one channel of it.
    fn lose_the_others(&mut self, checks: &mut Checks, now: Moment) {
        for other in 0..self.connection.apart() {
            let Some(lost) = self.connection.fail_too(other) else {
                continue;
            };
            for id in &lost.unknown {
                checks.doubt(*id);
            }
            self.flow.lost(ChannelNo(other), lost, now);
        }
    }

    /// Confirms, returns and refusals arrive.
    pub(super) fn hear(&mut self, broker: &Broker, dice: &mut Dice, now: Moment) {
        let no = dice.below(self.connection.channels());
        let heard: Vec<_> = (0..=dice.below(5))
            .filter_map(|_| self.connection.report(no, broker, dice))
            .collect();
        self.flow.judged(ChannelNo(no), heard, now);
    }

    pub(super) fn answer(&mut self, broker: &Broker, now: Moment) {
        if let Some(exchange) = self.questions.pop_front() {
            let exists = !broker.missing.contains(&exchange);
            self.flow.exchange_answered(&exchange, exists, now);
        }
    }

    pub(super) fn reconnect(&mut self, dice: &mut Dice) {
        if !self.connection.linked {
            self.connection.linked = true;
            self.flow.link_up(131_072);
        }
        let no = dice.below(self.connection.channels());
        let wanted = no != self.connection.apart() || self.flow.wants_connection();
        if wanted && self.connection.open(no) {
            self.flow.channel_open(ChannelNo(no));
        }
    }

    /// The connection to the broker breaks; its channels report their losses themselves.
    pub(super) fn lose_link(&mut self) {
        self.flow.link_lost();
        self.questions.clear();
        self.connection.linked = false;
    }

    /// The reading connection breaks and is made again.
    pub(super) fn lose_reader(&mut self) {
        self.errand = None;
        self.flow.reader_lost();
        self.flow.reader_ready("application/json");
    }

    /// `kill -9`: all it knew is gone. What may have been sent and was not marked is in doubt.
    pub(super) fn crash(
        mut self,
        table: &mut Table,
        broker: &mut Broker,
        checks: &mut Checks,
        dice: &mut Dice,
    ) {
        if let Some(Settling::Settle(batch)) = &self.settling
            && dice.once_in(2)
        {
            table.settle(self.token, batch);
        }
        let mut sent = self.unmarked();
        sent.extend(self.flow.take_settlements().iter().map(|one| one.id));
        for id in sent.into_iter().filter(|id| table.is_pending(*id)) {
            checks.doubt(id);
        }
        for no in 0..self.connection.channels() {
            if let Some(lost) = self.connection.cut(no, broker, dice) {
                for id in lost.unknown {
                    checks.doubt(id);
                }
            }
        }
    }

    /// Rows sent whose mark is on its way.
    fn unmarked(&self) -> Vec<RowId> {
        let waiting = self.to_settle.iter();
        let asked: &[Settlement] = match &self.settling {
            Some(Settling::Settle(batch) | Settling::Settled(batch, _)) => batch,
            Some(_) | None => &[],
        };
        let sent = |one: &&Settlement| matches!(one.verdict, Verdict::Sent(_));
        waiting
            .chain(asked)
            .filter(sent)
            .map(|one| one.id)
            .collect()
    }

    /// Others take these over while this relay has rows of them under way.
    pub(super) fn deprived(&self, of: &PartitionSet, table: &Table, checks: &mut Checks) {
        let rows = self.flow.under_way(of).into_iter();
        for id in rows.filter(|id| table.is_pending(*id)) {
            checks.doubt(id);
        }
    }
}

/// A channel that was lost.
pub(super) type Lost = (usize, ChannelLost);
