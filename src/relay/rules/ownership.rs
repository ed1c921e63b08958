//! Who owns which partition: fair shares, and when a lease is over.
//!
//! Each relay renews one lease, on all its partitions together, by a sign of life. A lease is
//! over when it was not renewed for as long as its owner said it lasts, by this relay's own
//! steady clock. The database's clock only makes that sooner, and only as long as it runs along
//! with ours: one that was set forward must not end the leases of those who live.
//!
//! Nobody takes from the living. Who holds more than its share hands the surplus over, and who
//! holds less takes what is free. Decides; takes and gives nothing itself.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::PartitionSet;
use crate::runtime::Moment;

/// What the database says about leases, from one snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leases {
    /// The database's clock.
    pub at: SystemTime,
    /// Relays that gave a sign of life, this one included.
    pub peers: Vec<Peer>,
    /// Partitions that nobody owns.
    pub free: PartitionSet,
}

/// A relay as the others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Token of the process.
    pub instance: Uuid,
    /// Its last sign of life, by the database's clock: another one is another renewal.
    pub renewed_at: SystemTime,
    /// How long its lease lasts from there.
    pub lease: Duration,
    /// It is connected to the broker; one that the broker blocks is.
    pub able: bool,
    /// What it owns.
    pub held: PartitionSet,
}

/// What to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    /// Relays whose lease is over, as long as this is still their last sign of life.
    pub dead: Vec<(Uuid, SystemTime)>,
    /// At most so many of the partitions that are theirs or free.
    pub limit: usize,
}

/// What a look at the leases led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// This relay owns these.
    pub held: PartitionSet,
    /// It should have these as well.
    pub take: Option<Take>,
    /// It should hand these over.
    pub surplus: PartitionSet,
    /// Look again then, at the latest.
    pub look_at: Moment,
    /// What this relay does not own is owned by others that are certainly alive.
    pub settled: bool,
    /// Other relays are there to own what this one does not.
    pub stands_by: bool,
}

/// Clocks that differ by more were set, or a host stood still.
const STEP: Duration = Duration::from_secs(1);

/// A host whose wall clock differs from the database's by less has clocks that somebody keeps.
const KEPT: Duration = Duration::from_secs(5);

/// The first pause before this relay looks again for partitions that others should hand over.
const HUNGRY: Duration = Duration::from_millis(100);

/// What one relay knows about the others.
#[derive(Debug)]
pub struct Ownership {
    me: Uuid,
    lease: Duration,
    watched: HashMap<Uuid, Watched>,
    /// The database's clock less ours, at the last look.
    offset: Option<Offset>,
    /// The last look.
    looked_at: Moment,
    /// Looks in a row that brought less than a fair share.
    hungry: u32,
}

/// A relay that is watched.
#[derive(Debug)]
struct Watched {
    renewed_at: SystemTime,
    /// Its lease is over then.
    dies_at: Moment,
    /// It was seen to renew, and so was alive while we watched.
    renewed: bool,
    /// How long its lease lasts, as it says.
    lease: Duration,
    broker: Reach,
}

/// A relay's way to the broker, as far as it was watched.
#[derive(Clone, Copy, Debug)]
enum Reach {
    /// It was not connected when it was first seen, nor since.
    Never,
    Connected,
    /// It was connected before.
    Lost(Moment),
}

impl Reach {
    fn next(self, able: bool, now: Moment) -> Self {
        match (able, self) {
            (true, _) => Self::Connected,
            (false, Self::Connected) => Self::Lost(now),
            (false, Self::Never | Self::Lost(_)) => self,
        }
    }
}

impl Ownership {
    /// A relay that knows nobody yet. `lease` is how long its own lasts.
    #[must_use]
    pub fn new(me: Uuid, lease: Duration) -> Self {
        Self {
            me,
            lease,
            watched: HashMap::new(),
            offset: None,
            looked_at: Moment::ORIGIN,
            hungry: 0,
        }
    }

    /// Until when this relay may publish, given when it sent its last renewal: less than the whole
    /// lease, for what is on its way to the broker at the end.
    #[must_use]
    pub fn fence(&self, renewal_sent: Moment) -> Moment {
        renewal_sent + self.lease.mul_f64(0.9)
    }

    /// A look at the leases. `wall` is this host's wall clock, `leaving` what is being handed over
    /// already.
    pub fn look(
        &mut self,
        leases: &Leases,
        leaving: &PartitionSet,
        now: Moment,
        wall: SystemTime,
    ) -> Plan {
        self.watch(leases, now, wall);
        let held = self.held(leases);
        let (living, dead): (Vec<&Peer>, Vec<&Peer>) = leases
            .peers
            .iter()
            .filter(|peer| peer.instance != self.me)
            .partition(|peer| self.is_alive(peer.instance, now));
        let share = self.share(&living, now);
        let kept = held.minus(leaving);
        let claimable = dead
            .iter()
            .fold(leases.free, |all, one| all.union(&one.held));
        let missing = share.saturating_sub(kept.len());
        let take = (missing > 0 && !claimable.is_empty()).then(|| Take {
            dead: dead
                .iter()
                .filter(|peer| !peer.held.is_empty())
                .map(|peer| (peer.instance, peer.renewed_at))
                .collect(),
            limit: missing,
        });
        let surplus = highest(&kept, kept.len().saturating_sub(share));
        let renewed = |peer: &&Peer| peer.held.is_empty() || self.watched[&peer.instance].renewed;
        Plan {
            held,
            settled: claimable.is_empty() && living.iter().all(renewed),
            stands_by: kept.is_empty() && take.is_none() && !living.is_empty(),
            look_at: self.look_at(&living, missing > 0 && take.is_none(), now),
            take,
            surplus,
        }
    }

