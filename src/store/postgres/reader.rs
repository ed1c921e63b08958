//! The reading session: looks for rows, brings bodies, rests until it is woken.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio_postgres::Statement;
use tokio_postgres::types::ToSql;

use super::gate::Gate;
use super::one_server::Seat;
use super::parameters::Parameters;
use super::read_sql::{self, DUE_AVAILABLE, DUE_RETRY, HEAD, NEWS, PAGE};
use super::repetition::Repetition;
use super::row::{Line, PAYLOAD, get};
use super::session::{Session, ended};
use super::shape::Shape;
use super::sqlstate::{rows_error, store_error};
use super::store::PgStore;
use super::values::{PayloadBytes, content_type};
use super::waits::Waits;
use crate::message::{Body, RowId};
use crate::relay::rules::{
    DueMark, Fetched, Fingerprint, Found, Position, ReadRequest, Reading, Snapshot, Wanted,
};
use crate::runtime::Clock;
use crate::store::error::Fault;
use crate::store::{Reader, StoreError};

/// A relay that is gone without a word, with its host or its network, keeps the gate until the
/// server notices: within half a minute (PostgreSQL manual, "TCP Settings").
const NOTICE: &str = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; \
     SET tcp_keepalives_count = 3; SET tcp_user_timeout = 25000";

/// Plans that the statements are written for. With few and stale statistics the planner is
/// kept from walking the whole table (PostgreSQL manual, "Planner Method Configuration"). There is
/// one good plan whatever the parameters are, and to look for it at every poll, as the server does
/// with a small table by default, takes longer than to carry it out ("plan_cache_mode").
const PLANNER: &str = "SET enable_seqscan = off; SET enable_bitmapscan = off; \
     SET enable_material = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off; \
     SET plan_cache_mode = force_generic_plan";

/// Reads an outbox over one session.
pub struct PgReader {
    session: Session,
    seat: Seat,
    read: Statement,
    fetch: Statement,
    gate: Gate,
    content_type: &'static str,
    max_message_size: i64,
    deadline: Duration,
    /// When the server was started: another time means another server, or one that crashed.
    started: Option<String>,
    /// Waits that the relation has no columns for.
    waits: Option<Waits>,
    /// For a relation without `xid`.
    repetition: Option<Repetition>,
}

impl PgReader {
    pub(super) async fn open(
        session: Session,
        seat: Seat,
        store: &PgStore,
    ) -> Result<Self, StoreError> {
        let outbox = &store.outbox;
        let failed =
            |error: tokio_postgres::Error| store_error(format!("prepare to read {outbox}"), &error);
        session
            .client
            .batch_execute(&format!("{PLANNER}; {NOTICE}"))
            .await
            .map_err(failed)?;
        let shape = Shape::of(&session.client, outbox).await?;
        shape.can_mark(outbox, store.on_sent)?;
        let read = session
            .client
            .prepare(&read_sql::read(outbox, &shape, store.successors))
            .await
            .map_err(failed)?;
        let ty = read.columns()[PAYLOAD].type_();
        let content_type = content_type(ty).ok_or_else(|| {
            let reason = format!("the payload of {outbox} is of type {ty}; json, jsonb, text or bytea can be published");
            StoreError::Schema(Fault::new("prepare to read", reason))
        })?;
        let length = read_sql::length(ty);
        let fetch = session
            .client
            .prepare(&read_sql::fetch(outbox, &shape, length))
            .await
            .map_err(failed)?;
        let gate = Gate::open(&session, outbox).await?;
        let max_message_size = i64::try_from(store.max_message_size).unwrap_or(i64::MAX);
        let started = None;
        Ok(Self {
            session,
            seat,
            read,
            fetch,
            gate,
            content_type,
            max_message_size,
            deadline: store.deadline(),
            started,
            waits: shape.keeps_waits_in_memory().then(|| store.waits.clone()),
            repetition: (!shape.has("xid")).then(Repetition::default),
        })
    }

