//! What the broker in memory knows of links and channels, and what became of publications.
//! Waits for nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::topology::Topology;
use crate::broker::patience::Patience;
use crate::broker::{ChannelLost, Confirmed, LinkState, LossCause, Outcome};
use crate::message::{Publication, RowId};

/// Numbers of links and channels, never used twice.
pub(super) type Number = u64;

#[derive(Default)]
pub(super) struct State {
    pub(super) topology: Topology,
    pub(super) refusing_connects: Option<String>,
    blocked: Option<String>,
    pub(super) holding: bool,
    pub(super) losing: usize,
    pub(super) confirm_timeout: Option<Duration>,
    pub(super) publishes: u64,
    pub(super) connects: u64,
    next: Number,
    links: BTreeMap<Number, watch::Sender<LinkState>>,
    channels: BTreeMap<Number, ChannelState>,
}

struct ChannelState {
    link: Number,
    lost: Option<LossCause>,
    patience: Option<Patience>,
    /// In order of publishing, until reported.
    entries: VecDeque<Entry>,
    published: u64,
    /// The latest place of which an outcome was reported.
    last_judged: Option<u64>,
}

struct Entry {
    place: u64,
    publication: Arc<Publication>,
    since: Instant,
    fate: Fate,
}

pub(super) enum Fate {
    /// Not looked at: the connection is blocked.
    Waiting,
    Confirmed,
    Returned,
    Nacked,
    /// Until none of these queues is stalled.
    Stalled(BTreeSet<String>),
    Never,
}

impl Fate {
    fn outcome(&self) -> Option<Outcome> {
        match self {
            Self::Confirmed => Some(Outcome::Confirmed(Confirmed::proven())),
            Self::Returned => Some(Outcome::Returned {
                code: 312,
                text: "NO_ROUTE".to_owned(),
            }),
            Self::Nacked => Some(Outcome::Nacked),
            Self::Waiting | Self::Stalled(_) | Self::Never => None,
        }
    }
}

impl State {
    pub(super) fn stall_queue(&mut self, queue: &str, stalled: bool) {
        self.topology.queue(queue).stalled = stalled;
        if stalled {
            return;
        }
        for entry in self
            .channels
            .values_mut()
            .flat_map(|channel| &mut channel.entries)
        {
            if let Fate::Stalled(queues) = &mut entry.fate {
                queues.remove(queue);
                if queues.is_empty() {
                    entry.fate = Fate::Confirmed;
                }
            }
        }
    }

    pub(super) fn block(&mut self, reason: &str) {
        self.blocked = Some(reason.to_owned());
        let now = Instant::now();
        for channel in self.channels.values_mut() {
            channel
                .patience
                .iter_mut()
                .for_each(|patience| patience.stop(now));
        }
        for link in self.links.values() {
            link.send_replace(LinkState::Blocked(reason.to_owned()));
        }
    }

    pub(super) fn unblock(&mut self) {
        self.blocked = None;
        let now = Instant::now();
        for link in self.links.values() {
            link.send_replace(LinkState::Open);
        }
        let numbers: Vec<_> = self.channels.keys().copied().collect();
        for number in numbers {
            if let Some(channel) = self.channels.get_mut(&number) {
                channel
                    .patience
                    .iter_mut()
                    .for_each(|patience| patience.go_on(now));
            }
            self.take_waiting(number);
        }
    }

    pub(super) fn cut(&mut self, reason: &str) {
        for (number, link) in std::mem::take(&mut self.links) {
            link.send_replace(LinkState::Lost(reason.to_owned()));
            self.lose_channels_of(number, reason);
        }
    }

    pub(super) fn open_links(&self) -> usize {
        self.links.len()
    }

    pub(super) fn open_link(&mut self) -> (Number, watch::Receiver<LinkState>) {
        let state = match &self.blocked {
            Some(reason) => LinkState::Blocked(reason.clone()),
            None => LinkState::Open,
        };
        let (sender, receiver) = watch::channel(state);
        self.connects += 1;
        self.next += 1;
        self.links.insert(self.next, sender);
        (self.next, receiver)
    }

    pub(super) fn close_link(&mut self, link: Number) {
        let reason = "the connection was closed";
        if let Some(sender) = self.links.remove(&link) {
            sender.send_replace(LinkState::Lost(reason.to_owned()));
            self.lose_channels_of(link, reason);
        }
    }

