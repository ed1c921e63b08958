//! The flow of rows through one relay: everything it knows, and what to do next.
//!
//! Events come in by `took_in`, `fetched`, `judged`, `lost`, `settled` and the like; decisions go
//! out by `next_read`, `publications`, `take_settlements`, `take_questions`. All of them take
//! `now` where they need it. The shell around it (`relay::engine`) does what it is told.

mod apart;
mod dues;
mod fault;
mod judge;
mod own;
mod publish;
mod read;
mod stuck;
mod successors;
mod take_in;
mod turn;
mod withheld;

pub use publish::Batches;
pub use read::Request;
pub use successors::BEHIND_QUARANTINED;

use std::collections::VecDeque;
use std::time::Duration;

use self::dues::Dues;
use super::channels::Channels;
use super::coverage::Coverage;
use super::gate::Gates;
use super::hazard::Hazards;
use super::lane::Lanes;
use super::ledger::{Hold, Ledger};
use super::{PartitionSet, Settlement};
use crate::message::{RowId, Rules};
use crate::runtime::{Jitter, Map, Moment, RetryPolicy};

/// What bounds the flow.
#[derive(Clone, Debug)]
pub struct FlowLimits {
    /// Rows of one read.
    pub batch_size: usize,
    /// Published and unconfirmed rows of all channels together.
    pub max_in_flight: usize,
    /// Channels that publish side by side.
    pub channels: usize,
    /// Bytes of bodies in memory.
    pub max_buffered_bytes: usize,
    /// The longest time between two reads.
    pub poll_interval: Duration,
    /// So often everything pending is walked over, for what was changed by hand: such rows have
    /// old transaction ids, and no news tells of them.
    pub sweep_interval: Duration,
    /// One unconfirmed row per ordering key.
    pub ordered: bool,
    /// Delays after failures.
    pub retry: RetryPolicy,
    /// Charged attempts after which a row is quarantined.
    pub max_attempts: u32,
    /// How long a row that reaches no queue is tried before it is quarantined.
    pub unroutable_after: Duration,
    /// How long a row is tried whose destination refuses it or is missing.
    pub destination_after: Duration,
    /// Rows behind a quarantined one of their key wait until an operator has decided about it.
    pub successors_wait: bool,
}

/// How the flow is doing, for people, readiness and `--until-empty`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Published, not yet confirmed.
    pub in_flight: usize,
    /// In memory and still wanting something.
    pub open: usize,
    /// Of these: decided, and not yet written down.
    pub settling: usize,
    /// Memory is full of rows that cannot be written down, and nothing else is read.
    pub clogged: bool,
    /// Bytes of bodies in memory.
    pub buffered_bytes: usize,
    /// Gates that are closed.
    pub closed_gates: usize,
    /// Ordering keys held back.
    pub blocked_keys: usize,
    /// Nothing that could be sent now is known, and the last read found nothing new.
    pub nothing_due: bool,
    /// What was pending has not been walked over to its end.
    pub walking: bool,
    /// There is a broker; without it nothing is read.
    pub linked: bool,
}

/// What is known of an exchange on this connection.
enum Exchange {
    /// Asked for; these rows wait for the answer.
    Asked(Vec<RowId>),
    /// It is there.
    Exists,
}