    async fn look(&mut self, request: &ReadRequest) -> Result<Reading, StoreError> {
        let parameters = Parameters::of(request)?;
        let waits = self.waits.as_ref().map(Waits::listed);
        let mut parameters = parameters.list().to_vec();
        if let Some(waits) = &waits {
            let waits: [&(dyn ToSql + Sync); 3] = [&waits.ids, &waits.attempts, &waits.retry_at];
            parameters.extend(waits);
        }
        let asked = Clock.now();
        let rows = self.session.client.query(&self.read, &parameters);
        let rows = within(self.deadline, "look for rows", rows).await?;
        let mut lines = Vec::with_capacity(rows.len());
        for row in rows {
            lines.push(Line::new(row)?);
        }
        let head = lines.iter().find(|line| line.part == HEAD).ok_or_else(|| {
            StoreError::Other(Fault::new("look for rows", "the answer has no head"))
        })?;
        let (snapshot, recovering, started, now) = head.head()?;
        if recovering {
            // On a standby the list of running transactions is empty: rows would be missed.
            let reason = "the server is a standby; connect to the primary";
            return Err(StoreError::ReadOnly(Fault::new("look for rows", reason)));
        }
        if self.started.get_or_insert_with(|| started.clone()) != &started {
            let reason = "the server was restarted or replaced";
            return Err(StoreError::Unreachable(Fault::new("look for rows", reason)));
        }
        let snapshot: Snapshot = snapshot
            .parse()
            .map_err(|error| StoreError::Other(Fault::new("look for rows", format!("{error}"))))?;
        if request
            .since
            .as_ref()
            .is_some_and(|since| snapshot.xmax < since.snapshot.xmax)
        {
            let reason = "the server's transaction ids went back; it was replaced";
            return Err(StoreError::Unreachable(Fault::new("look for rows", reason)));
        }
        Ok(Reading {
            took: Clock.now().since(asked),
            orphans: head.orphans()?,
            pauses: head.pauses()?,
            ..reading(request, snapshot, now, &lines)?
        })
    }
}

impl Reader for PgReader {
    fn content_type(&self) -> &'static str {
        self.content_type
    }

    async fn read(
        &mut self,
        request: &ReadRequest,
        nudge: &Arc<Notify>,
    ) -> Result<Reading, StoreError> {
        match request.rest {
            Some(rest) => self.gate.rest(&mut self.session, rest, nudge).await?,
            None => self.gate.stay_awake(),
        }
        self.seat.check()?;
        let mut reading = self.look(request).await?;
        if let Some(repetition) = &mut self.repetition {
            repetition.strip(request, &mut reading, Clock.now());
        }
        let empty = reading.news.is_empty() && reading.due.is_empty();
        if !empty {
            self.gate.leave(&self.session).await?;
        }
        Ok(reading)
    }

    async fn fetch(
        &mut self,
        rows: &[Wanted],
        room: usize,
    ) -> Result<Vec<(RowId, Fetched)>, StoreError> {
        let wanted: Vec<i64> = rows.iter().map(|row| row.id.0).collect();
        let print = |row: &Wanted| row.fingerprint.map(|Fingerprint(hash)| hash);
        let prints: Vec<Option<i64>> = rows.iter().map(print).collect();
        let room = i64::try_from(room).unwrap_or(i64::MAX);
        let parameters: [&(dyn ToSql + Sync); 4] =
            [&wanted, &self.max_message_size, &room, &prints];
        let answers = self.session.client.query(&self.fetch, &parameters);
        let answers = within(self.deadline, "fetch payloads", answers).await?;
        let mut answers = answers.iter().peekable();
        let mut fetched = Vec::with_capacity(rows.len());
        for Wanted { id, .. } in rows {
            let Some(row) =
                answers.next_if(|row| row.try_get(0).is_ok_and(|found: i64| found == id.0))
            else {
                fetched.push((*id, Fetched::Gone));
                continue;
            };
            let size = get::<Option<i64>>(row, 1)?.unwrap_or(0);
            let (null, body) = (get(row, 2)?, get::<Option<PayloadBytes>>(row, 3)?);
            let size = size.unsigned_abs();
            fetched.push((
                *id,
                match body {
                    Some(PayloadBytes(bytes)) => Fetched::Body(Body::Bytes(bytes)),
                    None if null => Fetched::Body(Body::Null),
                    None if size > self.max_message_size.unsigned_abs() => {
                        Fetched::Body(Body::Oversized(size))
                    }
                    None => Fetched::NoRoom(size),
                },
            ));
        }
        Ok(fetched)
    }

    async fn leave(&mut self) -> Result<(), StoreError> {
        self.gate.leave(&self.session).await
    }

    async fn ended(&mut self) -> StoreError {
        ended(&mut self.session.closed).await
    }
}

