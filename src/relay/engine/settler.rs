//! The settling task: keeps a settling session and writes down what the engine decided.
//!
//! Signs of life, which renew the leases, and everything else about leases go over the same
//! session, between two batches: who can no longer settle can no longer renew.
//!
//! A batch whose fate is unknown is settled again: settling twice is harmless. Rows that somebody
//! holds locked are tried again later, apart from the others. A batch that the database refuses
//! is taken apart until only what it refuses is left over.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, trace, warn};

use super::desk::{Desk, LATER};
use super::event::{Event, Events};
use super::herald::Herald;
use super::news::News;
use super::observer::{Connections, Observer, Server};
use super::obstacles::Obstacles;
use super::retry::{Attempts, in_ms, pause};
use super::rhythm::{self, Outcome, Rhythm};
use super::upkeep::Upkeep;
use crate::relay::rules::{PartitionSet, Settlement, Take};
use crate::runtime::{Clock, Moment};
use crate::store::{Settler, Store, StoreError};

/// Rows of one settlement at the most.
const BATCH: usize = 1000;

/// So often a busy database (deadlock, serialization failure) is asked again at once.
const AT_ONCE: u32 = 5;

/// How long a goodbye may take.
const FAREWELL: Duration = Duration::from_secs(2);

/// What the engine wants done about leases.
#[derive(Debug)]
pub(super) enum Order {
    /// Look who owns what.
    Look,
    /// Take partitions.
    Take(Take),
    /// Give these back.
    Release(PartitionSet),
}

/// What the engine sends here.
pub(super) struct Inbox {
    pub(super) settlements: mpsc::UnboundedReceiver<Vec<Settlement>>,
    pub(super) orders: mpsc::UnboundedReceiver<Order>,
}

impl Inbox {
    /// Where settlements go, where orders go, and where both arrive.
    pub(super) fn channels() -> (
        mpsc::UnboundedSender<Vec<Settlement>>,
        mpsc::UnboundedSender<Order>,
        Self,
    ) {
        let (decided, settlements) = mpsc::unbounded_channel();
        let (ordered, orders) = mpsc::unbounded_channel();
        let inbox = Self {
            settlements,
            orders,
        };
        (decided, ordered, inbox)
    }
}

/// Runs until the engine has nothing more to settle, or until it is stopped.
pub(super) async fn settle<S: Store>(
    store: Arc<S>,
    mut inbox: Inbox,
    events: Events,
    mut herald: Herald,
    mut upkeep: Upkeep,
    observer: Arc<dyn Observer>,
    stop: CancellationToken,
) {
    let (mut attempts, mut news) = (Attempts::new(), News::default());
    let mut desk = Desk::default();
    let mut connections = Connections::new(Server::Database, &observer);
    loop {
        let error = match stop.run_until_cancelled(store.open_settler()).await {
            None => return,
            Some(Err(error)) => error,
            Some(Ok(mut settler)) => {
                attempts.succeeded();
                connections.made();
                if news.is_success_news() {
                    info!("settling in the database");
                }
                events.report(Event::SettlerReady);
                herald.start_anew();
                let mut clerk = Clerk {
                    settler: &mut settler,
                    herald: &mut herald,
                    upkeep: &mut upkeep,
                    observer: &*observer,
                    rhythm: Rhythm::beginning(Clock.now() + rhythm::FIRST),
                };
                let serving = clerk.serve(&mut inbox, &mut desk, &events);
                match stop.run_until_cancelled(serving).await {
                    Some(Err(error)) => error,
                    Some(Ok(())) | None => {
                        clerk.leave().await;
                        return;
                    }
                }
            }
        };
        let delay = attempts.failed();
        if news.is_failure_news(&error.to_string(), Clock.now()) {
            warn!(%error, retry_in_ms = in_ms(delay), "cannot settle in the database");
        }
        events.report(Event::SettlerLost(error));
        if !pause(delay, &stop).await {
            return;
        }
    }
}

/// Who settles, and now and then says that this relay is alive.
struct Clerk<'a, T> {
    settler: &'a mut T,
    herald: &'a mut Herald,
    upkeep: &'a mut Upkeep,
    observer: &'a dyn Observer,
    rhythm: Rhythm,
}

