//! Which channel takes the next publication, and which one is being probed.
//!
//! When the broker closes a channel every confirm in flight is lost with it, and nobody knows
//! which publication was to blame. The unknown ones are then sent again one by one, in order,
//! on a new channel: only what reproduces the fault is blamed, and a good neighbour goes out
//! at most twice.

use std::collections::VecDeque;

use crate::message::RowId;

/// One of the relay's channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelNo(pub usize);

#[derive(Debug, Default)]
struct ChannelState {
    open: bool,
    in_flight: usize,
    /// To be sent one by one.
    suspects: VecDeque<RowId>,
}

/// All channels of the relay.
#[derive(Debug)]
pub(super) struct Channels(Vec<ChannelState>);

impl Channels {
    pub(super) fn new(count: usize) -> Self {
        Self((0..count).map(|_| ChannelState::default()).collect())
    }

    pub(super) fn opened(&mut self, no: ChannelNo) {
        self.0[no.0].open = true;
    }

    /// Returns how many were in flight.
    pub(super) fn lost(&mut self, no: ChannelNo) -> usize {
        self.0[no.0].open = false;
        std::mem::take(&mut self.0[no.0].in_flight)
    }

    /// The open channel with the least to do that is not being probed.
    pub(super) fn least_loaded(&self) -> Option<ChannelNo> {
        let usable = self
            .0
            .iter()
            .enumerate()
            .filter(|(_, c)| c.open && c.suspects.is_empty());
        usable
            .min_by_key(|(_, c)| c.in_flight)
            .map(|(no, _)| ChannelNo(no))
    }

    /// Sends these one by one from now on: on this channel, or behind the suspects that another
    /// one has already, so that however many channels a fault has closed the others are free.
    pub(super) fn suspect(&mut self, no: ChannelNo, ids: impl IntoIterator<Item = RowId>) {
        let probing = self.0.iter().position(|c| !c.suspects.is_empty());
        self.0[probing.unwrap_or(no.0)].suspects.extend(ids);
    }

    /// The next suspect of a channel that has nothing in flight.
    pub(super) fn next_suspect(&mut self) -> Option<(ChannelNo, RowId)> {
        self.0.iter_mut().enumerate().find_map(|(no, channel)| {
            let alone = channel.open && channel.in_flight == 0;
            let id = alone.then(|| channel.suspects.pop_front())??;
            Some((ChannelNo(no), id))
        })
    }

    pub(super) fn published(&mut self, no: ChannelNo) {
        self.0[no.0].in_flight += 1;
    }

    pub(super) fn judged(&mut self, no: ChannelNo) {
        self.0[no.0].in_flight -= 1;
    }

    pub(super) fn in_flight(&self) -> usize {
        self.0.iter().map(|channel| channel.in_flight).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspects_of_several_channels_go_one_by_one_over_one_of_them() {
        let mut channels = Channels::new(3);
        for no in 0..3 {
            channels.opened(ChannelNo(no));
        }
        for no in [1, 2] {
            channels.lost(ChannelNo(no));
            channels.suspect(
                ChannelNo(no),
                [RowId(10), RowId(20)].map(|id| RowId(id.0 + no as i64)),
            );
            channels.opened(ChannelNo(no));
        }
        assert_eq!(channels.least_loaded(), Some(ChannelNo(0)));
        for id in [11, 21, 12, 22] {
            let next = channels.next_suspect();
            assert_eq!(next, Some((ChannelNo(1), RowId(id))));
            channels.published(ChannelNo(1));
            assert_eq!(channels.next_suspect(), None, "one at a time");
            channels.judged(ChannelNo(1));
        }
        assert_eq!(channels.next_suspect(), None);
    }

    #[test]
    fn a_channel_with_suspects_takes_nothing_else() {
        let mut channels = Channels::new(2);
        channels.opened(ChannelNo(0));
        channels.suspect(ChannelNo(0), [RowId(1)]);
        assert_eq!(channels.least_loaded(), None);
        channels.opened(ChannelNo(1));
        assert_eq!(channels.least_loaded(), Some(ChannelNo(1)));
    }
}
