//! Brings an outbox up to date while applications use it.
//!
//! What is missing is taken from the catalog, not from a version number, so a run that was
//! interrupted is simply run again. One process at a time: a session-level advisory lock that is
//! tried and never waited for inside PostgreSQL, since a waiting statement holds a snapshot, and
//! CREATE INDEX CONCURRENTLY waits for snapshots. Locks on the table are asked for with a short
//! `lock_timeout`, because writers queue behind a request that waits.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_postgres::types::Type;

use super::catalog::Catalog;
use super::definition::Definition;
use super::migration::{Index, Migration};
use super::pending::{Pending, Refusal, Remedy, Wanted};
use super::subject::Subject;
use super::waits::Waits;
use super::wake::migrate_key;
use crate::store::error::{Fault, StoreError};
use crate::store::postgres::ident::Outbox;
use crate::store::postgres::session::Session;
use crate::store::postgres::sqlstate::store_error;

/// How long writers may have to queue behind one request for a lock.
const LOCK_TIMEOUT: &str = "500ms";
/// Longest wait for another migration, which may be building indexes.
const LONGEST_TURN: Duration = Duration::from_secs(3600);
/// Pause between two looks whether it is our turn.
const TURN_PAUSE: Duration = Duration::from_millis(250);
/// Longest ordinary statement.
const SHORT: Duration = Duration::from_secs(60);
/// Longest index build; it waits for every transaction that was open before it.
const LONG: Duration = Duration::from_secs(6 * 3600);

/// What the wait for our turn is called in errors.
const TURN: &str = "wait for another migration";

/// What a run did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Migrated {
    /// Everything was as it must be.
    Nothing,
    /// These were made right.
    Done(Vec<String>),
    /// The schema was made by a newer version, whose migrations only add: nothing to do here.
    Newer(i32),
}

/// Why a run did not reach its end.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// The database would not.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What exists does not allow what was asked for.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Not for this program to change; everything else was done.
    #[error("these are not for migrate to change:\n{}", lines(.0))]
    ByHand(Vec<Pending>),
}

fn lines(list: &[Pending]) -> String {
    let lines: Vec<_> = list.iter().map(|one| format!("  {one}")).collect();
    lines.join("\n")
}

/// Looks, and says what is pending. Changes and locks nothing.
///
/// # Errors
/// [`MigrateError`] if the catalog cannot be read or forbids what is wanted.
pub async fn check(
    session: &Session,
    outbox: &Outbox,
    wanted: Wanted,
) -> Result<Vec<Pending>, MigrateError> {
    check_subject(session, &Subject::outbox(outbox, wanted)).await
}

/// The same for the outbox or the inbox.
///
/// # Errors
/// As [`check`].
pub async fn check_subject(
    session: &Session,
    subject: &Subject,
) -> Result<Vec<Pending>, MigrateError> {
    let found = look(session, subject).await?;
    let definition = subject.resolve(&found)?;
    Ok(subject.pending(&definition, &found))
}

async fn look(session: &Session, subject: &Subject) -> Result<Catalog, StoreError> {
    timeout(SHORT, subject.look(&session.client))
        .await
        .unwrap_or_else(|_| {
            let reason = format!("no answer within {} s", SHORT.as_secs());
            Err(StoreError::Unreachable(Fault::new(
                "read the catalog",
                reason,
            )))
        })
}

