//! Decides what is worked on next: due entries first, then deliveries, as many at once as allowed.
//!
//! Claims are made one after the other in the order of delivery; the order of a key follows from
//! that.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::desk::Desk;
use super::envelope::{self, Envelope};
use super::functions::{Claim, is_the_messages_fault};
use super::job::{Ending, Job, Verdict};
use super::keeper::Line;
use super::rate::Rate;
use crate::broker::Received;
use crate::runtime::{Clock, Moment};

/// Runs one job with the application's handler.
pub(super) trait Runner: Send + Sync + 'static {
    fn run(&self, desk: &Desk, job: &Job) -> impl Future<Output = Ending> + Send;
}

/// Hands out work.
pub(super) struct Dispatch<R> {
    pub(super) desk: Arc<Desk>,
    pub(super) runner: Arc<R>,
    pub(super) deliveries: mpsc::Receiver<Received>,
    pub(super) stop: CancellationToken,
    pub(super) running: TaskTracker,
    slots: Arc<Semaphore>,
    rate: Rate,
    next_due: Moment,
}

/// What came next.
enum Next {
    Stop,
    Due,
    Delivery(Box<Received>),
}

impl<R: Runner> Dispatch<R> {
    pub(super) fn new(
        desk: Arc<Desk>,
        runner: Arc<R>,
        deliveries: mpsc::Receiver<Received>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            runner,
            deliveries,
            stop,
            running: TaskTracker::new(),
            slots: Arc::new(Semaphore::new(desk.settings.concurrency)),
            rate: Rate::new(desk.settings.max_rate),
            next_due: Moment::ORIGIN,
            desk,
        }
    }

    /// Runs until told to stop. What was started goes on.
    pub(super) async fn run(&mut self) {
        if self.line().await.is_none() {
            return;
        }
        // Deliveries first: what crashed the process before us would crash this one, too, before
        // it has stored what was given back again and again.
        self.next_due = Clock.now() + self.desk.settings.due_interval;
        while let Some(permit) = self.free_slot().await {
            match self.next().await {
                Next::Stop => return,
                Next::Due => self.start_due(permit).await,
                Next::Delivery(received) => self.start(*received, permit).await,
            }
        }
    }

    /// Waits until one more may be started. `None`: told to stop.
    async fn free_slot(&self) -> Option<OwnedSemaphorePermit> {
        let free = async {
            // Never closed.
            let permit = Arc::clone(&self.slots).acquire_owned().await.ok()?;
            sleep(self.rate.pause(Clock.now())).await;
            Some(permit)
        };
        tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            permit = free => permit,
        }
    }

    async fn next(&mut self) -> Next {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Next::Stop,
            () = sleep(Clock.now().until(self.next_due)) => Next::Due,
            () = self.desk.due.notified() => Next::Due,
            received = self.deliveries.recv() => match received {
                Some(received) => Next::Delivery(Box::new(received)),
                None => Next::Stop,
            },
        }
    }

    async fn start_due(&mut self, permit: OwnedSemaphorePermit) {
        let mut permits = vec![permit];
        // With a rate limit they are started one by one.
        while !self.rate.limits()
            && let Ok(permit) = Arc::clone(&self.slots).try_acquire_owned()
        {
            permits.push(permit);
        }
        let claimed_at = Clock.now();
        self.next_due = claimed_at + self.desk.settings.due_interval;
        let Some(line) = self.line().await else {
            return;
        };
        // Not given up half-way: what it hands out is claimed.
        let functions = line.functions();
        let due = match functions.due(&self.desk.settings, permits.len()).await {
            Ok(due) => due,
            Err(error) => return self.desk.keeper.doubt(&line, &error),
        };
        if due.len() == permits.len() {
            // There may be more.
            self.next_due = claimed_at;
        }
        for ((key, message), permit) in due.into_iter().zip(permits) {
            // Others of its key may wait behind it.
            self.desk.waits(message.ordering_key.as_ref());
            let job = Job {
                key,
                message,
                receipt: None,
                claimed_at,
            };
            self.spawn(job, permit);
        }
    }

    async fn start(&mut self, received: Received, permit: OwnedSemaphorePermit) {
        let consumer = self.desk.settings.consumer.as_str();
        if received.redelivered {
            self.desk.observer.redelivered(consumer);
        }
        let (envelope, fault) = envelope::read(&received);
        let Some((claim, claimed_at)) = self.claim(&envelope, fault).await else {
            // Told to stop: the broker will deliver it again.
            return;
        };
        match claim {
            Claim::Ours { key, message } => {
                let is_returned = envelope.was_returned_often();
                let job = Job {
                    key,
                    message: *message,
                    receipt: Some(received.receipt),
                    claimed_at,
                };
                if is_returned {
                    self.store(job, permit);
                } else {
                    self.spawn(job, permit);
                }
                return;
            }
            Claim::Duplicate => self.desk.observer.duplicate(consumer),
            Claim::Busy => self.desk.observer.claim_conflict(consumer),
            Claim::Waiting => self.desk.waits(envelope.ordering_key.as_ref()),
            Claim::Dead => {}
        }
        let message_id = envelope.message_id;
        if !received.receipt.ack().await {
            debug!(
                message_id,
                "not acknowledged: the broker will deliver it again"
            );
        }
    }

    /// Claims, however long the database is away. `None`: told to stop.
    async fn claim(&self, envelope: &Envelope, fault: Option<String>) -> Option<(Claim, Moment)> {
        if let Some(fault) = fault {
            return self.refuse(envelope, &fault).await;
        }
        loop {
            let line = self.line().await?;
            let claimed_at = Clock.now();
            let claim = line.functions().claim(&self.desk.settings, envelope).await;
            match claim {
                Ok(claim) => return Some((claim, claimed_at)),
                Err(error) if is_the_messages_fault(&error) => {
                    let fault = format!("the inbox cannot hold it: {}", error.fault());
                    return self.refuse(envelope, &fault).await;
                }
                Err(error) => self.desk.keeper.doubt(&line, &error),
            }
        }
    }

    /// Keeps a message that nobody can work on: whole or, where the database cannot hold that
    /// either, what any database can. `None`: told to stop.
    async fn refuse(&self, envelope: &Envelope, fault: &str) -> Option<(Claim, Moment)> {
        let (settings, consumer) = (&self.desk.settings, self.desk.consumer());
        warn!(consumer, fault, "malformed message: dead");
        let bare = envelope.bare();
        let plain = fault.replace(|one: char| !one.is_ascii() || one == '\0', "?");
        let mut kept = (envelope, fault);
        loop {
            let line = self.line().await?;
            let now = Clock.now();
            let refused = line.functions().refuse(settings, kept.0, kept.1).await;
            match refused {
                Ok(()) => return Some((Claim::Dead, now)),
                Err(error) if is_the_messages_fault(&error) && kept.0 != &bare => {
                    kept = (&bare, &plain);
                }
                Err(error) => self.desk.keeper.doubt(&line, &error),
            }
        }
    }

    /// The session. `None`: told to stop.
    async fn line(&self) -> Option<Arc<Line>> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            line = self.desk.keeper.line() => Some(line),
        }
    }

    /// Leaves a claimed message to `due`, and takes it off the broker before any work begins.
    fn store(&self, job: Job, permit: OwnedSemaphorePermit) {
        let desk = Arc::clone(&self.desk);
        self.running.spawn(async move {
            desk.end(job, Ending::Verdict(Verdict::Release, None)).await;
            // Not due at once: others are to be stored first.
            drop(permit);
        });
    }

    fn spawn(&mut self, job: Job, permit: OwnedSemaphorePermit) {
        let now = Clock.now();
        self.rate.started(now);
        let (desk, runner) = (Arc::clone(&self.desk), Arc::clone(&self.runner));
        self.running.spawn(async move {
            let ending = runner.run(&desk, &job).await;
            let took = Clock.now().since(now);
            desk.observer.handled(desk.consumer(), took);
            desk.end(job, ending).await;
            drop(permit);
        });
    }
}
