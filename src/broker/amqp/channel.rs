//! One channel in confirm mode: publishes in order, collects answers, reports certain fates.
//!
//! Owned by one task and never cloned: lapin takes the delivery tag under one lock and queues
//! the frames under another, so two tasks on one channel get each other's confirms.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lapin::options::BasicPublishOptions;
use lapin::{Confirmation, PublisherConfirm};
use tokio::sync::watch;
use tokio::time::Instant;

use super::fault::Blame;
use super::in_flight::{Ended, InFlight};
use super::judge::{Answer, Judge, Seq, Stray};
use super::{encode, until};
use crate::broker::patience::Patience;
use crate::broker::{Channel, ChannelLost, LinkState, LossCause, Outcome};
use crate::message::{Publication, RowId};

/// Once so many bytes are with lapin and not written yet, the rest waits here. lapin copies
/// each body into frames when it takes it; without a bound a blocked or slow connection would
/// double the memory of everything in flight. Enough to fill a socket's buffer many times.
const UNWRITTEN: usize = 1024 * 1024;

/// A channel of an [`AmqpLink`](super::AmqpLink).
pub struct AmqpChannel {
    channel: Arc<lapin::Channel>,
    state: watch::Receiver<LinkState>,
    faults: watch::Receiver<Option<LossCause>>,
    patience: Patience,
    /// Handed in, not yet given to lapin.
    waiting: VecDeque<Arc<Publication>>,
    /// Bytes that lapin has and the socket has not.
    unwritten: Arc<AtomicUsize>,
    in_flight: InFlight,
    judge: Judge,
    blame: Blame,
    lost: Option<LossCause>,
    /// Of a lost channel, and not reported yet.
    unknown: Vec<RowId>,
    /// Reused between rounds.
    ended: Vec<Ended>,
}

/// What a wait ended with.
enum Turn {
    Moved,
    LinkState,
    Fault,
    Deadline,
}