    fn lose_channels_of(&mut self, link: Number, reason: &str) {
        let reason = reason.to_owned();
        let cause = LossCause::Connection { reason };
        for channel in self
            .channels
            .values_mut()
            .filter(|channel| channel.link == link)
        {
            channel.lost.get_or_insert_with(|| cause.clone());
        }
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    pub(super) fn open_channel(&mut self, link: Number) -> Number {
        let mut patience = self.confirm_timeout.map(Patience::new);
        if self.is_blocked() {
            let now = Instant::now();
            patience.iter_mut().for_each(|patience| patience.stop(now));
        }
        self.next += 1;
        let channel = ChannelState {
            link,
            lost: None,
            patience,
            entries: VecDeque::new(),
            published: 0,
            last_judged: None,
        };
        self.channels.insert(self.next, channel);
        self.next
    }

    pub(super) fn drop_channel(&mut self, channel: Number) {
        self.channels.remove(&channel);
    }

    pub(super) fn close_channels(&mut self, cause: &LossCause) {
        for channel in self.channels.values_mut() {
            channel.lost.get_or_insert_with(|| cause.clone());
        }
    }

    pub(super) fn publish(&mut self, number: Number, batch: Vec<Arc<Publication>>) {
        let Some(channel) = self.channels.get_mut(&number) else {
            return;
        };
        let now = Instant::now();
        let patience = channel.patience.as_ref();
        let since = patience.map_or(now, |patience| patience.clock(now));
        for publication in batch {
            channel.published += 1;
            channel.entries.push_back(Entry {
                place: channel.published,
                publication,
                since,
                fate: Fate::Waiting,
            });
        }
        self.take_waiting(number);
    }

    /// Decides what waits, in order, until the channel is closed over it.
    fn take_waiting(&mut self, number: Number) {
        let Some(mut channel) = self.channels.remove(&number) else {
            return;
        };
        for entry in &mut channel.entries {
            if channel.lost.is_some() || self.is_blocked() {
                break;
            }
            if let Fate::Waiting = entry.fate {
                self.publishes += 1;
                match self.topology.take(&entry.publication) {
                    Ok(_) if self.losing > 0 => {
                        self.losing -= 1;
                        entry.fate = Fate::Never;
                    }
                    Ok(fate) => entry.fate = fate,
                    Err(cause) => channel.lost = Some(cause),
                }
            }
        }
        self.channels.insert(number, channel);
    }

    /// What there is to report, if anything.
    pub(super) fn judged(
        &mut self,
        number: Number,
    ) -> Option<Result<Vec<(RowId, Outcome)>, ChannelLost>> {
        let holding = self.holding;
        let channel = self.channels.get_mut(&number)?;
        if channel.lost.is_none() && !holding {
            let judged = channel.take_judged();
            if !judged.is_empty() {
                return Some(Ok(judged));
            }
        }
        if channel.lost.is_none() {
            channel.lost = channel.silence(Instant::now());
        }
        // RabbitMQ withholds the confirms of what it took when it closes a channel.
        let cause = channel.lost.clone()?;
        let unknown = channel
            .entries
            .drain(..)
            .map(|e| e.publication.id())
            .collect();
        Some(Err(ChannelLost { cause, unknown }))
    }

    /// When the oldest unconfirmed publication becomes too old.
    pub(super) fn deadline(&self, number: Number) -> Option<Instant> {
        self.channels.get(&number)?.deadline()
    }
}

impl ChannelState {
    fn take_judged(&mut self) -> Vec<(RowId, Outcome)> {
        let mut judged = Vec::new();
        self.entries.retain(|entry| match entry.fate.outcome() {
            Some(outcome) => {
                judged.push((entry.publication.id(), outcome));
                self.last_judged = self.last_judged.max(Some(entry.place));
                false
            }
            None => true,
        });
        judged
    }

    fn deadline(&self) -> Option<Instant> {
        let oldest = self.entries.front()?;
        self.patience.as_ref()?.deadline(oldest.since)
    }

    fn silence(&self, now: Instant) -> Option<LossCause> {
        if self.deadline()? > now {
            return None;
        }
        let oldest = self.entries.front()?.place;
        let later_confirmed = self.last_judged.is_some_and(|place| place > oldest);
        Some(LossCause::Silent { later_confirmed })
    }
}