impl<T: Settler> Clerk<'_, T> {
    async fn serve(
        &mut self,
        inbox: &mut Inbox,
        desk: &mut Desk,
        events: &Events,
    ) -> Result<(), StoreError> {
        let mut later_at = None;
        loop {
            while desk.now.len() < BATCH
                && let Ok(more) = inbox.settlements.try_recv()
            {
                desk.now.extend(more);
            }
            self.announce(&desk.obstacles, events).await?;
            while let Ok(order) = inbox.orders.try_recv() {
                self.obey(order, events).await?;
            }
            self.measure().await?;
            let speaks = self.herald.speaks();
            if speaks {
                self.upkeep.go_on(self.settler, self.observer).await?;
            }
            if !desk.now.is_empty() {
                self.write_down(desk, events).await?;
                continue;
            }
            let now = Clock.now();
            let later_in = now.until(*later_at.get_or_insert(now + LATER));
            if desk.take_refused(now) {
                continue;
            }
            let sweep_at = self.upkeep.due_at();
            let wake_at = self.herald.ask_at();
            let wake_at = if speaks {
                wake_at.min(sweep_at)
            } else {
                wake_at
            };
            tokio::select! {
                more = inbox.settlements.recv() => match more {
                    Some(more) => desk.now.extend(more),
                    None => return Ok(()),
                },
                Some(order) = inbox.orders.recv() => self.obey(order, events).await?,
                () = tokio::time::sleep(later_in) => {
                    later_at = None;
                    desk.take_later();
                }
                () = tokio::time::sleep(now.until(wake_at)) => {}
                error = self.settler.ended() => return Err(error),
            }
        }
    }

    /// Writes down what is on the desk, and tells how many rows cannot be.
    async fn write_down(&mut self, desk: &mut Desk, events: &Events) -> Result<(), StoreError> {
        self.rhythm.settled();
        write_down(self.settler, self.observer, desk, events).await?;
        if let Some((rows, partitions)) = desk.news() {
            events.report(Event::Stuck { rows, partitions });
        }
        Ok(())
    }

    /// Says that this relay is alive, which renews its leases, if it is time to, and looks what
    /// they are. Takes two round trips and waits for no lock.
    async fn announce(&mut self, obstacles: &Obstacles, events: &Events) -> Result<(), StoreError> {
        let now = Clock.now();
        let Some(sign) = self.herald.due(|| obstacles.held_back(now), now) else {
            return Ok(());
        };
        let renewed = match self.settler.announce(&sign).await {
            Ok(true) => Some(now),
            // Tried again with the next sign.
            Ok(false) | Err(StoreError::Retryable(_)) => None,
            Err(error) => return Err(error),
        };
        self.look(renewed, PartitionSet::NONE, events).await
    }

    async fn look(
        &mut self,
        renewed: Option<Moment>,
        released: PartitionSet,
        events: &Events,
    ) -> Result<(), StoreError> {
        let leases = self.settler.leases().await?;
        events.report(Event::Leases {
            leases,
            renewed,
            released,
        });
        Ok(())
    }

    /// Does it, and looks what that led to.
    async fn obey(&mut self, order: Order, events: &Events) -> Result<(), StoreError> {
        let mut released = PartitionSet::NONE;
        let done = match &order {
            Order::Look => Ok(()),
            Order::Take(take) => self.settler.take(take).await,
            Order::Release(partitions) => {
                released = *partitions;
                self.settler.release(partitions).await
            }
        };
        match done {
            // A deadlock with another relay: what is seen next decides.
            Ok(()) | Err(StoreError::Retryable(_)) => self.look(None, released, events).await,
            Err(error) => Err(error),
        }
    }

    /// Measures the outbox, if it is time to and this relay speaks for it.
    async fn measure(&mut self) -> Result<(), StoreError> {
        let begun = Clock.now();
        // What waits while the broker is away grows old unnoticed else.
        let watched = self.observer.is_watched() || !self.herald.is_idle();
        if !self.rhythm.is_due(watched, begun) || !self.herald.speaks() {
            return Ok(());
        }
        let measured = self.settler.measure().await;
        let outcome = match &measured {
            Ok(measures) => Outcome::Seen {
                due: measures.oldest_due.is_some(),
            },
            Err(StoreError::Retryable(_)) => Outcome::Locked,
            Err(_) => Outcome::Failed,
        };
        self.rhythm.measured(begun, Clock.now(), outcome);
        match measured {
            Ok(measures) => self.observer.measured(measures),
            Err(error @ (StoreError::Unreachable(_) | StoreError::ReadOnly(_))) => {
                return Err(error);
            }
            Err(error) => debug!(%error, "the outbox cannot be measured"),
        }
        Ok(())
    }

    /// Takes back the sign of life, and with it the leases. If that fails it grows old by itself.
    async fn leave(&mut self) {
        let withdrawing = self.settler.withdraw();
        match tokio::time::timeout(FAREWELL, withdrawing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, "cannot take back the sign of life"),
            Err(_) => warn!("no answer when taking back the sign of life"),
        }
    }
}

/// Settles one batch from the desk. On an error it is back on the desk.
async fn write_down<T: Settler>(
    settler: &mut T,
    observer: &dyn Observer,
    desk: &mut Desk,
    events: &Events,
) -> Result<(), StoreError> {
    let end = desk.now.len().min(BATCH);
    let mut batches: Vec<Vec<Settlement>> = vec![desk.now.drain(..end).collect()];
    let mut busy = 0;
    while let Some(batch) = batches.pop() {
        let begun = Clock.now();
        let settled = settler.settle(&batch).await;
        if settled.is_err() {
            desk.doubt(&batch);
        }
        match settled {
            Ok(report) => {
                observer.settled(Clock.now().since(begun));
                busy = 0;
                for settlement in &batch {
                    trace!(
                        row = settlement.id.0,
                        "its fate was written down, or is locked"
                    );
                }
                desk.tried(batch, &report, Clock.now());
                events.report(Event::Settled(report));
            }
            Err(StoreError::Retryable(_)) if busy < AT_ONCE => {
                busy += 1;
                batches.push(batch);
            }
            Err(error) if is_about_a_row(&error) => take_apart(batch, &error, &mut batches, desk),
            Err(error) => {
                batches.push(batch);
                desk.now.splice(..0, batches.into_iter().rev().flatten());
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Might the rest of the batch succeed without one of its rows? A trigger of the application's
/// own relation may refuse one, or make it take too long.
fn is_about_a_row(error: &StoreError) -> bool {
    match error {
        StoreError::Other(_) | StoreError::TimedOut(_) | StoreError::Retryable(_) => true,
        StoreError::Unreachable(_)
        | StoreError::ReadOnly(_)
        | StoreError::Schema(_)
        | StoreError::Denied(_)
        | StoreError::Settings(_) => false,
    }
}

fn take_apart(
    mut batch: Vec<Settlement>,
    error: &StoreError,
    batches: &mut Vec<Vec<Settlement>>,
    desk: &mut Desk,
) {
    if batch.len() > 1 {
        let second = batch.split_off(batch.len() / 2);
        batches.push(second);
        batches.push(batch);
        return;
    }
    for settlement in batch {
        desk.refuse(settlement, error, Clock.now());
    }
}
