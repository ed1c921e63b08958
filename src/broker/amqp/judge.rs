//! The rule by which acks, nacks and returned messages become certain fates. Pure: no client
//! crate, no clock, no waiting.
//!
//! # Why a rule is needed
//!
//! RabbitMQ sends `basic.return` for an unroutable mandatory message *before* its ack
//! (<https://www.rabbitmq.com/docs/confirms#when-publishes-are-confirmed>). lapin keeps the
//! returned messages of a channel in one FIFO queue, and whenever a confirm resolves, it hands
//! that confirm the queue's head, whosever message that is (`acknowledgement.rs`,
//! `complete_pending`; `returned_messages.rs`, `get_waiting_message`). One frame
//! `ack multiple=true` resolves many confirms, in the order of a hash map. So a confirm may carry
//! another message's return, and an unroutable message's confirm may be a plain ack.
//!
//! # The rule
//!
//! A returned message is recognised by the row's id inside it, never by the confirm that
//! carries it. What a confirm without a return of its own means is decided as follows. All of
//! it rests on one fact: **one thread** puts returns into the queue and resolves confirms, one
//! after the other, and for each confirm takes the head, stores the answer and wakes the
//! waiter, before it turns to the next.
//!
//! 1. *A plain answer to X*, one without a return, means that the queue was empty when X was
//!    resolved. X's return, if there is one, had been put into the queue before X's answer was
//!    read. So it had been taken out by a confirm resolved earlier, whose waiter was woken
//!    earlier. Hence: once all waiters that were woken before X's have been looked at, X's
//!    return is known, or there is none. [`Judge::end_round`] is called when everything woken
//!    has been looked at.
//! 2. *An answer to X with the return of Z* says nothing about X: X's return may be further
//!    back in the queue. It is known for certain as soon as
//!    * the queue was empty at some time after X was resolved. A plain answer to W shows that for
//!      the moment when W was resolved. If W was looked at in a later round than X, W was
//!      resolved after X: had W been resolved before X, its waiter would have been woken before
//!      X's answer was there, so the round that found X's answer would have found W's too.
//!    * or every publication of this channel has been resolved. Each return is followed by the
//!      answer to its message. So the queue is never longer than the number of returned messages
//!      that are still unresolved: putting a return in adds one to both, resolving a returned
//!      message takes one from both, resolving any other takes at most one from the queue. With
//!      nothing unresolved the queue is empty.
//!
//! lapin treats nacks like acks in all this, and so does the rule. If the channel ends before a
//! nacked publication is decided, it is nacked: no return could have made it a success.
//!
//! A return that names no open publication would mean that somebody's return was misread. Then
//! nothing that is still open is judged any more, see [`Stray`].

use std::collections::VecDeque;

use tokio::time::Instant;

use crate::broker::{Confirmed, Outcome};
use crate::message::RowId;

/// The place of a publication on its channel, counted from 0.
pub(super) type Seq = u64;

/// How the broker answered a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Ack,
    Nack,
}

/// A returned message, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Return {
    /// `x-outbox-id` of the returned message; `None` if it has none.
    pub(super) id: Option<RowId>,
    pub(super) code: u16,
    pub(super) text: String,
}

/// A returned message that belongs to no open publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stray(pub(super) Option<RowId>);

#[derive(Debug)]
struct Entry {
    id: RowId,
    /// When it was handed to the client library, on a clock that stands while the broker blocks.
    since: Instant,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No answer yet.
    Waiting,
    /// Answered, and it is not certain yet that no return belongs to it.
    Answered(Answer),
    /// Fate reported.
    Closed,
}

/// Follows the publications of one channel, in order, from publishing to certainty.
#[derive(Debug, Default)]
pub(super) struct Judge {
    /// From the oldest that is not closed; `entries[0]` is number `first`.
    entries: VecDeque<Entry>,
    first: Seq,
    /// How many have no answer.
    waiting: usize,
    /// Answered in this round, without a return.
    plain: Vec<Seq>,
    /// Answered in this round, with another's return.
    fresh_suspects: Vec<Seq>,
    /// The same, of earlier rounds.
    suspects: Vec<Seq>,
    /// Returns of open publications. A list: it is short, and one id may come twice.
    returns: Vec<Return>,
    judged: Vec<(RowId, Outcome)>,
}

impl Judge {
    /// Takes note of a publication, in the order of publishing.
    pub(super) fn published(&mut self, id: RowId, since: Instant) -> Seq {
        let seq = self.first + self.entries.len() as Seq;
        let state = State::Waiting;
        self.entries.push_back(Entry { id, since, state });
        self.waiting += 1;
        seq
    }

