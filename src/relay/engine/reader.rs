//! The reading task: keeps a reading session and answers the engine's requests over it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::event::{Event, Events};
use super::news::News;
use super::observer::Connections;
use super::retry::{Attempts, pause};
use crate::relay::rules::Request;
use crate::runtime::Clock;
use crate::store::{Reader, Store, StoreError};

/// Runs until it is stopped. A request that was under way when the session broke is dropped: the
/// engine asks anew.
pub(super) async fn read<S: Store>(
    store: Arc<S>,
    mut requests: mpsc::UnboundedReceiver<Request>,
    nudge: Arc<Notify>,
    events: Events,
    mut connections: Connections,
    stop: CancellationToken,
) {
    let (mut attempts, mut news) = (Attempts::new(), News::default());
    loop {
        let error = match stop.run_until_cancelled(store.open_reader()).await {
            None => return,
            Some(Err(error)) => error,
            Some(Ok(mut reader)) => {
                attempts.succeeded();
                connections.made();
                let tell = news.is_success_news();
                let serving = serve(&mut reader, &mut requests, &nudge, &events, tell);
                match stop.run_until_cancelled(serving).await {
                    Some(Err(error)) => error,
                    Some(Ok(())) | None => return,
                }
            }
        };
        let delay = attempts.failed();
        if news.is_failure_news(&error.to_string(), Clock.now()) {
            warn!(%error, retry_in_ms = delay.as_millis(), "cannot read from the database");
        }
        events.report(Event::ReaderLost(error));
        if !pause(delay, &stop).await {
            return;
        }
    }
}

/// So often a stand-by asks whether it is its turn.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Waits until this relay is the one that publishes. Returns whether it was not at once.
async fn stand_by<R: Reader>(
    reader: &mut R,
    events: &Events,
    tell: bool,
) -> Result<bool, StoreError> {
    let mut waited = false;
    while !reader.take_watch().await? {
        if !std::mem::replace(&mut waited, true) {
            if tell {
                info!("another relay publishes this outbox; standing by");
            }
            events.report(Event::StandBy);
        }
        tokio::select! {
            () = tokio::time::sleep(ASK_AGAIN) => {}
            error = reader.ended() => return Err(error),
        }
    }
    Ok(waited)
}

/// Answers requests, once it is this relay's turn, until the engine has none any more.
async fn serve<R: Reader>(
    reader: &mut R,
    requests: &mut mpsc::UnboundedReceiver<Request>,
    nudge: &Arc<Notify>,
    events: &Events,
    tell: bool,
) -> Result<(), StoreError> {
    let waited = stand_by(reader, events, tell).await?;
    if tell || waited {
        info!("reading from the database");
    }
    while requests.try_recv().is_ok() {}
    events.report(Event::ReaderReady {
        content_type: reader.content_type(),
    });
    loop {
        let request = tokio::select! {
            request = requests.recv() => request,
            error = reader.ended() => return Err(error),
        };
        match request {
            None => return Ok(()),
            Some(Request::Read(request)) => {
                events.report(Event::Read(reader.read(&request, nudge).await?));
            }
            Some(Request::Fetch { ids, room }) => {
                events.report(Event::Fetched(reader.fetch(&ids, room).await?));
            }
        }
    }
}
