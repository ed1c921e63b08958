//! A connection apart: made when a row is to be tried that may cost its connection, so that it costs
//! nobody else's, and closed when nothing is left to try.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::channel::publish;
use super::event::{Event, Events};
use super::news::News;
use super::retry::{Attempts, pause};
use crate::broker::{Broker, BrokerError, Link};
use crate::relay::rules::ChannelNo;
use crate::runtime::Clock;

/// Kept so long for what may come next: rows that cost a connection come in crowds.
const IDLE: Duration = Duration::from_secs(10);

/// Makes one whenever it is called for, and opens this channel on it, until it is stopped.
pub(super) async fn stand_by<B: Broker>(
    broker: Arc<B>,
    no: ChannelNo,
    called: Arc<Notify>,
    events: Events,
    stop: CancellationToken,
) {
    let (mut attempts, mut news) = (Attempts::apart(), News::default());
    while stop.run_until_cancelled(called.notified()).await.is_some() {
        if let Err(error) = try_rows(&*broker, no, &mut attempts, &events, &stop).await {
            let reason = error.to_string();
            events.report(Event::Apart(Some(reason.clone())));
            if news.is_failure_news(&reason, Clock.now()) {
                warn!(
                    reason,
                    "no second connection to the broker, on which to try rows that may have ended the \
                     first; they wait"
                );
            }
            // Nothing else calls again.
            called.notify_one();
        } else {
            // That it ends is what it is for: others wait for their turn.
            attempts.worked();
            if news.is_success_news() {
                info!("rows that may have ended a connection were tried one by one on another");
            }
        }
        if !pause(attempts.failed(), &stop).await {
            return;
        }
    }
}

/// Until the connection ends, or is not needed any more.
async fn try_rows<B: Broker>(
    broker: &B,
    no: ChannelNo,
    attempts: &mut Attempts,
    events: &Events,
    stop: &CancellationToken,
) -> Result<(), BrokerError> {
    let Some(connected) = stop.run_until_cancelled(broker.connect()).await else {
        return Ok(());
    };
    let link = connected?;
    let Some(opened) = stop.run_until_cancelled(link.open_channel()).await else {
        return Ok(());
    };
    let channel = opened?;
    attempts.succeeded();
    events.report(Event::Apart(None));
    let (batches, received) = mpsc::unbounded_channel();
    events.report(Event::ChannelOpen { no, batches });
    let tried = publish(no, channel, received, IDLE, events.clone());
    // Cut short, it leaves what is under way pending.
    stop.run_until_cancelled(tried).await;
    link.close().await;
    Ok(())
}