/// Everything one relay knows about the rows it is moving.
pub struct Flow {
    limits: FlowLimits,
    rules: Rules,
    jitter: Jitter,
    owned: PartitionSet,
    /// What is being handed over: nothing of it is published any more.
    leaving: PartitionSet,
    /// Handed over, as far as this relay is concerned.
    released: PartitionSet,
    /// Given up while a read was under way, whose answer may be older than what others did.
    stale: PartitionSet,
    /// Nothing is published from here on, unless the lease is renewed.
    fence: Moment,
    coverage: Coverage,
    ledger: Ledger,
    lanes: Lanes,
    gates: Gates,
    hazards: Hazards,
    channels: Channels,
    exchanges: Map<u64, Exchange>,
    /// Rows whose turn it is, first come first served.
    ready: VecDeque<RowId>,
    /// Rows whose body does not fit at the moment.
    starved: VecDeque<RowId>,
    /// Rows whose body is to be fetched.
    to_fetch: Vec<RowId>,
    /// Their sizes, which will be taken from the budget when they arrive.
    fetching_bytes: usize,
    fetching: bool,
    questions: Vec<String>,
    settlements: Vec<Settlement>,
    tickets: u64,
    /// The last read that was begun; the last one that was taken in.
    reads: u64,
    reading: Option<u64>,
    last_read: Option<Moment>,
    /// How long the next read is put off after it.
    breath: Duration,
    /// The last read brought nothing, so that the next may rest first.
    quiet: bool,
    /// The last page found nothing to send.
    barren: bool,
    sweep_began: Option<Moment>,
    next_sweep: Moment,
    /// When a row that is waiting in the table falls due, as far as this relay has set it.
    dues: Dues,
    can_read: bool,
    can_settle: bool,
    /// Decided rows that were tried and cannot be written down for now, and their partitions.
    stuck: usize,
    stuck_in: PartitionSet,
    /// Since when they have taken all the room, as far as was looked.
    clogged_since: Option<Moment>,
    linked: bool,
    blocked: bool,
    draining: bool,
    /// A read came since the connection to the broker stands: what was paused meanwhile is known.
    heard: bool,
    /// A row was confirmed since one was last tried that ended a connection.
    works: bool,
}

impl FlowLimits {
    /// How many channels are to be opened: one more than share the load, which probes.
    #[must_use]
    pub fn channels_to_open(&self) -> usize {
        self.channels + 1
    }
}

impl Flow {
    /// A flow that owns nothing, is connected to nothing and knows nothing.
    #[must_use]
    pub fn new(limits: FlowLimits, rules: Rules, jitter: Jitter) -> Self {
        Self {
            channels: Channels::new(limits.channels),
            limits,
            rules,
            jitter,
            owned: PartitionSet::NONE,
            leaving: PartitionSet::NONE,
            released: PartitionSet::NONE,
            stale: PartitionSet::NONE,
            fence: Moment::ORIGIN,
            coverage: Coverage::default(),
            ledger: Ledger::default(),
            lanes: Lanes::default(),
            gates: Gates::default(),
            hazards: Hazards::default(),
            exchanges: Map::default(),
            ready: VecDeque::new(),
            starved: VecDeque::new(),
            to_fetch: Vec::new(),
            fetching_bytes: 0,
            fetching: false,
            questions: Vec::new(),
            settlements: Vec::new(),
            tickets: 0,
            reads: 0,
            reading: None,
            last_read: None,
            breath: Duration::ZERO,
            quiet: false,
            barren: false,
            sweep_began: None,
            next_sweep: Moment::ORIGIN,
            dues: Dues::default(),
            can_read: false,
            can_settle: false,
            stuck: 0,
            stuck_in: PartitionSet::NONE,
            clogged_since: None,
            linked: false,
            blocked: false,
            draining: false,
            heard: false,
            works: false,
        }
    }

    /// From now on attempts are repeated by these rules. What bounds memory and channels stays as
    /// it is.
    pub fn retry_by(&mut self, limits: &FlowLimits) {
        let before = &self.limits;
        self.limits = FlowLimits {
            batch_size: before.batch_size,
            max_in_flight: before.max_in_flight,
            channels: before.channels,
            max_buffered_bytes: before.max_buffered_bytes,
            poll_interval: before.poll_interval,
            ordered: before.ordered,
            successors_wait: before.successors_wait,
            ..limits.clone()
        };
    }

    /// The reading connection stands. Whatever was seen over an earlier one may belong to
    /// another server: everything is looked for again. `content_type` is that of rows that
    /// name none.
    pub fn reader_ready(&mut self, content_type: &'static str) {
        self.rules.default_content_type = content_type;
        self.can_read = true;
        self.reading = None;
        self.stale = PartitionSet::NONE;
        self.quiet = false;
        self.coverage.restart(self.owned);
        self.refetch();
    }

    /// The reading connection is gone. What is not under way is forgotten; it is found again in
    /// the table.
    pub fn reader_lost(&mut self) {
        self.can_read = false;
        self.reading = None;
        self.fetching = false;
        self.fetching_bytes = 0;
        self.ready.clear();
        self.starved.clear();
        self.to_fetch.clear();
        self.questions.clear();
        self.exchanges
            .retain(|_, exchange| matches!(exchange, Exchange::Exists));
        self.lanes = Lanes::default();
        self.ledger.keep_under_way(&PartitionSet::ALL);
        self.hold_again(&PartitionSet::ALL);
    }

