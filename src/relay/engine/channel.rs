//! One channel's task: publishes what it is given, reports what became of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::sleep;

use super::event::{Event, Events};
use crate::broker::{Channel, ChannelLost, LossCause};
use crate::message::{Publication, RowId};
use crate::relay::rules::ChannelNo;
use crate::runtime::{Clock, Moment};

/// What is to be published, in order.
pub(super) struct Batch {
    pub(super) publications: Vec<Arc<Publication>>,
    /// Not from here on: the lease may be over.
    pub(super) fence: Moment,
}

impl Batch {
    pub(super) fn ids(&self) -> impl Iterator<Item = RowId> {
        self.publications.iter().map(|one| one.id())
    }
}

/// Runs until the channel is lost, until it had nothing to do for `idle`, or until the engine has
/// nothing more to publish. Tells whether any publication was judged.
pub(super) async fn publish<C: Channel>(
    no: ChannelNo,
    mut channel: C,
    mut batches: mpsc::UnboundedReceiver<Batch>,
    idle: Duration,
    events: Events,
) -> bool {
    let (mut under_way, mut works) = (0, false);
    let mut lost = loop {
        tokio::select! {
            biased;
            judged = channel.judged() => match judged {
                Ok(outcomes) => {
                    under_way -= outcomes.len();
                    works = true;
                    events.report(Event::Judged { no, outcomes });
                }
                Err(lost) => break lost,
            },
            batch = batches.recv() => match batch {
                // This process stood still in between.
                Some(batch) if Clock.now() >= batch.fence => {
                    let ids = batch.ids().collect();
                    events.report(Event::Unsent { no, ids });
                }
                Some(batch) => {
                    under_way += batch.publications.len();
                    channel.publish(batch.publications).await;
                }
                None => return works,
            },
            () = sleep(idle), if under_way == 0 => break unused(),
        }
    };
    // What did not get out of the queue is as unknown as the rest, and comes after it.
    batches.close();
    while let Ok(batch) = batches.try_recv() {
        lost.unknown.extend(batch.ids());
    }
    events.report(Event::ChannelLost { no, lost });
    works
}

fn unused() -> ChannelLost {
    let reason = "it was not needed any more".to_owned();
    ChannelLost {
        cause: LossCause::Connection { reason },
        unknown: Vec::new(),
    }
}
