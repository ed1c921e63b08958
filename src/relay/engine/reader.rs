//! The reading task: keeps a reading session while this relay owns something to read, and answers
//! the engine's requests over it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::event::{Event, Events};
use super::news::News;
use super::observer::Connections;
use super::retry::{Attempts, in_ms, pause};
use crate::relay::rules::Request;
use crate::runtime::Clock;
use crate::store::{Reader, Store, StoreError};

/// How long a goodbye may take. Without one others find out when their own rest is over.
const FAREWELL: Duration = Duration::from_secs(2);

/// Runs until it is stopped. A request that was under way when the session broke is dropped: the
/// engine asks anew.
pub(super) async fn read<S: Store>(
    store: Arc<S>,
    mut requests: mpsc::UnboundedReceiver<Request>,
    nudge: Arc<Notify>,
    events: Events,
    mut connections: Connections,
    mut wanted: watch::Receiver<bool>,
    stop: CancellationToken,
) {
    let (mut attempts, mut news) = (Attempts::new(), News::default());
    loop {
        match stop
            .run_until_cancelled(wanted.wait_for(|wanted| *wanted))
            .await
        {
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return,
        }
        let error = match stop.run_until_cancelled(store.open_reader()).await {
            None => return,
            Some(Err(error)) => error,
            Some(Ok(mut reader)) => {
                attempts.succeeded();
                connections.made();
                if news.is_success_news() {
                    info!("reading from the database");
                }
                let serving = serve(&mut reader, &mut requests, &nudge, &events, &mut wanted);
                match stop.run_until_cancelled(serving).await {
                    Some(Err(error)) => error,
                    Some(Ok(())) => {
                        leave(&mut reader).await;
                        events.report(Event::ReaderAway);
                        continue;
                    }
                    None => {
                        leave(&mut reader).await;
                        return;
                    }
                }
            }
        };
        let delay = attempts.failed();
        if news.is_failure_news(&error.to_string(), Clock.now()) {
            warn!(%error, retry_in_ms = in_ms(delay), "cannot read from the database");
        }
        events.report(Event::ReaderLost(error));
        if !pause(delay, &stop).await {
            return;
        }
    }
}

/// Says goodbye to the other relays' readers.
async fn leave<R: Reader>(reader: &mut R) {
    match tokio::time::timeout(FAREWELL, reader.leave()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "cannot say goodbye to other readers"),
        Err(_) => debug!("no answer when saying goodbye to other readers"),
    }
}

/// Answers requests until the engine has none any more, or wants no reader for now.
async fn serve<R: Reader>(
    reader: &mut R,
    requests: &mut mpsc::UnboundedReceiver<Request>,
    nudge: &Arc<Notify>,
    events: &Events,
    wanted: &mut watch::Receiver<bool>,
) -> Result<(), StoreError> {
    while requests.try_recv().is_ok() {}
    events.report(Event::ReaderReady {
        content_type: reader.content_type(),
    });
    loop {
        let request = tokio::select! {
            request = requests.recv() => request,
            _ = wanted.wait_for(|wanted| !wanted) => return Ok(()),
            error = reader.ended() => return Err(error),
        };
        match request {
            None => return Ok(()),
            Some(Request::Read(request)) => {
                events.report(Event::Read(reader.read(&request, nudge).await?));
            }
            Some(Request::Fetch { rows, room }) => {
                events.report(Event::Fetched(reader.fetch(&rows, room).await?));
            }
        }
    }
}