/// Makes right what is pending. `say` hears of every step, for people.
///
/// Safe to run again, by several processes at once, and to interrupt. An index build that was
/// interrupted leaves an invalid index, which the next run drops and builds again.
///
/// # Errors
/// [`MigrateError`]; what was done stays done.
pub async fn migrate(
    session: &Session,
    outbox: &Outbox,
    wanted: Wanted,
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<Migrated, MigrateError> {
    migrate_subject(session, &Subject::outbox(outbox, wanted), say).await
}

/// The same for the outbox or the inbox.
///
/// # Errors
/// As [`migrate`].
pub async fn migrate_subject(
    session: &Session,
    subject: &Subject,
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<Migrated, MigrateError> {
    let run = Run { session, subject };
    run.take_turn(say).await?;
    let result = run.bring_up(say).await;
    run.give_turn().await;
    result
}

struct Run<'a> {
    session: &'a Session,
    subject: &'a Subject,
}

impl Run<'_> {
    async fn bring_up(&self, say: &mut (dyn FnMut(&str) + Send)) -> Result<Migrated, MigrateError> {
        let found = look(self.session, self.subject).await?;
        let newest = self.subject.newest();
        if let Some(version) = found.version.filter(|version| *version > newest) {
            return Ok(Migrated::Newer(version));
        }
        let definition = self.subject.resolve(&found)?;
        let work = self.subject.pending(&definition, &found);
        let is_new = found.message.is_none();
        let done = if is_new {
            self.install(&definition, &work, say).await?
        } else {
            self.repair(&definition, &work, say).await?
        };
        let found = look(self.session, self.subject).await?;
        let left = self.subject.pending(&definition, &found);
        if !left.is_empty() {
            return Err(MigrateError::ByHand(left));
        }
        Ok(if done.is_empty() {
            Migrated::Nothing
        } else {
            Migrated::Done(done)
        })
    }

    /// A new schema: all of it in one transaction, so that there is never half of one.
    async fn install(
        &self,
        definition: &Definition,
        work: &[Pending],
        say: &mut (dyn FnMut(&str) + Send),
    ) -> Result<Vec<String>, StoreError> {
        let mut sql = String::new();
        for migration in self.subject.migrations(definition) {
            sql.push_str(&migration.sql(definition));
        }
        say(&format!(
            "creating the {} {}",
            self.subject, definition.outbox
        ));
        let doing = format!("create the {}", self.subject);
        self.in_transaction(&sql, &doing, say).await?;
        Ok(work.iter().map(|one| one.problem.clone()).collect())
    }

    /// A schema that exists and may be in use: one thing at a time, each with few locks.
    async fn repair(
        &self,
        definition: &Definition,
        work: &[Pending],
        say: &mut (dyn FnMut(&str) + Send),
    ) -> Result<Vec<String>, StoreError> {
        let mut done = Vec::new();
        let mut ran: Vec<Migration> = Vec::new();
        for one in work {
            match &one.remedy {
                Remedy::ByHand(_) => continue,
                Remedy::Migration(migration) if ran.contains(migration) => {}
                Remedy::Migration(migration) => {
                    say(&one.problem);
                    let sql = migration.sql(definition);
                    let doing = format!("run migration {}", migration.name);
                    self.in_transaction(&sql, &doing, say).await?;
                    ran.push(*migration);
                }
                Remedy::Index { index, in_the_way } => {
                    say(&format!("{}: building it CONCURRENTLY", one.problem));
                    self.build(definition, *index, in_the_way, say).await?;
                }
            }
            done.push(one.problem.clone());
        }
        if !done.is_empty() {
            self.record(definition, say).await?;
        }
        Ok(done)
    }

    /// Records what another tool may have left out.
    async fn record(
        &self,
        definition: &Definition,
        say: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), StoreError> {
        let records: String = self
            .subject
            .migrations(definition)
            .iter()
            .map(|one| one.record(&definition.outbox))
            .collect();
        self.in_transaction(&records, "record the version", say)
            .await
    }

    async fn build(
        &self,
        definition: &Definition,
        index: Index,
        in_the_way: &[String],
        say: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), StoreError> {
        let name = index.name(&definition.outbox);
        let doing = format!("build index {name}");
        let drop_it = |name: &str| {
            let name = definition.outbox.sibling(name);
            format!("DROP INDEX CONCURRENTLY IF EXISTS {name}")
        };
        let create = index.statement(definition, true);
        for broken in in_the_way {
            self.patiently(&drop_it(broken), &doing).await?;
        }
        let mut waits = Waits::new();
        loop {
            match self.patiently(&create, &doing).await {
                Ok(()) => return Ok(()),
                Err(StoreError::Retryable(fault)) => {
                    waits.pause(StoreError::Retryable(fault), say).await?;
                    self.patiently(&drop_it(&name), &doing).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// One statement outside a transaction that may take hours and blocks no writer meanwhile.
    async fn patiently(&self, sql: &str, doing: &str) -> Result<(), StoreError> {
        let limits = format!(
            "SET lock_timeout = 0; SET statement_timeout = {}",
            LONG.as_millis()
        );
        self.run(&limits, doing, SHORT).await?;
        self.run(sql, doing, LONG + SHORT).await
    }

    /// Runs the statements in one transaction, again and again while others hold the locks.
    async fn in_transaction(
        &self,
        sql: &str,
        doing: &str,
        say: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), StoreError> {
        let sql = format!(
            "BEGIN; SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'; \
             SET LOCAL statement_timeout = '50s'; {sql}; COMMIT"
        );
        let mut waits = Waits::new();
        loop {
            let Err(error) = self.run(&sql, doing, SHORT).await else {
                return Ok(());
            };
            self.run("ROLLBACK", doing, SHORT).await?;
            let StoreError::Retryable(_) = error else {
                return Err(error);
            };
            waits.pause(error, say).await?;
        }
    }

    async fn run(&self, sql: &str, doing: &str, longest: Duration) -> Result<(), StoreError> {
        match timeout(longest, self.session.client.batch_execute(sql)).await {
            Ok(result) => result.map_err(|error| store_error(doing, &error)),
            Err(_) => {
                let reason = format!("no answer within {} s", longest.as_secs());
                Err(StoreError::Unreachable(Fault::new(doing, reason)))
            }
        }
    }

    /// Waits until no other process changes this schema.
    async fn take_turn(&self, say: &mut (dyn FnMut(&str) + Send)) -> Result<(), StoreError> {
        let key = migrate_key(self.subject.names().schema());
        let attempt = async {
            let mut told = false;
            while !self.try_turn(key).await? {
                if !told {
                    say("waiting for another migration of this schema to end");
                    told = true;
                }
                sleep(TURN_PAUSE).await;
            }
            Ok(())
        };
        timeout(LONGEST_TURN, attempt).await.unwrap_or_else(|_| {
            let reason = format!("it still runs after {} s", LONGEST_TURN.as_secs());
            Err(StoreError::Retryable(Fault::new(TURN, reason)))
        })
    }

    async fn try_turn(&self, key: i64) -> Result<bool, StoreError> {
        let failed = |error| store_error(TURN, &error);
        let rows = self
            .session
            .client
            .query_typed(
                "SELECT pg_catalog.pg_try_advisory_lock($1)",
                &[(&key, Type::INT8)],
            )
            .await
            .map_err(failed)?;
        rows.first()
            .map_or(Ok(false), |row| row.try_get(0))
            .map_err(failed)
    }

    /// Best effort: the lock ends with the session anyway.
    async fn give_turn(&self) {
        let key = migrate_key(self.subject.names().schema());
        let sql = format!("SELECT pg_catalog.pg_advisory_unlock({key})");
        if let Err(error) = self.run(&sql, "end the migration", SHORT).await {
            tracing::debug!(%error, "the lock ends with the session");
        }
    }
}
