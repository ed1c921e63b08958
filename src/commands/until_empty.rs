//! `run --until-empty`: when it gives up on its servers, what it says at its end, and how it
//! ends. The daemon proper waits for ever and does nothing of this.

use std::io::Write;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tracing::warn;

use super::Exit;
use crate::relay::Ended;
use crate::runtime::condition::{Broker, Condition, Database};
use crate::runtime::{Clock, Health};
use crate::store::StoreError;
use crate::store::postgres::PgStore;
use crate::store::postgres::operator::Operator;
use crate::store::postgres::remaining::{Count, Remaining};

/// A server that could not be used for so long without a break will hardly come back for a
/// command that somebody waits for.
pub(super) const PATIENCE: &str = "1m";

/// Of rows that are due after everything was sent that could be.
const HELD_BACK: &str = " (held back by others of their key or destination, by a pause or by other relays; \
     see outbox-relay status)";

/// Of the grace period, one part in so many is left for the last look at the outbox.
const LOOK: u32 = 20;

/// Ends when one of the servers could not be used for so long; tells which, and why.
pub(super) async fn out_of_reach(health: &Health, patience: Duration) -> OutOfReach {
    let mut watched = health.watch();
    let mut since = None;
    loop {
        let trouble = trouble(&watched.borrow_and_update());
        let now = Clock.now();
        let Some(trouble) = trouble else {
            since = None;
            // `health` holds the other end.
            let _ = watched.changed().await;
            continue;
        };
        let end = *since.get_or_insert(now) + patience;
        if now >= end {
            return trouble;
        }
        tokio::select! {
            _ = watched.changed() => {}
            () = sleep(now.until(end)) => {}
        }
    }
}

fn trouble(condition: &Condition) -> Option<OutOfReach> {
    let exit = Exit::Unreachable;
    let (why, exit) = match (&condition.database, &condition.broker) {
        (Database::Refused(why), _) => (format!("database: {why}"), Exit::Configuration),
        (Database::ReadOnly(why) | Database::Disconnected(why), _) => {
            (format!("database: {why}"), exit)
        }
        (Database::Connected, Broker::Blocked(why)) => {
            (format!("broker: it blocks publishing: {why}"), exit)
        }
        (Database::Connected, Broker::Disconnected(why)) => (format!("broker: {why}"), exit),
        (Database::Connected, Broker::Connected) => return None,
    };
    Some(OutOfReach { why, exit })
}

/// A server that could not be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OutOfReach {
    why: String,
    exit: Exit,
}

/// What ended a run before the outbox was empty.
pub(super) enum Cause {
    /// Nothing: it is.
    Empty,
    /// A signal; so long may the rest take.
    Stopped(Duration),
    /// One of the servers.
    OutOfReach(OutOfReach),
}

/// Tells what is left, and how the command ends.
///
/// # Errors
/// The outbox cannot be looked at, or the answer cannot be written.
pub(super) async fn conclude(
    ended: Ended,
    cause: Cause,
    store: &PgStore,
    out: &mut (dyn Write + Send),
    err: &mut (dyn Write + Send),
) -> anyhow::Result<Exit> {
    match cause {
        Cause::Empty => {
            report(store, HELD_BACK, out).await?;
            Ok(match ended {
                Ended::Drained => Exit::Done,
                Ended::GraceOver(_) => Exit::Failed,
            })
        }
        Cause::Stopped(grace) => {
            let looked = timeout(grace / LOOK, report(store, "", out)).await;
            let empty = match looked {
                Ok(Ok(due)) => due.is_zero() && ended == Ended::Drained,
                Ok(Err(error)) => {
                    warn!(error = format!("{error:#}"), "cannot tell what is left");
                    false
                }
                Err(_) => false,
            };
            if empty {
                return Ok(Exit::Done);
            }
            writeln!(err, "outbox-relay: stopped before the outbox was empty")?;
            Ok(Exit::Failed)
        }
        Cause::OutOfReach(OutOfReach { why, exit }) => {
            writeln!(
                err,
                "outbox-relay: given up before the outbox was empty: {why}"
            )?;
            Ok(exit)
        }
    }
}

/// Writes what is left; how much of it is due, and why that was not sent.
async fn report(store: &PgStore, why: &str, out: &mut (dyn Write + Send)) -> anyhow::Result<Count> {
    let looking = Operator::looking(store).await?;
    let looked = async { Ok((looking.remaining().await?, looking.paused().await?)) };
    let looked: Result<_, StoreError> = looked.await;
    looking.close().await;
    let (remaining, paused) = looked?;
    let Remaining {
        due,
        scheduled,
        waiting,
        quarantined,
        elsewhere,
    } = remaining;
    let why = if due.is_zero() { "" } else { why };
    writeln!(out, "due: {due}{why}")?;
    writeln!(out, "scheduled for later: {scheduled}")?;
    writeln!(out, "waiting to be retried: {waiting}")?;
    writeln!(out, "in quarantine: {quarantined}")?;
    if elsewhere > 0 {
        writeln!(out, "held by other relays: {elsewhere} of 256 partitions")?;
    }
    for one in paused {
        writeln!(out, "paused: {}", super::pause::told(&one))?;
    }
    Ok(due)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn patience_ends_while_a_server_cannot_be_used_and_not_before() {
        let health = Health::starting(Clock.now());
        let minute = Duration::from_secs(60);
        assert_eq!(out_of_reach(&health, minute).now_or_never(), None);
        health.database(Database::Connected);
        health.broker(Broker::Connected);
        assert_eq!(out_of_reach(&health, Duration::ZERO).now_or_never(), None);
        health.broker(Broker::Blocked("memory".to_owned()));
        let why = out_of_reach(&health, Duration::ZERO).await;
        assert_eq!(why.why, "broker: it blocks publishing: memory");
        health.database(Database::ReadOnly("a standby".to_owned()));
        let why = out_of_reach(&health, Duration::ZERO).await;
        assert_eq!(why.why, "database: a standby");
        assert_eq!(why.exit, Exit::Unreachable);
        health.database(Database::Refused("no such schema".to_owned()));
        let why = out_of_reach(&health, Duration::ZERO).await;
        assert_eq!(why.exit, Exit::Configuration);
    }
}