    fn held(&self, leases: &Leases) -> PartitionSet {
        let mine = leases.peers.iter().find(|peer| peer.instance == self.me);
        mine.map_or(PartitionSet::NONE, |peer| peer.held)
    }

    /// Notes who renewed, and until when each is taken for alive.
    fn watch(&mut self, leases: &Leases, now: Moment, wall: SystemTime) {
        let offset = Offset::between(leases.at, now);
        let trusted = match self.offset.replace(offset) {
            Some(before) => offset.differs_by(before) <= STEP,
            None => apart(leases.at, wall) <= KEPT,
        };
        let before = std::mem::replace(&mut self.looked_at, now);
        self.watched
            .retain(|one, _| leases.peers.iter().any(|peer| peer.instance == *one));
        for peer in &leases.peers {
            let end = peer.renewed_at + peer.lease;
            let left = end.duration_since(leases.at).unwrap_or_default();
            let left = if trusted {
                left.min(peer.lease)
            } else {
                peer.lease
            };
            let watched = self.watched.entry(peer.instance).or_insert(Watched {
                renewed_at: peer.renewed_at,
                dies_at: now + left,
                renewed: false,
                lease: peer.lease,
                broker: Reach::Never,
            });
            watched.lease = peer.lease;
            if watched.renewed_at != peer.renewed_at {
                watched.renewed_at = peer.renewed_at;
                // It lived after the last look, whatever time the database took that to be: its clock
                // may have been set forth and back since.
                watched.dies_at = (now + left).max(before + peer.lease);
                watched.renewed = true;
            }
            watched.broker = watched.broker.next(peer.able, now);
        }
    }

    fn is_alive(&self, peer: Uuid, now: Moment) -> bool {
        self.watched.get(&peer).is_some_and(|one| now < one.dies_at)
    }

    /// How many partitions this relay should have. Who has lost the broker for as long as its lease
    /// leaves its share to those who have it, if anybody has; who came without it has no share until
    /// then. It is its own lease that counts, so that all agree whose settings differ: what one gives
    /// up another has to take. Who is new itself may take a lost one for one that never was
    /// connected, and so takes too much for its share, never too little.
    fn share(&self, living: &[&Peer], now: Moment) -> usize {
        let able = |one: &Uuid| {
            self.watched
                .get(one)
                .is_none_or(|watched| match watched.broker {
                    Reach::Never => false,
                    Reach::Connected => true,
                    Reach::Lost(at) => now.since(at) < watched.lease,
                })
        };
        let mut sharing: Vec<Uuid> = living.iter().map(|peer| peer.instance).collect();
        sharing.push(self.me);
        if sharing.iter().any(able) {
            sharing.retain(able);
        }
        sharing.sort_unstable();
        let all = PartitionSet::ALL.len();
        let Some(rank) = sharing.iter().position(|one| *one == self.me) else {
            return 0;
        };
        all / sharing.len() + usize::from(rank < all % sharing.len())
    }

    /// When the next lease may be over, or when others may have handed something over.
    fn look_at(&mut self, living: &[&Peer], hungry: bool, now: Moment) -> Moment {
        let longest = now + self.lease / 3;
        let deaths = living
            .iter()
            .filter(|peer| !peer.held.is_empty())
            .filter_map(|peer| self.watched.get(&peer.instance))
            .map(|watched| watched.dies_at);
        let soonest = deaths.min().map_or(longest, |at| at.min(longest));
        if !hungry {
            self.hungry = 0;
            return soonest;
        }
        let pause = HUNGRY * 2_u32.pow(self.hungry.min(10));
        self.hungry += 1;
        soonest.min(now + pause)
    }
}

/// So many of the highest.
fn highest(partitions: &PartitionSet, count: usize) -> PartitionSet {
    let lower = partitions.len() - count;
    partitions.iter().skip(lower).collect()
}

fn apart(one: SystemTime, other: SystemTime) -> Duration {
    one.duration_since(other)
        .unwrap_or_else(|error| error.duration())
}

/// One clock less the other, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Offset(i128);

impl Offset {
    fn between(database: SystemTime, now: Moment) -> Self {
        let nanos = |span: Duration| i128::try_from(span.as_nanos()).unwrap_or(i128::MAX);
        let since_epoch = match database.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => nanos(after),
            Err(before) => -nanos(before.duration()),
        };
        Self(since_epoch - nanos(now.since_origin()))
    }

    fn differs_by(self, other: Self) -> Duration {
        let nanos = self.0.abs_diff(other.0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests;
