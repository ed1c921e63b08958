//! The engine task: feeds events to the flow and carries out what it decides.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{trace, warn};

use super::backlog::backlog;
use super::channel::Batch;
use super::end::{Ended, Mode};
use super::event::{Event, Events, tell};
use super::flights::Flights;
use super::obedience::Obedience;
use super::observer::Observer;
use super::refusals::Refusals;
use super::retry::in_ms;
use super::sessions::{Sessions, Side};
use super::start::Outlets;
use super::tenure::Tenure;
use super::{Relay, Settings};
use crate::broker::{Broker, ChannelLost};
use crate::message::{Publication, RowId};
use crate::relay::rules::{
    ChannelNo, Flow, Leases, Partition, Reading, SettleReport, Settlement, Standing, Verdict,
};
use crate::runtime::condition::{Broker as BrokerHealth, Role};
use crate::runtime::{Clock, Health, Jitter, Moment};
use crate::store::{Store, StoreError};

/// Events taken in before the next decisions.
const EVENTS: usize = 256;

impl<S: Store, B: Broker> Relay<S, B> {
    /// Runs until `drain` is cancelled and the drain is over, or, with [`Mode::UntilEmpty`],
    /// until nothing that is due is left. Outages never end it.
    pub async fn run(self, mode: Mode, drain: CancellationToken) -> Ended {
        let (events, mut received) = Events::channel();
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let settings = self.settings.clone();
        let mut engine = self.start(&tasks, &events, &stop);
        let ended = engine
            .turn_until_over(mode, &drain, &mut received, &settings)
            .await;
        stop.cancel();
        drop(engine);
        let goodbyes = timeout(settings.goodbye() * 2 / 3, tasks.wait());
        if goodbyes.await.is_err() {
            warn!("a task of the relay did not say goodbye in time");
        }
        ended
    }
}

pub(super) struct Engine {
    flow: Flow,
    outlets: Outlets,
    tenure: Tenure,
    channels: HashMap<ChannelNo, mpsc::UnboundedSender<Batch>>,
    /// Handed to channels that had ended: told with the loss of the channel.
    undelivered: HashMap<ChannelNo, Vec<RowId>>,
    /// Settlements on their way.
    unsettled: usize,
    flights: Flights,
    observer: Arc<dyn Observer>,
    health: Health,
    sessions: Sessions,
    refusals: Refusals,
    /// Other relays own everything.
    stands_by: bool,
    obedience: Obedience,
    draining: bool,
}

impl Engine {
    pub(super) fn new(
        settings: &Settings,
        outlets: Outlets,
        tenure: Tenure,
        health: Health,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let flow = Flow::new(
            settings.limits.clone(),
            settings.rules.clone(),
            Jitter::random(),
        );
        Self {
            flow,
            outlets,
            tenure,
            channels: HashMap::new(),
            undelivered: HashMap::new(),
            unsettled: 0,
            flights: Flights::new(Arc::clone(&observer)),
            observer,
            health,
            sessions: Sessions::connecting(),
            refusals: Refusals::new(),
            stands_by: false,
            obedience: Obedience::default(),
            draining: false,
        }
    }