    /// What is under way of these partitions holds its place in its lane, and nothing else does.
    fn hold_again(&mut self, of: &PartitionSet) {
        for (id, lane, hold) in self.ledger.holds(of) {
            match hold {
                Hold::Turn => {
                    let waiting = self.lanes.waiting_or_new(lane);
                    waiting.enqueue(id);
                    waiting.advance();
                }
                Hold::Shelf => self.shelve(lane, id),
            }
        }
    }

    /// Nothing is published without the means to mark it, nor before the lease is confirmed anew.
    pub fn settler(&mut self, ready: bool) {
        self.can_settle = ready;
        if !ready {
            self.fence = Moment::ORIGIN;
            // Whether that was written down is not known.
            self.leaving = self.leaving();
            self.released = PartitionSet::NONE;
        }
    }

    /// A connection to the broker stands; nothing is known about it yet but its frame size.
    pub fn link_up(&mut self, frame_max: u32) {
        self.rules.frame_max = frame_max;
        self.linked = true;
        self.heard = false;
        self.blocked = false;
        self.quiet = false;
    }

    /// The connection to the broker is gone. Its channels report their losses themselves.
    pub fn link_lost(&mut self) {
        self.linked = false;
        self.blocked = false;
        self.questions.clear();
        let mut waiting: Vec<RowId> = Vec::new();
        for (_, exchange) in self.exchanges.drain() {
            if let Exchange::Asked(rows) = exchange {
                waiting.extend(rows);
            }
        }
        waiting.sort_unstable();
        for id in waiting.into_iter().rev() {
            self.ready.push_front(id);
        }
    }

    /// The broker blocks, or no longer blocks, the connection.
    pub fn blocked(&mut self, blocked: bool) {
        self.blocked = blocked;
    }

    /// Nothing more is read or published; what is under way is brought to its end.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Is nothing under way any more?
    #[must_use]
    pub fn drained(&self) -> bool {
        self.channels.in_flight() == 0 && self.ledger.settling() == 0 && self.settlements.is_empty()
    }

    /// How it is doing.
    #[must_use]
    pub fn standing(&self) -> Standing {
        let (open, walking) = (self.ledger.open(), self.coverage.walking());
        Standing {
            in_flight: self.channels.in_flight(),
            open,
            settling: self.ledger.settling(),
            clogged: self.clogged(),
            buffered_bytes: self.ledger.buffered_bytes(),
            closed_gates: self.gates.closed(),
            blocked_keys: self.lanes.blocked_keys(),
            nothing_due: self.quiet && !walking && open == 0,
            walking,
            linked: self.linked,
        }
    }

    /// When to ask for decisions again although nothing has happened.
    #[must_use]
    pub fn wake_at(&self, now: Moment) -> Option<Moment> {
        // What fell due before has been seen to: a look begins soon, or one under way was told.
        let due = self.dues.next_after(now);
        [self.read_due(), due].into_iter().flatten().min()
    }

    /// For a failed simulation.
    #[cfg(test)]
    pub(super) fn describe(&self) -> String {
        let rows = self.ledger.describe();
        let Self {
            coverage,
            lanes,
            gates,
            channels,
            ready,
            starved,
            ..
        } = self;
        format!(
            "{:#?}\n{coverage:#?}\n{lanes:?}\n{gates:?}\n{channels:?}\nready {ready:?}\n\
             starved {starved:?}\nrows {rows:?}",
            self.standing()
        )
    }

    /// The delay after so many failures in a row.
    fn delay(&mut self, failures: u32) -> Duration {
        self.limits.retry.delay(failures, &mut self.jitter)
    }

    /// Rows in memory at the most.
    fn max_rows(&self) -> usize {
        4 * self.limits.max_in_flight.max(self.limits.batch_size)
    }

    /// Rows of one ordered lane in memory at the most.
    fn max_lane(&self) -> usize {
        self.max_rows() / 4
    }
}