impl AmqpChannel {
    pub(super) fn new(
        channel: lapin::Channel,
        mut state: watch::Receiver<LinkState>,
        faults: watch::Receiver<Option<LossCause>>,
        confirm_timeout: Duration,
    ) -> Self {
        // Have the first wait look at the state, which may not be `Open`.
        state.mark_changed();
        Self {
            channel: Arc::new(channel),
            state,
            faults,
            patience: Patience::new(confirm_timeout),
            waiting: VecDeque::new(),
            unwritten: Arc::default(),
            in_flight: InFlight::default(),
            judge: Judge::default(),
            blame: Blame::default(),
            lost: None,
            unknown: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// Gives lapin what it may have, in order.
    fn start_waiting(&mut self) {
        while self.lost.is_none() && self.unwritten.load(Ordering::Relaxed) < UNWRITTEN {
            let Some(publication) = self.waiting.pop_front() else {
                return;
            };
            let since = self.patience.clock(Instant::now());
            let seq = self.judge.published(publication.id(), since);
            let size = publication.buffered();
            self.unwritten.fetch_add(size, Ordering::Relaxed);
            let (channel, unwritten) = (Arc::clone(&self.channel), Arc::clone(&self.unwritten));
            self.in_flight.start(seq, async move {
                let written = write(&channel, &publication).await;
                unwritten.fetch_sub(size, Ordering::Relaxed);
                written
            });
        }
    }

    async fn turn(&mut self) -> Turn {
        let oldest = self.judge.oldest_waiting();
        let deadline = oldest.and_then(|since| self.patience.deadline(since));
        let Self {
            state,
            faults,
            in_flight,
            ended,
            ..
        } = self;
        let round = poll_fn(|cx| match in_flight.poll_round(cx, ended) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        });
        tokio::select! {
            biased;
            () = round => Turn::Moved,
            _ = state.changed() => Turn::LinkState,
            _ = faults.changed() => Turn::Fault,
            () = until(deadline) => Turn::Deadline,
        }
    }

    /// Reads what has ended, and decides what has become certain.
    fn end_round(&mut self) {
        let mut ended = std::mem::take(&mut self.ended);
        for (seq, answer) in ended.drain(..) {
            if let Err(cause) = self.read(seq, answer) {
                // What is open after such an answer stays open, so the round is not ended.
                self.lost.get_or_insert(cause);
                break;
            }
        }
        self.ended = ended;
        if self.lost.is_none() {
            self.judge.end_round();
            self.lost = self.blame.take();
        }
    }

    fn read(&mut self, seq: Seq, answer: lapin::Result<Confirmation>) -> Result<(), LossCause> {
        let (answer, returned) = match answer {
            Ok(Confirmation::Ack(returned)) => (Answer::Ack, returned),
            Ok(Confirmation::Nack(returned)) => (Answer::Nack, returned),
            Ok(Confirmation::NotRequested) => {
                let reason = "the channel is not in confirm mode".to_owned();
                return Err(LossCause::Connection { reason });
            }
            Err(error) => {
                self.blame.take_note(&error);
                return Ok(());
            }
        };
        let returned = returned.as_ref().map(encode::returned);
        self.judge
            .answered(seq, answer, returned)
            .map_err(|Stray(id)| {
                let whose = id.map_or("without an id".to_owned(), |id| format!("of row {id}"));
                let reason = format!("a message {whose} came back that is not in flight");
                LossCause::Connection { reason }
            })
    }

    /// Looks once more before something is given up.
    fn look_again(&mut self) {
        let cx = Context::from_waker(Waker::noop());
        self.in_flight.poll_round(&cx, &mut self.ended);
        self.end_round();
    }

    fn heed_state(&mut self) {
        let state = self.state.borrow_and_update().clone();
        match state {
            LinkState::Open => self.patience.go_on(Instant::now()),
            LinkState::Blocked(_) => self.patience.stop(Instant::now()),
            LinkState::Lost(reason) => {
                self.look_again();
                self.lost.get_or_insert(LossCause::Connection { reason });
            }
        }
    }

    /// Some channel of the connection was closed by the broker; was it this one? Publications
    /// in flight tell by failing, but there may be none.
    fn heed_fault(&mut self) {
        let cause = self.faults.borrow_and_update().clone();
        if self.channel.status().connected() {
            return;
        }
        self.look_again();
        if let Some(cause) = cause {
            self.lost.get_or_insert(cause);
        }
    }

    fn heed_deadline(&mut self) {
        self.look_again();
        let oldest = self.judge.oldest_waiting();
        let deadline = oldest.and_then(|since| self.patience.deadline(since));
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            let later_confirmed = self.judge.later_answered();
            self.lost
                .get_or_insert(LossCause::Silent { later_confirmed });
        }
    }

    fn give_up(&mut self) {
        self.unknown.append(&mut self.judge.lost());
        let waiting = self.waiting.drain(..);
        self.unknown
            .extend(waiting.map(|publication| publication.id()));
    }
}

impl Channel for AmqpChannel {
    async fn publish(&mut self, batch: Vec<Arc<Publication>>) {
        self.waiting.extend(batch);
        self.start_waiting();
    }

    async fn judged(&mut self) -> Result<Vec<(RowId, Outcome)>, ChannelLost> {
        loop {
            if self.lost.is_some() {
                self.give_up();
            }
            let judged = self.judge.take_judged();
            if !judged.is_empty() {
                return Ok(judged);
            }
            if let Some(cause) = self.lost.clone() {
                let unknown = std::mem::take(&mut self.unknown);
                return Err(ChannelLost { cause, unknown });
            }
            match self.turn().await {
                Turn::Moved => self.end_round(),
                Turn::LinkState => self.heed_state(),
                Turn::Fault => self.heed_fault(),
                Turn::Deadline => self.heed_deadline(),
            }
            self.start_waiting();
        }
    }
}

/// Ends when the socket has taken the message; what lapin then gives waits for the broker.
async fn write(
    channel: &lapin::Channel,
    publication: &Publication,
) -> lapin::Result<PublisherConfirm> {
    let options = BasicPublishOptions {
        mandatory: publication.is_mandatory(),
        immediate: false,
    };
    channel
        .basic_publish(
            encode::short(publication.exchange()),
            encode::short(publication.routing_key()),
            options,
            publication.payload(),
            encode::properties(publication.properties()),
        )
        .await
}
