//! The settling session: writes down what became of rows.
//!
//! A row that the application holds locked never stops the batch: it is skipped and told.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};
use uuid::Uuid;

use super::batch::{Batch, print};
use super::ident::Outbox;
use super::instance::Heartbeat;
use super::leases::LeaseSql;
use super::measure::measures;
use super::one_server::Seat;
use super::reader::within;
use super::row::get;
use super::session::{Session, ended};
use super::settle_sql;
use super::shape::Shape;
use super::sqlstate::{about_a_row, is_ambiguous, store_error};
use super::sweep::sweep;
use super::waits::Waits;
use super::xids::rewrite_xids;
use crate::config::OnSent;
use crate::relay::rules::{
    Leases, PartitionSet, SettleReport, Settlement, Stretch, Swept, Take, Verdict,
};
use crate::runtime::{Clock, Map, Moment, Set};
use crate::store::{Announcement, Measures, Settler, StoreError};

/// Whoever holds one row may go on to hold others, and each that is waited for is an error in the
/// server's log.
const CAREFUL: Duration = Duration::from_secs(10);

/// Prepared once for a session.
struct Statements {
    sent: Statement,
    /// For batches in which somebody holds a row.
    sent_unlocked: Statement,
    retry: Statement,
    quarantine: Statement,
    pending: Statement,
}

impl Statements {
    async fn prepare(
        client: &Client,
        outbox: &Outbox,
        shape: &Shape,
        on_sent: OnSent,
    ) -> Result<Self, tokio_postgres::Error> {
        let retry = if shape.keeps_waits_in_memory() {
            settle_sql::retry_in_memory(outbox, shape)
        } else {
            settle_sql::retry(outbox, shape)
        };
        let (sent, sent_unlocked, quarantine, pending) = (
            settle_sql::sent(outbox, shape, on_sent),
            settle_sql::sent_unlocked(outbox, shape, on_sent),
            settle_sql::quarantine(outbox, shape),
            settle_sql::pending(outbox, shape),
        );
        let (sent, sent_unlocked, retry, quarantine, pending) = tokio::try_join!(
            client.prepare(&sent),
            client.prepare(&sent_unlocked),
            client.prepare(&retry),
            client.prepare(&quarantine),
            client.prepare(&pending)
        )?;
        Ok(Self {
            sent,
            sent_unlocked,
            retry,
            quarantine,
            pending,
        })
    }
}

/// Settles an outbox over one session.
pub struct PgSettler {
    session: Session,
    seat: Seat,
    statements: Statements,
    /// Somebody held a row, or the table, while rows were marked.
    held: AtomicBool,
    /// Until then rows are not waited for: somebody held one lately.
    careful_until: Moment,
    heartbeat: Heartbeat,
    leases: LeaseSql,
    token: Uuid,
    outbox: Outbox,
    shape: Shape,
    /// Waits that the relation has no columns for.
    waits: Option<Waits>,
    deadline: Duration,
}

impl PgSettler {
    pub(super) async fn open(
        session: Session,
        seat: Seat,
        outbox: &Outbox,
        on_sent: OnSent,
        token: Uuid,
        waits: Waits,
        deadline: Duration,
    ) -> Result<Self, StoreError> {
        let failed = |error: tokio_postgres::Error| {
            store_error(format!("prepare to settle {outbox}"), &error)
        };
        let client = &session.client;
        client
            .batch_execute(settle_sql::PLANNER)
            .await
            .map_err(failed)?;
        let shape = Shape::of(client, outbox).await?;
        let waits = shape.keeps_waits_in_memory().then_some(waits);
        shape.can_mark(outbox, on_sent)?;
        let statements = Statements::prepare(client, outbox, &shape, on_sent)
            .await
            .map_err(failed)?;
        if shape.has("xid") {
            rewrite_xids(client, outbox, deadline).await?;
        }
        let leases = LeaseSql::new(outbox, token);
        leases.make(&session, deadline).await?;
        let heartbeat = Heartbeat::of(&session.client, outbox).await?;
        Ok(Self {
            session,
            seat,
            statements,
            held: AtomicBool::new(false),
            careful_until: Moment::ORIGIN,
            heartbeat,
            leases,
            token,
            outbox: outbox.clone(),
            shape,
            waits,
            deadline,
        })
    }