/// Waits for an answer, but not for ever: the server's own timeout comes first if it lives.
pub(super) async fn within<T>(
    deadline: Duration,
    doing: &'static str,
    work: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(deadline, work).await {
        Ok(answer) => answer.map_err(|error| rows_error(doing, &error)),
        Err(_) => {
            let reason = format!("no answer within {} s", deadline.as_secs());
            Err(StoreError::Unreachable(Fault::new(doing, reason)))
        }
    }
}

fn reading(
    request: &ReadRequest,
    snapshot: Snapshot,
    now: SystemTime,
    lines: &[Line],
) -> Result<Reading, StoreError> {
    let part = |no: i32| lines.iter().filter(move |line| line.part == no);
    let mut news = Vec::new();
    let mut more_news_from = None;
    for (place, line) in part(NEWS).enumerate() {
        if place == request.limit {
            more_news_from = Some(line.id);
        } else {
            news.push(line.found()?);
        }
    }
    let (page, walked_to) = page(request, lines)?;
    let mut due = Vec::new();
    let since = request.since.as_ref();
    let (retry, more_retry) = fallen_due(
        part(DUE_RETRY),
        request.limit,
        since.map(|since| since.retry),
        now,
        &mut due,
    )?;
    let (available, more_available) = fallen_due(
        part(DUE_AVAILABLE),
        request.limit,
        since.map(|since| since.available),
        now,
        &mut due,
    )?;
    let position = Position {
        snapshot,
        retry,
        available,
    };
    Ok(Reading {
        took: Duration::ZERO,
        seq: request.seq,
        position,
        news,
        more_news_from,
        page,
        walked_to,
        due,
        more_due: more_retry || more_available,
        orphans: false,
        pauses: Vec::new(),
    })
}

/// The page, and up to where it walked if rows may follow.
fn page(request: &ReadRequest, lines: &[Line]) -> Result<(Vec<Found>, Option<i64>), StoreError> {
    let part = |no: i32| lines.iter().filter(move |line| line.part == no);
    let mut page = Vec::with_capacity(part(PAGE).count());
    for line in part(PAGE) {
        page.push(line.found()?);
    }
    let edge = part(HEAD).map(|head| head.id).find(|id| *id > 0);
    let walked_to = request.page_after.and_then(|after| {
        if request.page_limit == 0 {
            Some(after)
        } else {
            edge
        }
    });
    Ok((page, walked_to))
}

/// Takes rows that fell due, and tells up to where, and whether there are more.
fn fallen_due<'a>(
    lines: impl Iterator<Item = &'a Line>,
    limit: usize,
    since: Option<DueMark>,
    now: SystemTime,
    due: &mut Vec<Found>,
) -> Result<(DueMark, bool), StoreError> {
    // A clock that was set back must not hide what falls due from now on.
    let mut taken = since.map(|since| DueMark {
        at: since.at.min(now),
        id: since.id,
    });
    let all = DueMark {
        at: now,
        id: i64::MAX,
    };
    for (place, line) in lines.enumerate() {
        if place == limit {
            return Ok((taken.unwrap_or(all), true));
        }
        taken = line.due_at.map(|at| DueMark { at, id: line.id });
        if line.usable {
            due.push(line.found()?);
        }
    }
    Ok((all, false))
}
