//! Maps and sets for what is looked up several times for every row.
//!
//! Their hash is quick rather than hardened: use them for keys that are numbers of the database's
//! or our own, not for texts that somebody chooses.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;

/// A map by number.
pub type Map<K, V> = HashMap<K, V, RandomState>;

/// A set of numbers.
pub type Set<K> = HashSet<K, RandomState>;
