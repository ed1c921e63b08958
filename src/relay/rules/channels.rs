//! Which channel takes the next publication, and which one probes.
//!
//! When the broker closes a channel every confirm in flight is lost with it, and nobody knows
//! which publication was to blame. The unknown ones are then sent again one by one, in order:
//! only what reproduces the fault is blamed, and a good neighbour goes out at most twice. So is
//! a row that knocks where a channel was lost before, because it may take this one with it. One
//! channel more than the others share does nothing else, so that however many have been lost to
//! a fault, none of the others waits for its cause to be found.
//!
//! Some faults end the whole connection. What may have caused one goes one by one, too, but over a
//! channel on a connection of its own, which stands only while there is something to try on it.

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

/// How rows are sent that may do harm: one at a time, and with whom they share their fate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Solitude {
    /// On a channel of its own: it may cost that.
    Channel,
    /// On a connection of its own: it may cost that.
    Connection,
}

/// What goes one by one over one channel.
#[derive(Debug, Default)]
struct Queue {
    suspects: VecDeque<RowId>,
    /// After those, because an answer may be long in coming.
    knocking: VecDeque<RowId>,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.suspects.is_empty() && self.knocking.is_empty()
    }

    fn next(&mut self) -> Option<RowId> {
        let suspect = self.suspects.pop_front();
        suspect.or_else(|| self.knocking.pop_front())
    }
}

/// All channels of the relay. The last one has a connection of its own, the one before it probes.
#[derive(Debug)]
pub(super) struct Channels {
    channels: Vec<ChannelState>,
    /// On a channel of their own.
    alone: Queue,
    /// On a connection of their own.
    apart: Queue,
}

impl Channels {
    /// Channels of which so many share the load.
    pub(super) fn new(sharing: usize) -> Self {
        Self {
            channels: (0..sharing + 2).map(|_| ChannelState::default()).collect(),
            alone: Queue::default(),
            apart: Queue::default(),
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
        let sharing = &self.channels[..self.of(Solitude::Channel).0];
        let usable = sharing.iter().enumerate().filter(|(_, c)| c.open);
        usable
            .min_by_key(|(_, c)| c.in_flight)
            .map(|(no, _)| ChannelNo(no))
    }

    /// The channel for what goes one by one.
    fn of(&self, solitude: Solitude) -> ChannelNo {
        let behind = match solitude {
            Solitude::Channel => 2,
            Solitude::Connection => 1,
        };
        ChannelNo(self.channels.len() - behind)
    }

    /// Has this channel a connection of its own?
    pub(super) fn is_apart(&self, no: ChannelNo) -> bool {
        no == self.of(Solitude::Connection)
    }

    /// Rows that are to be sent on a connection of their own.
    pub(super) fn apart(&self) -> usize {
        self.apart.suspects.len() + self.apart.knocking.len()
    }

    /// Which they are.
    pub(super) fn waiting_apart(&self) -> impl Iterator<Item = RowId> {
        let Queue { suspects, knocking } = &self.apart;
        suspects.iter().chain(knocking).copied()
    }

    /// Is there something to send on a connection of its own, which does not stand?
    pub(super) fn wants_connection(&self) -> bool {
        !self.apart.is_empty() && !self.channels[self.of(Solitude::Connection).0].open
    }

    fn queue(&mut self, solitude: Solitude) -> &mut Queue {
        match solitude {
            Solitude::Channel => &mut self.alone,
            Solitude::Connection => &mut self.apart,
        }
    }

    /// Sends these one by one.
    pub(super) fn suspect(&mut self, ids: impl IntoIterator<Item = RowId>, solitude: Solitude) {
        self.queue(solitude).suspects.extend(ids);
    }

    /// Sends this one alone: it, or what it knocks at, has cost a channel or a connection.
    pub(super) fn knock(&mut self, id: RowId, solitude: Solitude) {
        self.queue(solitude).knocking.push_back(id);
    }

    /// The next one to be sent alone, if a channel for that has nothing in flight.
    pub(super) fn next_alone(&mut self) -> Option<(ChannelNo, RowId)> {
        let mut both = [Solitude::Channel, Solitude::Connection].into_iter();
        both.find_map(|solitude| {
            let no = self.of(solitude);
            let ChannelState { open, in_flight } = self.channels[no.0];
            let free = open && in_flight == 0;
            free.then(|| self.queue(solitude).next())
                .flatten()
                .map(|id| (no, id))
        })
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
        for no in 0..channels.channels.len() {
            channels.opened(ChannelNo(no));
        }
        channels
    }

    #[test]
    fn suspects_go_one_by_one_over_a_channel_of_their_own_and_knocking_ones_last() {
        let mut channels = open(2);
        channels.knock(RowId(9), Solitude::Channel);
        channels.suspect([RowId(1), RowId(2)], Solitude::Channel);
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
    fn what_may_cost_a_connection_asks_for_one_and_waits_for_nobody_else() {
        let mut channels = open(2);
        channels.lost(ChannelNo(3));
        assert!(!channels.wants_connection());
        channels.suspect([RowId(1)], Solitude::Connection);
        channels.knock(RowId(2), Solitude::Channel);
        assert!(channels.wants_connection());
        assert_eq!(channels.next_alone(), Some((ChannelNo(2), RowId(2))));
        channels.published(ChannelNo(2));
        assert_eq!(channels.next_alone(), None);
        channels.opened(ChannelNo(3));
        assert!(!channels.wants_connection());
        assert_eq!(channels.next_alone(), Some((ChannelNo(3), RowId(1))));
        assert!(channels.is_apart(ChannelNo(3)));
        assert!(!channels.is_apart(ChannelNo(2)));
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