    /// How many publications are open.
    #[cfg(test)]
    pub(super) fn open(&self) -> usize {
        let entries = self.entries.iter();
        entries.filter(|entry| entry.state != State::Closed).count()
    }

    /// Since when the oldest unanswered publication waits.
    pub(super) fn oldest_waiting(&self) -> Option<Instant> {
        let mut entries = self.entries.iter();
        let oldest = entries.find(|entry| entry.state == State::Waiting)?;
        Some(oldest.since)
    }

    /// Was any publication answered that is younger than the oldest unanswered one?
    pub(super) fn later_answered(&self) -> bool {
        let entries = self.entries.iter();
        let mut younger = entries.skip_while(|entry| entry.state != State::Waiting);
        younger.any(|entry| entry.state != State::Waiting)
    }

    /// Takes note of an answer and of the return that came with it.
    pub(super) fn answered(
        &mut self,
        seq: Seq,
        answer: Answer,
        carried: Option<Return>,
    ) -> Result<(), Stray> {
        let id = self.entry(seq).id;
        self.entry(seq).state = State::Answered(answer);
        self.waiting -= 1;
        let Some(returned) = carried else {
            self.plain.push(seq);
            return Ok(());
        };
        self.returned(returned)?;
        if self.has_return(id) {
            self.decide(seq);
        } else {
            self.fresh_suspects.push(seq);
        }
        Ok(())
    }

    /// Everything woken until now has been looked at: decides what is certain.
    pub(super) fn end_round(&mut self) {
        let queue_was_empty = !self.plain.is_empty();
        let mut plain = std::mem::take(&mut self.plain);
        self.judged.reserve(plain.len());
        for seq in plain.drain(..) {
            self.decide(seq);
        }
        self.plain = plain;
        let all_answered = self.waiting == 0;
        for seq in std::mem::take(&mut self.suspects) {
            if queue_was_empty || all_answered || self.has_return(self.id(seq)) {
                self.decide(seq);
            } else {
                self.suspects.push(seq);
            }
        }
        for seq in std::mem::take(&mut self.fresh_suspects) {
            if all_answered || self.has_return(self.id(seq)) {
                self.decide(seq);
            } else {
                self.suspects.push(seq);
            }
        }
        while self
            .entries
            .front()
            .is_some_and(|entry| entry.state == State::Closed)
        {
            self.entries.pop_front();
            self.first += 1;
        }
    }

    /// Takes the fates that have become certain.
    pub(super) fn take_judged(&mut self) -> Vec<(RowId, Outcome)> {
        std::mem::take(&mut self.judged)
    }

    /// The channel is gone: reports what is certain, and the rest as unknown in the order of
    /// publishing. A known return is certain even if its confirm is missing. The round must
    /// have been ended, unless a [`Stray`] was found in it.
    pub(super) fn lost(&mut self) -> Vec<RowId> {
        let mut unknown = Vec::new();
        for seq in self.first..self.first + self.entries.len() as Seq {
            if self.entry(seq).state == State::Closed {
                continue;
            }
            let id = self.id(seq);
            if self.has_return(id) || self.entry(seq).state == State::Answered(Answer::Nack) {
                self.decide(seq);
            } else {
                unknown.push(id);
            }
        }
        *self = Self {
            judged: std::mem::take(&mut self.judged),
            ..Self::default()
        };
        unknown
    }

    fn returned(&mut self, returned: Return) -> Result<(), Stray> {
        let is_open = |entry: &Entry| Some(entry.id) == returned.id && entry.state != State::Closed;
        if !self.entries.iter().any(is_open) {
            return Err(Stray(returned.id));
        }
        self.returns.push(returned);
        Ok(())
    }

    fn has_return(&self, id: RowId) -> bool {
        self.returns.iter().any(|returned| returned.id == Some(id))
    }

    /// All that can be known about a publication is known: a return belongs to it, or it was
    /// answered and none does.
    fn decide(&mut self, seq: Seq) {
        let id = self.id(seq);
        let mut returns = self.returns.iter();
        let outcome = match returns.position(|returned| returned.id == Some(id)) {
            Some(place) => {
                let Return { code, text, .. } = self.returns.swap_remove(place);
                Outcome::Returned { code, text }
            }
            None if self.entry(seq).state == State::Answered(Answer::Ack) => {
                Outcome::Confirmed(Confirmed::proven())
            }
            None => Outcome::Nacked,
        };
        self.entry(seq).state = State::Closed;
        self.judged.push((id, outcome));
    }

    fn id(&self, seq: Seq) -> RowId {
        self.entries[self.place(seq)].id
    }

    fn entry(&mut self, seq: Seq) -> &mut Entry {
        let place = self.place(seq);
        &mut self.entries[place]
    }

    fn place(&self, seq: Seq) -> usize {
        usize::try_from(seq - self.first).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
