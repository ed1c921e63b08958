//! The gate at which a relay falls asleep, so that writers need not wake one that is awake.
//!
//! A relay with nothing to do takes an advisory lock exclusively, looks once more, and sleeps
//! on LISTEN. A row that is written (by the default of `xid`) tries the same lock shared, for its
//! transaction and without waiting: if it gets it, the relay is awake and nothing is sent; if not,
//! it notifies. A writer that skipped the notification holds the lock until it has committed, so
//! no relay can fall asleep past it. A notification is a hint; the time limit of the rest is the
//! truth.
//!
//! With several relays one is the keeper of the lock. The others may sleep beside it, holding a
//! second lock shared that shows it. A keeper that gave up the first lock looks at the second, and
//! notifies if somebody sleeps there; who means to sleep there takes the second before it looks at
//! the first. So one of the two sees the other, however late a notification is heard. A keeper that
//! was killed notifies nobody: who sleeps beside looks now and then whether the first lock is free.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_postgres::Statement;
use tokio_postgres::types::{ToSql, Type};

use super::ident::Outbox;
use super::reader::within;
use super::schema::{beside_key, wake_channel, wake_key};
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

/// How often who sleeps beside looks whether there still is a keeper.
const LOOK_AFTER: Duration = Duration::from_secs(5);

/// How near to sleep this relay is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sleepiness {
    /// So many looks in a row found nothing.
    Awake(usize),
    /// This relay holds the lock.
    Keeper,
    /// Another relay holds it, and this one the second lock; when the other leaves it notifies.
    Beside,
}

/// One relay's place at the gate.
pub(super) struct Gate {
    keys: [i64; 2],
    channel: String,
    try_keep: Statement,
    leave: Statement,
    try_beside: Statement,
    rise: Statement,
    sleepiness: Sleepiness,
}

/// $1 is the gate's key, $2 that of the lock beside it. CASE settles what comes first (PostgreSQL
/// manual, "Expression Evaluation Rules").
const TRY_KEEP: &str = "SELECT pg_catalog.pg_try_advisory_lock($1)";

/// Is nobody beside?
const LEAVE: &str = "SELECT CASE WHEN pg_catalog.pg_advisory_unlock($1) \
     THEN pg_catalog.pg_try_advisory_xact_lock($2) ELSE true END";

/// Is somebody the keeper? Otherwise both locks are given back.
const TRY_BESIDE: &str = "SELECT CASE \
     WHEN NOT pg_catalog.pg_try_advisory_lock_shared($2) THEN false \
     WHEN NOT pg_catalog.pg_try_advisory_lock_shared($1) THEN true \
     ELSE pg_catalog.pg_advisory_unlock_shared($1) \
       AND NOT pg_catalog.pg_advisory_unlock_shared($2) END";

const RISE: &str = "SELECT pg_catalog.pg_advisory_unlock_shared($2)";

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
        let prepare = async |question: &str| {
            client
                .prepare_typed(question, &[Type::INT8, Type::INT8])
                .await
                .map_err(failed)
        };
        Ok(Self {
            keys: [
                wake_key(outbox.schema(), outbox.relation()),
                beside_key(outbox.schema(), outbox.relation()),
            ],
            channel,
            try_keep: prepare(TRY_KEEP).await?,
            leave: prepare(LEAVE).await?,
            try_beside: prepare(TRY_BESIDE).await?,
            rise: prepare(RISE).await?,
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
        session: &mut Session,
        looks: usize,
        longest: Duration,
        nudge: &Arc<Notify>,
    ) -> Result<(), StoreError> {
        // What was heard so far is covered by the look that follows.
        while session.notifications.try_recv().is_ok() {}
        if self.ask(session, &self.try_keep).await? {
            self.sleepiness = Sleepiness::Keeper;
        } else if self.ask(session, &self.try_beside).await? {
            self.sleepiness = Sleepiness::Beside;
        } else {
            // Only writers hold it. They committed or will; poll on, ever more slowly.
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
        let beside = self.sleepiness == Sleepiness::Beside;
        let looks = beside && longest > LOOK_AFTER;
        let longest = if looks { LOOK_AFTER } else { longest };
        tokio::select! {
            () = tokio::time::sleep(longest) => if looks {
                self.lie_down_anew(session).await?;
            },
            // What the relay is woken for may be the keeper's end.
            () = nudge.notified() => if beside {
                self.lie_down_anew(session).await?;
            },
            Some(_) = session.notifications.recv() => {
                while session.notifications.try_recv().is_ok() {}
                self.leave(session).await?;
            }
            end = ended(&mut session.closed) => return Err(end),
        }
        Ok(())
    }

    /// After one more look.
    async fn lie_down_anew(&mut self, session: &Session) -> Result<(), StoreError> {
        self.leave(session).await?;
        self.sleepiness = Sleepiness::Awake(PAUSES.len());
        Ok(())
    }

    /// This relay is awake. Others may keep the gate, and are told so if they sleep beside it.
    pub(super) async fn leave(&mut self, session: &Session) -> Result<(), StoreError> {
        match std::mem::replace(&mut self.sleepiness, Sleepiness::Awake(0)) {
            Sleepiness::Awake(_) => {}
            Sleepiness::Beside => {
                self.ask(session, &self.rise).await?;
            }
            Sleepiness::Keeper => {
                if !self.ask(session, &self.leave).await? {
                    self.notify(session).await?;
                }
            }
        }
        Ok(())
    }

    async fn notify(&self, session: &Session) -> Result<(), StoreError> {
        let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&self.channel, Type::TEXT)];
        let notify = session
            .client
            .execute_typed("SELECT pg_catalog.pg_notify($1, '')", &parameters);
        within(DEADLINE, "leave the gate", notify).await?;
        Ok(())
    }

    async fn ask(&self, session: &Session, question: &Statement) -> Result<bool, StoreError> {
        let [gate, beside] = &self.keys;
        let parameters: [&(dyn ToSql + Sync); 2] = [gate, beside];
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
