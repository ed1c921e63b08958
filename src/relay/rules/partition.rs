//! Partitions: the unit of ownership. Every row belongs to exactly one of 256.

/// A partition, computed by the database from the ordering key, or from the id of a row
/// without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(pub u8);

/// A set of partitions.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct PartitionSet([u64; 4]);

impl PartitionSet {
    /// No partition.
    pub const NONE: Self = Self([0; 4]);
    /// All 256.
    pub const ALL: Self = Self([u64::MAX; 4]);

    /// Is it in the set?
    #[must_use]
    pub fn contains(&self, partition: Partition) -> bool {
        let (word, bit) = Self::place(partition);
        self.0[word] & bit != 0
    }

    /// Puts it in.
    pub fn insert(&mut self, partition: Partition) {
        let (word, bit) = Self::place(partition);
        self.0[word] |= bit;
    }

    /// Takes it out.
    pub fn remove(&mut self, partition: Partition) {
        let (word, bit) = Self::place(partition);
        self.0[word] &= !bit;
    }

    /// What is in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// What is in this one and not in the other.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    /// What is in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// How many are in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Is there none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::NONE
    }

    /// The partitions in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Partition> + '_ {
        (0..=u8::MAX)
            .map(Partition)
            .filter(|partition| self.contains(*partition))
    }

    fn place(partition: Partition) -> (usize, u64) {
        (usize::from(partition.0 >> 6), 1 << (partition.0 & 63))
    }
}

impl FromIterator<Partition> for PartitionSet {
    fn from_iter<I: IntoIterator<Item = Partition>>(partitions: I) -> Self {
        let mut set = Self::NONE;
        for partition in partitions {
            set.insert(partition);
        }
        set
    }
}

impl std::fmt::Debug for PartitionSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} partitions", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in_and_nothing_else() {
        let mut set: PartitionSet = [0, 63, 64, 200, 255].map(Partition).into_iter().collect();
        set.remove(Partition(64));
        assert_eq!(
            set.iter().map(|p| p.0).collect::<Vec<_>>(),
            [0, 63, 200, 255]
        );
        assert_eq!(PartitionSet::ALL.minus(&set).len(), 256 - 4);
        assert_eq!(PartitionSet::ALL.minus(&set).union(&set), PartitionSet::ALL);
        assert!(PartitionSet::NONE.is_empty() && !set.is_empty());
    }
}
