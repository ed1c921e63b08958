//! A broker in memory that behaves like RabbitMQ as far as a publisher can tell, and as badly
//! as a test wants it to.
//!
//! Everything happens at once and in order, in the call that causes it, so a test that uses
//! one task is deterministic. It passes the same contract suite as the real one. It is compiled
//! into the library for the tests of whoever builds on it; the daemon does not use it.

mod link;
mod state;
mod topology;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

pub use link::{MemoryChannel, MemoryLink};

use self::state::State;
use crate::broker::LossCause;
use crate::message::Publication;

/// A broker, and the strings its tests pull. Clones are the same broker.
#[derive(Clone)]
pub struct MemoryBroker(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Counts changes, so that whoever waits looks again.
    changes: watch::Sender<u64>,
}

impl Default for MemoryBroker {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryBroker {
    /// An empty broker: only the default exchange exists.
    #[must_use]
    pub fn new() -> Self {
        let (changes, _) = watch::channel(0);
        let state = Mutex::new(State::default());
        Self(Arc::new(Shared { state, changes }))
    }

    /// Declares an exchange. A binding decides what it does: see [`MemoryBroker::bind`].
    pub fn declare_exchange(&self, exchange: &str) {
        self.change(|state| state.topology.declare_exchange(exchange));
    }

    /// Deletes an exchange with its bindings; the next publication to it closes its channel.
    pub fn delete_exchange(&self, exchange: &str) {
        self.change(|state| state.topology.delete_exchange(exchange));
    }

    /// Declares a queue, which the default exchange reaches by its name.
    pub fn declare_queue(&self, queue: &str) {
        self.change(|state| {
            state.topology.queue(queue);
        });
    }

    /// Binds a queue to an exchange by a routing key; `#` takes every key.
    pub fn bind(&self, exchange: &str, routing_key: &str, queue: &str) {
        self.change(|state| state.topology.bind(exchange, routing_key, queue));
    }

    /// Removes a binding.
    pub fn unbind(&self, exchange: &str, routing_key: &str, queue: &str) {
        self.change(|state| state.topology.unbind(exchange, routing_key, queue));
    }

    /// A queue that holds as much takes no more and has what else comes nacked, like a queue
    /// with `x-overflow = reject-publish`. `None` for no limit.
    pub fn limit_queue(&self, queue: &str, max_length: Option<usize>) {
        self.change(|state| state.topology.queue(queue).max_length = max_length);
    }

    /// A stalled queue takes messages and confirms none, like a quorum queue without a leader.
    /// When it is not stalled any more, it confirms them.
    pub fn stall_queue(&self, queue: &str, stalled: bool) {
        self.change(|state| state.stall_queue(queue, stalled));
    }

    /// Takes away, or gives back, the right to write to an exchange (403).
    pub fn refuse_writes(&self, exchange: &str, refused: bool) {
        self.change(|state| state.topology.refuse_writes(exchange, refused));
    }

    /// Refuses connections with a reason, or lets them in again.
    pub fn refuse_connects(&self, reason: Option<&str>) {
        self.change(|state| state.refusing_connects = reason.map(str::to_owned));
    }

    /// Blocks all connections, present and future: what is published waits.
    pub fn block(&self, reason: &str) {
        self.change(|state| state.block(reason));
    }

    /// Takes what waited, in order, and goes on.
    pub fn unblock(&self) {
        self.change(State::unblock);
    }

    /// Cuts all connections. What was taken stays taken; confirms not seen yet are never seen.
    pub fn cut(&self, reason: &str) {
        self.change(|state| state.cut(reason));
    }

    /// Closes all open channels from the broker's side; the connections stay.
    pub fn close_channels(&self, code: u16, text: &str) {
        let text = text.to_owned();
        self.change(|state| state.close_channels(&LossCause::Closed { code, text }));
    }

    /// Keeps answers back until [`MemoryBroker::release_confirms`].
    pub fn hold_confirms(&self) {
        self.change(|state| state.holding = true);
    }

    /// Hands out what was held, and holds nothing more.
    pub fn release_confirms(&self) {
        self.change(|state| state.holding = false);
    }

    /// Takes the next `count` publications and never answers them.
    pub fn lose_confirms(&self, count: usize) {
        self.change(|state| state.losing = count);
    }

    /// How long channels opened from now on wait for a confirm; without one, for ever.
    pub fn set_confirm_timeout(&self, timeout: Duration) {
        self.change(|state| state.confirm_timeout = Some(timeout));
    }

    /// What a queue holds, oldest first.
    #[must_use]
    pub fn messages(&self, queue: &str) -> Vec<Arc<Publication>> {
        self.state().topology.messages(queue)
    }

    /// Takes everything out of a queue, oldest first.
    #[must_use]
    pub fn drain(&self, queue: &str) -> Vec<Arc<Publication>> {
        std::mem::take(&mut self.state().topology.queue(queue).messages)
    }

    /// How many publications arrived in all, also those that were refused.
    #[must_use]
    pub fn publishes(&self) -> u64 {
        self.state().publishes
    }

    /// How many connections were opened in all.
    #[must_use]
    pub fn connects(&self) -> u64 {
        self.state().connects
    }

    /// How many connections are open now.
    #[must_use]
    pub fn open_links(&self) -> usize {
        self.state().open_links()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state());
        self.0.changes.send_modify(|count| *count += 1);
        result
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }
}

#[cfg(test)]
mod tests;
