//! The gate at which a relay falls asleep, so that writers need not wake one that is awake.
//!
//! A relay with nothing to do takes an advisory lock exclusively, looks once more, and sleeps
//! on LISTEN. A writer's trigger tries the same lock shared, for its transaction and without
//! waiting: if it gets it, the relay is awake and nothing is sent; if not, it notifies. A writer
//! that skipped the notification holds the lock until it has committed, so no relay can fall
//! asleep past it. A notification is a hint; the time limit of the rest is the truth.
//!
//! With several relays one is the keeper of the lock. The others may sleep beside it; when it
//! leaves it says so, unless a notification woke all of them anyway.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_postgres::Statement;
use tokio_postgres::types::{ToSql, Type};

use super::ident::Outbox;
use super::reader::within;
use super::schema::{wake_channel, wake_key};
use super::session::{Session, ended};
use super::sqlstate::store_error;
use crate::store::StoreError;

/// Pauses between looks while it is too early to sleep: a busy outbox is polled, an idle one
/// costs the writers a notification each time.
const PAUSES: [Duration; 6] = [
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(4),
    Duration::from_millis(8),
    Duration::from_millis(16),
    Duration::from_millis(32),
];

/// The longest pause while writers hold the lock.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

const DEADLINE: Duration = Duration::from_secs(10);

/// How near to sleep this relay is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sleepiness {
    /// So many looks in a row found nothing.
    Awake(usize),
    /// This relay holds the lock.
    Keeper,
    /// Another relay holds it; when it leaves it notifies.
    Beside,
}

/// One relay's place at the gate.
pub(super) struct Gate {
    key: i64,
    channel: String,
    try_exclusive: Statement,
    try_shared: Statement,
    unlock: Statement,
    unlock_shared: Statement,
    sleepiness: Sleepiness,
}

impl Gate {
    /// Listens, so that from here on every notification is heard, and has all others look: the
    /// keeper may have died, and nobody wakes those who sleep beside a gate without one.
    pub(super) async fn open(session: &Session, outbox: &Outbox) -> Result<Self, StoreError> {
        let failed = |error: tokio_postgres::Error| store_error("listen", &error);
        let channel = wake_channel(outbox.schema(), outbox.relation());
        let client = &session.client;
        client
            .batch_execute(&format!("LISTEN \"{channel}\"; NOTIFY \"{channel}\""))
            .await
            .map_err(failed)?;
        let prepare = async |call: &str| {
            client
                .prepare(&format!("SELECT pg_catalog.{call}($1::bigint)"))
                .await
                .map_err(failed)
        };
        Ok(Self {
            key: wake_key(outbox.schema(), outbox.relation()),
            channel,
            try_exclusive: prepare("pg_try_advisory_lock").await?,
            try_shared: prepare("pg_try_advisory_lock_shared").await?,
            unlock: prepare("pg_advisory_unlock").await?,
            unlock_shared: prepare("pg_advisory_unlock_shared").await?,
            sleepiness: Sleepiness::Awake(0),
        })
    }

    /// There is work: the next rest begins with short pauses again.
    pub(super) fn stay_awake(&mut self) {
        if let Sleepiness::Awake(looks) = &mut self.sleepiness {
            *looks = 0;
        }
    }

    /// Rests for at most so long. Returns when it is time to look again, which may be at once:
    /// between taking the gate and sleeping there is always one more look.
    pub(super) async fn rest(
        &mut self,
        session: &mut Session,
        longest: Duration,
        nudge: &Arc<Notify>,
    ) -> Result<(), StoreError> {
        match self.sleepiness {
            Sleepiness::Keeper | Sleepiness::Beside => self.sleep(session, longest, nudge).await,
            Sleepiness::Awake(looks) => match PAUSES.get(looks) {
                Some(pause) => {
                    self.sleepiness = Sleepiness::Awake(looks + 1);
                    pause_for((*pause).min(longest), nudge).await;
                    Ok(())
                }
                None => self.lie_down(session, looks, longest, nudge).await,
            },
        }
    }

    async fn lie_down(
        &mut self,
        session: &Session,
        looks: usize,
        longest: Duration,
        nudge: &Arc<Notify>,
    ) -> Result<(), StoreError> {
        if self.ask(session, &self.try_exclusive).await? {
            self.sleepiness = Sleepiness::Keeper;
        } else if !self.ask(session, &self.try_shared).await? {
            self.sleepiness = Sleepiness::Beside;
        } else {
            // Only writers hold it. They committed or will; poll on, ever more slowly.
            self.ask(session, &self.unlock_shared).await?;
            self.sleepiness = Sleepiness::Awake(looks.saturating_add(1));
            let beyond = u32::try_from(looks - PAUSES.len())
                .unwrap_or(u32::MAX)
                .min(3);
            let pause = PAUSES[PAUSES.len() - 1] * 2_u32.pow(beyond);
            pause_for(pause.min(LONGEST_PAUSE).min(longest), nudge).await;
        }
        Ok(())
    }

    async fn sleep(
        &mut self,
        session: &mut Session,
        longest: Duration,
        nudge: &Arc<Notify>,
    ) -> Result<(), StoreError> {
        tokio::select! {
            () = tokio::time::sleep(longest) => {}
            () = nudge.notified() => {}
            Some(_) = session.notifications.recv() => {
                // It woke every relay; whoever was keeper gives the lock back for that.
                while session.notifications.try_recv().is_ok() {}
                self.give_back(session, false).await?;
            }
            end = ended(&mut session.closed) => return Err(end),
        }
        Ok(())
    }

    /// Rows were found: this relay is awake, and others may keep the gate.
    pub(super) async fn leave(&mut self, session: &Session) -> Result<(), StoreError> {
        self.give_back(session, true).await
    }

    async fn give_back(&mut self, session: &Session, tell: bool) -> Result<(), StoreError> {
        let was = std::mem::replace(&mut self.sleepiness, Sleepiness::Awake(0));
        if was == Sleepiness::Keeper {
            self.ask(session, &self.unlock).await?;
            if tell {
                let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&self.channel, Type::TEXT)];
                let notify = session
                    .client
                    .execute_typed("SELECT pg_catalog.pg_notify($1, '')", &parameters);
                within(DEADLINE, "leave the gate", notify).await?;
            }
        }
        Ok(())
    }

    async fn ask(&self, session: &Session, question: &Statement) -> Result<bool, StoreError> {
        let parameters: [&(dyn ToSql + Sync); 1] = [&self.key];
        let answer = session.client.query_one(question, &parameters);
        let row = within(DEADLINE, "ask for the gate", answer).await?;
        row.try_get(0)
            .map_err(|error| store_error("ask for the gate", &error))
    }
}

async fn pause_for(pause: Duration, nudge: &Arc<Notify>) {
    tokio::select! {
        () = tokio::time::sleep(pause) => {}
        () = nudge.notified() => {}
    }
}
