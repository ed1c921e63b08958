//! One channel's task: publishes what it is given, reports what became of it.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::event::{Event, Events};
use crate::broker::Channel;
use crate::message::Publication;
use crate::relay::rules::ChannelNo;

/// Runs until the channel is lost, or until the engine has nothing more to publish.
pub(super) async fn publish<C: Channel>(
    no: ChannelNo,
    mut channel: C,
    mut publications: mpsc::UnboundedReceiver<Vec<Arc<Publication>>>,
    events: Events,
) {
    let mut lost = loop {
        tokio::select! {
            biased;
            judged = channel.judged() => match judged {
                Ok(outcomes) => events.report(Event::Judged { no, outcomes }),
                Err(lost) => break lost,
            },
            batch = publications.recv() => match batch {
                Some(batch) => channel.publish(batch).await,
                None => return,
            },
        }
    };
    // What did not get out of the queue is as unknown as the rest, and comes after it.
    publications.close();
    while let Ok(batch) = publications.try_recv() {
        lost.unknown
            .extend(batch.iter().map(|publication| publication.id()));
    }
    events.report(Event::ChannelLost { no, lost });
}
