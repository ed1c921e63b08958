//! One channel's task: publishes what it is given, reports what became of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::sleep;

use super::event::{Event, Events};
use super::renewal::{Renewal, Step};
use crate::broker::{Channel, ChannelLost, LossCause, Outcome};
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

/// Runs until the channel is lost or has to be opened anew, until it had nothing to do for `idle`, or
/// until the engine has nothing more to publish. Tells whether any publication was judged.
pub(super) async fn publish<C: Channel>(
    no: ChannelNo,
    mut channel: C,
    mut batches: mpsc::UnboundedReceiver<Batch>,
    idle: Duration,
    events: Events,
) -> bool {
    let (mut under_way, mut works) = (0, false);
    let mut renewal = Renewal::opened(Clock.now());
    let mut lost = loop {
        let now = Clock.now();
        let (takes, again) = match renewal.step(under_way, now) {
            Step::GoOn(again) => (true, again),
            Step::Drain(again) => (false, again),
            Step::End => {
                hand_back(no, &mut batches, &events);
                break ended("a queue refused on it; it is opened anew");
            }
        };
        tokio::select! {
            biased;
            judged = channel.judged() => match judged {
                Ok(outcomes) => {
                    under_way -= outcomes.len();
                    works = true;
                    if outcomes.iter().any(|(_, outcome)| matches!(outcome, Outcome::Nacked)) {
                        renewal.refused();
                    }
                    events.report(Event::Judged { no, outcomes });
                }
                Err(lost) => break lost,
            },
            batch = batches.recv(), if takes => match batch {
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
            () = sleep(idle), if under_way == 0 => break ended("it was not needed any more"),
            () = sleep(now.until(again)), if again < Moment::NEVER => {}
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

/// By our own will, with nothing under way.
fn ended(reason: &str) -> ChannelLost {
    let reason = reason.to_owned();
    ChannelLost {
        cause: LossCause::Connection { reason },
        unknown: Vec::new(),
    }
}

/// What was not taken was not published.
fn hand_back(no: ChannelNo, batches: &mut mpsc::UnboundedReceiver<Batch>, events: &Events) {
    batches.close();
    while let Ok(batch) = batches.try_recv() {
        let ids = batch.ids().collect();
        events.report(Event::Unsent { no, ids });
    }
}
