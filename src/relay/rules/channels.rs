//! Which channel takes the next publication, and which one probes.
//!
//! When the broker closes a channel every confirm in flight is lost with it, and nobody knows
//! which publication was to blame. The unknown ones are then sent again one by one, in order:
//! only what reproduces the fault is blamed, and a good neighbour goes out at most twice. So is
//! a row that knocks where a channel was lost before, because it may take this one with it. One
//! channel more than the others share does nothing else, so that however many have been lost to
//! a fault, none of the others waits for its cause to be found.

use std::collections::VecDeque;

use crate::message::RowId;

/// One of the relay's channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelNo(pub usize);

#[derive(Clone, Copy, Debug, Default)]
struct ChannelState {
    open: bool,
    in_flight: usize,
}

/// All channels of the relay. The last one probes.
#[derive(Debug)]
pub(super) struct Channels {
    channels: Vec<ChannelState>,
    /// To be sent one by one.
    suspects: VecDeque<RowId>,
    /// The same, after those, because an answer may be long in coming.
    knocking: VecDeque<RowId>,
}

impl Channels {
    /// Channels of which so many share the load.
    pub(super) fn new(sharing: usize) -> Self {
        Self {
            channels: (0..=sharing).map(|_| ChannelState::default()).collect(),
            suspects: VecDeque::new(),
            knocking: VecDeque::new(),
        }
    }

    pub(super) fn opened(&mut self, no: ChannelNo) {
        self.channels[no.0].open = true;
    }

    pub(super) fn lost(&mut self, no: ChannelNo) {
        self.channels[no.0] = ChannelState::default();
    }

    /// The open channel with the least to do, of those that share the load.
    pub(super) fn least_loaded(&self) -> Option<ChannelNo> {
        let sharing = &self.channels[..self.prober().0];
        let usable = sharing.iter().enumerate().filter(|(_, c)| c.open);
        usable
            .min_by_key(|(_, c)| c.in_flight)
            .map(|(no, _)| ChannelNo(no))
    }

    fn prober(&self) -> ChannelNo {
        ChannelNo(self.channels.len() - 1)
    }

    /// Sends these one by one.
    pub(super) fn suspect(&mut self, ids: impl IntoIterator<Item = RowId>) {
        self.suspects.extend(ids);
    }

    /// Sends this one alone: it, or what it knocks at, has cost a channel.
    pub(super) fn knock(&mut self, id: RowId) {
        self.knocking.push_back(id);
    }

    /// The next one to be sent alone, if the channel for that has nothing in flight.
    pub(super) fn next_alone(&mut self) -> Option<(ChannelNo, RowId)> {
        let no = self.prober();
        let ChannelState { open, in_flight } = self.channels[no.0];
        if !open || in_flight > 0 {
            return None;
        }
        let suspect = self.suspects.pop_front();
        let id = suspect.or_else(|| self.knocking.pop_front())?;
        Some((no, id))
    }

    pub(super) fn published(&mut self, no: ChannelNo) {
        self.channels[no.0].in_flight += 1;
    }

    pub(super) fn judged(&mut self, no: ChannelNo) {
        self.channels[no.0].in_flight -= 1;
    }

    pub(super) fn in_flight(&self) -> usize {
        self.channels.iter().map(|channel| channel.in_flight).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(sharing: usize) -> Channels {
        let mut channels = Channels::new(sharing);
        for no in 0..=sharing {
            channels.opened(ChannelNo(no));
        }
        channels
    }

    #[test]
    fn suspects_go_one_by_one_over_a_channel_of_their_own_and_knocking_ones_last() {
        let mut channels = open(2);
        channels.knock(RowId(9));
        channels.suspect([RowId(1), RowId(2)]);
        for id in [1, 2, 9] {
            assert_eq!(channels.next_alone(), Some((ChannelNo(2), RowId(id))));
            channels.published(ChannelNo(2));
            assert_eq!(channels.next_alone(), None, "one at a time");
            assert_eq!(channels.least_loaded(), Some(ChannelNo(0)));
            channels.judged(ChannelNo(2));
        }
        assert_eq!(channels.next_alone(), None);
    }

    #[test]
    fn the_load_is_shared_by_the_others() {
        let mut channels = open(2);
        for no in [0, 1, 0] {
            assert_eq!(channels.least_loaded(), Some(ChannelNo(no)));
            channels.published(ChannelNo(no));
        }
        channels.lost(ChannelNo(1));
        assert_eq!(channels.least_loaded(), Some(ChannelNo(0)));
        channels.lost(ChannelNo(0));
        assert_eq!(
            channels.least_loaded(),
            None,
            "not even the one that probes"
        );
        assert_eq!(channels.in_flight(), 0);
    }
}
