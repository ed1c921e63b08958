//! Runs a [`LeasedHandler`]: renews while it runs, drops it when the lease is lost.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::desk::Desk;
use super::dispatch::Runner;
use super::handler::LeasedHandler;
use super::job::{Ending, Job, Verdict};
use super::transactional::judged;
use crate::runtime::Clock;

/// Runs the application's handler.
pub(super) struct Leased<H>(pub(super) H);

impl<H: LeasedHandler> Runner for Leased<H> {
    async fn run(&self, desk: &Desk, job: &Job) -> Ending {
        let work = AssertUnwindSafe(self.0.handle(&job.message)).catch_unwind();
        let work = timeout(desk.settings.handler_timeout, work);
        tokio::select! {
            biased;
            run = work => match judged(run, desk) {
                Ok(result) => Ending::Verdict(Verdict::Complete(result), None),
                Err(ending) => ending,
            },
            () = lost(desk, job) => Ending::Lost,
            // It may have acted; whoever comes next is told.
            () = desk.abort.cancelled() => Ending::Verdict(Verdict::Expire, None),
        }
    }
}

/// Renews at a third of the lease, and returns when it is lost: the database says so, or our own
/// clock, counted from before the last renewal that was answered.
async fn lost(desk: &Desk, job: &Job) {
    let lease = desk.settings.lease;
    let mut until = job.claimed_at + lease;
    let mut pause = lease / 3;
    loop {
        sleep(pause.min(Clock.now().until(until))).await;
        let asked_at = Clock.now();
        if asked_at >= until {
            warn!(
                consumer = desk.consumer(),
                message_id = job.key.message_id,
                "the lease could not be renewed in time; the handler is dropped"
            );
            return;
        }
        match renew(desk, job, asked_at.until(until)).await {
            Some(true) => {
                until = asked_at + lease;
                pause = lease / 3;
            }
            Some(false) => return,
            None => pause = lease / 10,
        }
    }
}

/// `None`: no answer.
async fn renew(desk: &Desk, job: &Job, longest: Duration) -> Option<bool> {
    let asking = async {
        let line = desk.keeper.line().await;
        let functions = line.functions();
        let renewed = functions.renew(desk.consumer(), &job.key, desk.settings.lease);
        match renewed.await {
            Ok(renewed) => Some(renewed),
            Err(error) => {
                desk.keeper.doubt(&line, &error);
                None
            }
        }
    };
    timeout(longest, asking).await.ok()?
}