    async fn run(
        &self,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Set<i64>, StoreError> {
        let row = self.session.client.query_one(statement, parameters);
        let row = within(self.deadline, "settle rows", row).await?;
        let ids: Option<Vec<i64>> = get(&row, 0)?;
        Ok(ids.unwrap_or_default().into_iter().collect())
    }

    async fn mark_sent(&self, batch: &Batch) -> Result<Set<i64>, StoreError> {
        let parameters: [&(dyn ToSql + Sync); 2] = [&batch.sent, &batch.sent_prints];
        if Clock.now() >= self.careful_until {
            match self.run(&self.statements.sent, &parameters).await {
                Err(StoreError::Retryable(_)) => self.held.store(true, Ordering::Relaxed),
                done => return done,
            }
        }
        self.run(&self.statements.sent_unlocked, &parameters).await
    }

    async fn let_wait(&self, batch: &Batch) -> Result<Set<i64>, StoreError> {
        let Some(waits) = &self.waits else {
            let parameters: [&(dyn ToSql + Sync); 7] = [
                &batch.retry,
                &batch.delays,
                &batch.attempts,
                &batch.errors,
                &self.token,
                &batch.retry_in,
                &batch.retry_prints,
            ];
            return self.run(&self.statements.retry, &parameters).await;
        };
        let parameters: [&(dyn ToSql + Sync); 3] =
            [&batch.retry, &batch.delays, &batch.retry_prints];
        let rows = self
            .session
            .client
            .query(&self.statements.retry, &parameters);
        let rows = within(self.deadline, "settle rows", rows).await?;
        let attempts: Map<i64, i32> = batch
            .retry
            .iter()
            .copied()
            .zip(batch.attempts.iter().copied())
            .collect();
        for row in &rows {
            let id: i64 = get(row, 0)?;
            waits.note(id, attempts.get(&id).copied().unwrap_or(0), get(row, 1)?);
        }
        ids(&rows)
    }

    /// What is settled for good, or gone, waits no more.
    fn forget_waits(&self, batch: &Batch, report: &SettleReport) {
        if let Some(waits) = &self.waits {
            let settled = batch.sent.iter().chain(&batch.unfit).copied();
            let locked = !report.locked.is_empty();
            waits.forget(settled.filter(|_| !locked));
            waits.forget(report.gone.iter().map(|(id, _)| id.0));
        }
    }

    async fn move_away(&self, batch: &Batch) -> Result<Set<i64>, StoreError> {
        self.run(
            &self.statements.quarantine,
            &[
                &batch.unfit,
                &batch.classes,
                &batch.reasons,
                &self.token,
                &batch.unfit_in,
                &batch.unfit_attempts,
                &batch.unfit_prints,
            ],
        )
        .await
    }
}

impl PgSettler {
    /// In this order on the wire: a row that waited and was then sent ends as sent.
    async fn write(&self, batch: &Batch) -> Result<[Set<i64>; 3], StoreError> {
        let (retried, sent, moved) = tokio::try_join!(
            unless_none(&batch.retry, self.let_wait(batch)),
            unless_none(&batch.sent, self.mark_sent(batch)),
            unless_none(&batch.unfit, self.move_away(batch))
        )?;
        Ok([retried, sent, moved])
    }

    /// A trigger may answer anything: that a right is missing, that a table is not there. It does so
    /// only where there are rows.
    async fn blamed(&self, error: StoreError) -> StoreError {
        if !is_ambiguous(&error) || self.session.client.is_closed() {
            return error;
        }
        let none = Batch::default();
        let without_rows = tokio::try_join!(
            self.let_wait(&none),
            self.mark_sent(&none),
            self.move_away(&none)
        );
        match without_rows {
            Ok(_) => about_a_row(&error),
            Err(_) => error,
        }
    }

