//! Runs a [`TransactionalHandler`]: hold, effect, complete, commit.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use tokio::time::timeout;
use tokio_postgres::Transaction;

use super::desk::Desk;
use super::dispatch::Runner;
use super::functions::Functions;
use super::handler::{HandlerResult, TransactionalHandler};
use super::job::{Ending, Job, Verdict};
use super::keeper::Line;
use super::observer::RetryReason;
use crate::store::error::StoreError;
use crate::store::postgres::sqlstate::store_error;

/// Runs the application's handler.
pub(super) struct Transactional<H>(pub(super) H);

impl<H: TransactionalHandler> Runner for Transactional<H> {
    async fn run(&self, desk: &Desk, job: &Job) -> Ending {
        let mut line = match desk.handler_line().await {
            Ok(line) => line,
            Err(error) => {
                tracing::warn!(consumer = desk.consumer(), %error, "no session for a handler");
                return Ending::Verdict(Verdict::Release, None);
            }
        };
        let ending = tokio::select! {
            biased;
            ending = self.in_transaction(desk, job, &mut line) => ending,
            // Dropping the transaction rolls it back: nothing happened.
            () = desk.abort.cancelled() => return Ending::Verdict(Verdict::Release, None),
        };
        // A session that was left in doubt is closed by being dropped.
        if !matches!(ending, Ending::Unknown) {
            desk.put_back(line);
        }
        ending
    }
}

impl<H: TransactionalHandler> Transactional<H> {
    async fn in_transaction(&self, desk: &Desk, job: &Job, line: &mut Line) -> Ending {
        let longest = line.longest();
        let begin = timeout(longest, line.session.client.transaction()).await;
        let Ok(Ok(transaction)) = begin else {
            return Ending::Verdict(Verdict::Release, None);
        };
        let functions = Functions {
            client: &transaction,
            longest,
        };
        match functions.hold(desk.consumer(), &job.key).await {
            Ok(true) => {}
            Ok(false) => return Ending::Lost,
            Err(error) => {
                tracing::warn!(consumer = desk.consumer(), %error, "not begun");
                return Ending::Verdict(Verdict::Release, None);
            }
        }
        let result = match self.handle(desk, job, &transaction).await {
            Ok(result) => result,
            Err(ending) => {
                // Dropped, it would be rolled back as well, but only before the next statement.
                let _ = timeout(longest, transaction.rollback()).await;
                return ending;
            }
        };
        match functions
            .complete(desk.consumer(), &job.key, result.as_ref())
            .await
        {
            Ok(true) => {}
            Ok(false) => return Ending::Lost,
            Err(error) => {
                let reason = format!("the result could not be stored: {error}");
                return Ending::again(RetryReason::Commit, reason);
            }
        }
        committed(timeout(longest, transaction.commit()).await)
    }

    async fn handle(
        &self,
        desk: &Desk,
        job: &Job,
        transaction: &Transaction<'_>,
    ) -> Result<Option<serde_json::Value>, Ending> {
        let work = self.0.handle(transaction, &job.message);
        let work = AssertUnwindSafe(work).catch_unwind();
        judged(timeout(desk.settings.handler_timeout, work).await, desk)
    }
}

/// Reads how a handler's run ended: in time, without a panic, with a result.
pub(super) fn judged<P>(
    run: Result<Result<HandlerResult, P>, tokio::time::error::Elapsed>,
    desk: &Desk,
) -> Result<Option<serde_json::Value>, Ending> {
    match run {
        Ok(Ok(Ok(result))) => Ok(result),
        Ok(Ok(Err(failure))) => Err(Ending::from(failure)),
        Ok(Err(_panic)) => Err(Ending::again(RetryReason::Panic, "the handler panicked")),
        Err(_) => {
            let seconds = desk.settings.handler_timeout.as_secs();
            let reason = format!("the handler did not end within {seconds} s");
            Err(Ending::again(RetryReason::Timeout, reason))
        }
    }
}

/// A refusal that PostgreSQL answered with is certain; a lost answer is not.
fn committed(
    answer: Result<Result<(), tokio_postgres::Error>, tokio::time::error::Elapsed>,
) -> Ending {
    match answer {
        Ok(Ok(())) => Ending::Committed,
        Err(_) => Ending::Unknown,
        Ok(Err(error)) => match store_error("commit", &error) {
            StoreError::Unreachable(_) | StoreError::TimedOut(_) => Ending::Unknown,
            refused @ (StoreError::Retryable(_)
            | StoreError::ReadOnly(_)
            | StoreError::Schema(_)
            | StoreError::Denied(_)
            | StoreError::Settings(_)
            | StoreError::Other(_)) => Ending::again(RetryReason::Commit, refused.to_string()),
        },
    }
}