    async fn turn_until_over(
        &mut self,
        mode: Mode,
        drain: &CancellationToken,
        received: &mut mpsc::UnboundedReceiver<Event>,
        settings: &Settings,
    ) -> Ended {
        let mut deadline: Option<Moment> = None;
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            let now = Clock.now();
            for event in events.drain(..) {
                self.take(event, now);
            }
            let finished = mode == Mode::UntilEmpty && self.has_nothing_to_do();
            if deadline.is_none() && (drain.is_cancelled() || finished) {
                deadline = Some(now + (settings.shutdown_grace - settings.goodbye()));
                self.flow.drain();
                self.outlets.settlements.hurry();
                self.draining = true;
                self.health.role(Role::Draining);
            }
            // A confirm's successor waits for the channels, what follows has time.
            if self.publish(now) {
                tokio::task::yield_now().await;
            }
            self.carry_out(now);
            if let Some(end) = deadline {
                if self.flow.drained() && self.unsettled == 0 {
                    return Ended::Drained;
                }
                if now >= end {
                    let Standing { in_flight, .. } = self.flow.standing();
                    return Ended::GraceOver(in_flight + self.unsettled);
                }
            }
            let others = [
                self.tenure.look_at(),
                self.outlets.settlements.due(),
                deadline,
            ];
            let wakes = others.into_iter().chain([self.flow.wake_at(now)]).flatten();
            let wake = wakes.min().unwrap_or(Moment::NEVER).min(now + HEARTBEAT);
            tokio::select! {
                biased;
                _ = received.recv_many(&mut events, EVENTS) => {}
                () = drain.cancelled(), if deadline.is_none() => {}
                () = tokio::time::sleep(now.until(wake)) => {}
            }
        }
    }

    /// Hands to the channels what may be published; was there anything?
    fn publish(&mut self, now: Moment) -> bool {
        self.health.turn(now);
        if now >= self.flow.fence() {
            self.tell_of_partitions(now);
        }
        self.tenure.turn(&mut self.flow, now);
        let publications = self.flow.publications(now);
        let handed_out = publications.len();
        self.hand_out(publications, now);
        handed_out > 0
    }

    /// Does what else the flow has decided.
    fn carry_out(&mut self, now: Moment) {
        self.refusals.count(now);
        let settlements = self.flow.take_settlements();
        if !settlements.is_empty() {
            self.unsettled += settlements.len();
            self.tell_of_refusals(&settlements, now);
            self.outlets.settlements.add(settlements);
        }
        self.outlets.settlements.hand_over(now);
        for question in self.flow.take_questions() {
            tell(&self.outlets.questions, question);
        }
        if let Some(request) = self.flow.next_read(now) {
            tell(&self.outlets.requests, request);
        }
        self.outlets.board.post(&self.flow, now);
        let standing = self.flow.standing();
        self.observer.standing(&standing);
        if !standing.linked {
            self.health.backlog(backlog(standing), now);
        }
        if self.flow.wants_reader(now) {
            self.outlets.nudge.notify_one();
        }
        if self.flow.wants_connection() {
            self.outlets.apart.notify_one();
        }
    }

    fn hand_out(&mut self, publications: Vec<(ChannelNo, Vec<Arc<Publication>>)>, now: Moment) {
        let fence = self.flow.fence();
        for (no, publications) in publications {
            let due = |id| self.flow.due_since(id).unwrap_or(now);
            self.flights.take_off(&publications, due, now);
            let batch = Batch {
                publications,
                fence,
            };
            let sent = match self.channels.get(&no) {
                Some(channel) => channel.send(batch).map_err(|error| error.0),
                None => Err(batch),
            };
            if let Err(batch) = sent {
                let ids = batch.ids();
                self.undelivered.entry(no).or_default().extend(ids);
            }
        }
    }

    fn take(&mut self, event: Event, now: Moment) {
        match event {
            Event::ReaderReady { content_type } => {
                self.database(Side::Reading, None);
                self.flow.reader_ready(content_type);
            }
            Event::ReaderAway => self.reader_ended(None),
            Event::ReaderLost(error) => self.reader_ended(Some(&error)),
            Event::Read(reading) => self.take_reading(reading, now),
            Event::Fetched(bodies) => self.flow.fetched(bodies),
            Event::SettlerReady => {
                self.database(Side::Settling, None);
                self.flow.settler(true);
            }
            Event::SettlerLost(error) => self.settler_ended(&error),
            Event::Leases {
                leases,
                renewed,
                released,
            } => {
                self.flow.released(&released);
                self.take_leases(&leases, renewed, now);
            }
            Event::Settled(report) => self.take_report(&report, now),
            Event::Stuck { rows, partitions } => self.flow.stuck(rows, partitions, now),
            Event::LinkUp { frame_max } => self.flow.link_up(frame_max),
            Event::LinkLost(reason) => self.take_link_loss(reason),
            Event::Blocked(reason) => self.take_block(reason),
            Event::ChannelOpen { no, batches } => {
                self.channels.insert(no, batches);
                self.flow.channel_open(no);
            }
            Event::Unsent { no, ids } => {
                self.flights.lose(&ids, now);
                self.flow.unsent(no, ids);
            }
            Event::Judged { no, outcomes } => {
                if self.flights.land(&outcomes, now) {
                    self.health.confirmed(now);
                }
                self.flow.judged(no, outcomes, now);
            }
            Event::ChannelLost { no, lost } => self.take_loss(no, lost, now),
            Event::Apart(trouble) => self.outlets.board.apart(trouble),
            Event::Adjusted(limits) => self.flow.retry_by(&limits),
            Event::ExchangeAnswered { exchange, exists } => {
                self.flow.exchange_answered(&exchange, exists, now);
            }
        }
    }

    fn reader_ended(&mut self, error: Option<&StoreError>) {
        self.database(Side::Reading, error);
        self.flow.reader_lost();
    }

    fn settler_ended(&mut self, error: &StoreError) {
        self.database(Side::Settling, Some(error));
        self.flow.settler(false);
        self.tenure.cut();
    }

    fn take_block(&mut self, reason: Option<String>) {
        self.flow.blocked(reason.is_some());
        let state = reason.map_or(BrokerHealth::Connected, BrokerHealth::Blocked);
        self.health.broker(state);
    }

    /// Somebody looked who owns what.
    fn take_leases(&mut self, leases: &Leases, renewed: Option<Moment>, now: Moment) {
        let flow = &mut self.flow;
        let changed = self.tenure.saw(flow, leases, renewed, self.draining, now);
        if changed.lost > 0 {
            self.observer.leases_lost(changed.lost);
        }
        if changed.stands_by != self.stands_by && !self.draining {
            self.stands_by = changed.stands_by;
            self.obedience = Obedience::default();
            let role = if changed.stands_by {
                Role::StandBy
            } else {
                Role::Active
            };
            self.health.role(role);
        }
        self.tell_of_partitions(now);
    }

    /// What is certainly held: nothing from when the leases may be over. Who spoke for the outbox goes
    /// on until it is seen that another does: perhaps nobody can ask the database.
    fn tell_of_partitions(&self, now: Moment) {
        let owned = self.flow.owned();
        let number = if now < self.flow.fence() {
            owned.len()
        } else {
            0
        };
        let number = u16::try_from(number).unwrap_or(u16::MAX);
        self.health.partitions(number, owned.contains(Partition(0)));
    }

    /// Nothing that is due is left, as far as it is this relay's to send.
    fn has_nothing_to_do(&self) -> bool {
        let sent = self.flow.owned().is_empty() || self.flow.standing().nothing_due;
        self.tenure.settled() && sent
    }

    fn take_reading(&mut self, reading: Reading, now: Moment) {
        let rows = reading.news.len() + reading.page.len() + reading.due.len();
        self.observer.read(rows, reading.took);
        trace!(rows, took_ms = in_ms(reading.took), "read");
        if let Some(role) = self.obedience.heard(&reading.pauses)
            && !self.draining
        {
            self.health.role(role);
        }
        if reading.orphans {
            self.tenure.saw_orphans(now);
        }
        self.flow.took_in(reading, now);
        self.health.backlog(backlog(self.flow.standing()), now);
    }

    fn take_loss(&mut self, no: ChannelNo, mut lost: ChannelLost, now: Moment) {
        self.channels.remove(&no);
        let undelivered = self.undelivered.remove(&no).unwrap_or_default();
        lost.unknown.extend(undelivered);
        self.refusals.tell_of_loss(no, &lost, now);
        self.flights.lose(&lost.unknown, now);
        self.flow.lost(no, lost, now);
    }

    fn tell_of_refusals(&mut self, settlements: &[Settlement], now: Moment) {
        for settlement in settlements {
            self.refusals.tell(settlement, now);
            if let Verdict::RetryAt { class, .. } = &settlement.verdict {
                self.observer.retried(*class);
            }
        }
    }

    fn take_link_loss(&mut self, reason: String) {
        self.flow.link_lost();
        self.health.broker(BrokerHealth::Disconnected(reason));
    }

    fn take_report(&mut self, report: &SettleReport, now: Moment) {
        self.unsettled -= report.written.len() + report.gone.len() + report.disowned.len();
        self.flow.settled(report);
        if !report.written.is_empty() {
            self.health.progressed(now);
        }
    }

    /// One of the two sessions stands, or does not, and why.
    fn database(&mut self, side: Side, error: Option<&StoreError>) {
        let database = self.sessions.changed(side, error);
        self.health.database(database);
    }
}

/// The engine comes round at least so often, so that a stuck one is noticed.
const HEARTBEAT: std::time::Duration = std::time::Duration::from_secs(5);
