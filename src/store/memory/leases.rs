//! Signs of life and leases of the in-memory twin.

use std::collections::BTreeMap;
use std::time::SystemTime;

use uuid::Uuid;

use crate::relay::rules::{Leases, Partition, PartitionSet, Peer, Take};
use crate::store::Announcement;

/// Who is alive, and who owns which partition.
#[derive(Debug, Default)]
pub struct LeaseTable {
    signs: BTreeMap<Uuid, (SystemTime, Announcement)>,
    owners: BTreeMap<u8, Uuid>,
}

impl LeaseTable {
    /// Signs of life of relays.
    pub fn signs(&self) -> impl Iterator<Item = &Announcement> {
        self.signs.values().map(|(_, sign)| sign)
    }

    /// Writes a sign of life, which renews.
    pub fn announce(&mut self, sign: &Announcement, now: SystemTime) {
        self.signs.insert(sign.instance, (now, sign.clone()));
    }

    /// Removes a relay; its partitions are free.
    pub fn withdraw(&mut self, instance: Uuid) {
        self.signs.remove(&instance);
        self.owners.retain(|_, owner| *owner != instance);
    }

    /// Who owns it.
    #[must_use]
    pub fn owner(&self, partition: Partition) -> Option<Uuid> {
        self.owners.get(&partition.0).copied()
    }

    pub(super) fn has_orphans(&self) -> bool {
        self.owners.len() < PartitionSet::ALL.len()
    }

    fn held(&self, by: Option<Uuid>) -> PartitionSet {
        let owned = |partition: &Partition| self.owner(*partition) == by;
        PartitionSet::ALL.iter().filter(owned).collect()
    }

    /// The leases as they are.
    #[must_use]
    pub fn look(&self, now: SystemTime) -> Leases {
        let peer = |(renewed_at, sign): &(SystemTime, Announcement)| Peer {
            instance: sign.instance,
            renewed_at: *renewed_at,
            lease: sign.lease,
            able: ["connected", "blocked"].contains(&sign.broker.0.as_str()),
            held: self.held(Some(sign.instance)),
        };
        Leases {
            at: now,
            peers: self.signs.values().map(peer).collect(),
            free: self.held(None),
        }
    }

    /// Takes what is free, or belongs to those who gave no further sign of life.
    pub fn take(&mut self, me: Uuid, take: &Take) {
        let silent = |(dead, seen): &&(Uuid, SystemTime)| {
            self.signs.get(dead).is_none_or(|(last, _)| last == seen)
        };
        let dead: Vec<Uuid> = take.dead.iter().filter(silent).map(|dead| dead.0).collect();
        let free = |partition: &Partition| {
            let owner = self.owner(*partition);
            owner.is_none_or(|owner| dead.contains(&owner))
        };
        let taken: Vec<Partition> = PartitionSet::ALL
            .iter()
            .filter(free)
            .take(take.limit)
            .collect();
        self.owners
            .extend(taken.into_iter().map(|partition| (partition.0, me)));
    }

    /// Gives back what a relay owns of these.
    pub fn release(&mut self, me: Uuid, partitions: &PartitionSet) {
        self.owners
            .retain(|no, owner| *owner != me || !partitions.contains(Partition(*no)));
    }
}