    /// Which of their partitions this relay owns; asked only if it matters.
    async fn owned(&self, rest: &[&Settlement]) -> Result<PartitionSet, StoreError> {
        let guarded = rest.iter().filter(|one| !one.verdict.is_anybody_s());
        let partitions: PartitionSet = guarded.map(|one| one.partition).collect();
        if partitions.is_empty() {
            return Ok(partitions);
        }
        self.leases
            .owned(&self.session, self.deadline, &partitions)
            .await
    }
}

impl Settler for PgSettler {
    async fn settle(&mut self, batch: &[Settlement]) -> Result<SettleReport, StoreError> {
        self.seat.check()?;
        let sorted = Batch::of(batch);
        let done = self.write(&sorted).await;
        if self.held.swap(false, Ordering::Relaxed) {
            self.careful_until = Clock.now() + CAREFUL;
        }
        let [retried, sent, moved] = match done {
            Ok(done) => done,
            Err(error) => return Err(self.blamed(error).await),
        };
        let written = |settlement: &&Settlement| match settlement.verdict {
            Verdict::Sent(_) => sent.contains(&settlement.id.0),
            Verdict::RetryAt { .. } => retried.contains(&settlement.id.0),
            Verdict::Quarantine { .. } => moved.contains(&settlement.id.0),
        };
        let name = |settlement: &Settlement| (settlement.id, settlement.ticket);
        let (done, rest): (Vec<&Settlement>, Vec<&Settlement>) = batch.iter().partition(written);
        let mut report = SettleReport {
            written: done.into_iter().map(name).collect(),
            ..SettleReport::default()
        };
        if rest.is_empty() {
            self.forget_waits(&sorted, &report);
            return Ok(report);
        }
        let left: Vec<i64> = rest.iter().map(|settlement| settlement.id.0).collect();
        let prints: Vec<Option<i64>> = rest.iter().map(|settlement| print(settlement)).collect();
        let pending = self
            .run(&self.statements.pending, &[&left, &prints])
            .await?;
        let owned = self.owned(&rest).await?;
        for settlement in rest {
            let may = settlement.verdict.is_anybody_s() || owned.contains(settlement.partition);
            if pending.contains(&settlement.id.0) && !may {
                report.disowned.push(name(settlement));
            } else if pending.contains(&settlement.id.0) {
                report.locked.push(settlement.ticket);
            } else {
                report.gone.push(name(settlement));
            }
        }
        self.forget_waits(&sorted, &report);
        Ok(report)
    }

    async fn announce(&mut self, sign: &Announcement) -> Result<bool, StoreError> {
        self.seat.check()?;
        self.heartbeat
            .announce(&self.session, self.deadline, sign)
            .await
    }

    async fn sweep(&mut self, stretch: Stretch, left_out: &[i64]) -> Result<Swept, StoreError> {
        if !self.shape.has("sent_at") {
            return Ok(Swept::default());
        }
        let sweep = async |stretch, left_out| {
            let (session, outbox) = (&self.session, &self.outbox);
            sweep(session, outbox, self.deadline, stretch, left_out).await
        };
        match sweep(stretch, left_out).await {
            Err(error) if is_ambiguous(&error) => {
                let up_to = stretch.after;
                let without_rows = sweep(Stretch { up_to, ..stretch }, &[]).await;
                Err(without_rows.map_or_else(|_| error.clone(), |_| about_a_row(&error)))
            }
            done => done,
        }
    }

    async fn leases(&mut self) -> Result<Leases, StoreError> {
        self.leases.look(&self.session, self.deadline).await
    }

    async fn take(&mut self, take: &Take) -> Result<(), StoreError> {
        self.leases.take(&self.session, self.deadline, take).await
    }

    async fn release(&mut self, partitions: &PartitionSet) -> Result<(), StoreError> {
        self.leases
            .release(&self.session, self.deadline, partitions)
            .await
    }

    async fn measure(&mut self) -> Result<Measures, StoreError> {
        measures(&self.session, &self.outbox, &self.shape, self.deadline).await
    }

    async fn withdraw(&mut self) -> Result<(), StoreError> {
        self.heartbeat
            .withdraw(&self.session, self.deadline, self.token)
            .await
    }

    async fn ended(&mut self) -> StoreError {
        ended(&mut self.session.closed).await
    }
}

/// Without rows there is nothing to ask the server for.
async fn unless_none(
    rows: &[i64],
    writing: impl Future<Output = Result<Set<i64>, StoreError>>,
) -> Result<Set<i64>, StoreError> {
    if rows.is_empty() {
        return Ok(Set::default());
    }
    writing.await
}

fn ids(rows: &[Row]) -> Result<Set<i64>, StoreError> {
    rows.iter().map(|row| get(row, 0)).collect()
}
