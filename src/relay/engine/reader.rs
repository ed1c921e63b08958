//! The reading task: keeps a reading session and answers the engine's requests over it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::event::{Event, Events};
use super::observer::Connections;
use super::retry::{Attempts, pause};
use crate::relay::rules::Request;
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
    let mut attempts = Attempts::new();
    loop {
        let error = match stop.run_until_cancelled(store.open_reader()).await {
            None => return,
            Some(Err(error)) => error,
            Some(Ok(mut reader)) => {
                attempts.succeeded();
                connections.made();
                let serving = serve(&mut reader, &mut requests, &nudge, &events);
                match stop.run_until_cancelled(serving).await {
                    Some(Err(error)) => error,
                    Some(Ok(())) | None => return,
                }
            }
        };
        let delay = attempts.failed();
        if attempts.worth_telling() {
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

/// Waits until this relay is the one that publishes.
async fn stand_by<R: Reader>(reader: &mut R, events: &Events) -> Result<(), StoreError> {
    let mut told = false;
    while !reader.take_watch().await? {
        if !std::mem::replace(&mut told, true) {
            info!("another relay publishes this outbox; standing by");
            events.report(Event::StandBy);
        }
        tokio::select! {
            () = tokio::time::sleep(ASK_AGAIN) => {}
            error = reader.ended() => return Err(error),
        }
    }
    Ok(())
}

/// Answers requests, once it is this relay's turn, until the engine has none any more.
async fn serve<R: Reader>(
    reader: &mut R,
    requests: &mut mpsc::UnboundedReceiver<Request>,
    nudge: &Arc<Notify>,
    events: &Events,
) -> Result<(), StoreError> {
    stand_by(reader, events).await?;
    info!("reading from the database");
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
