//! What can be said about an outbox as a whole, at a bounded cost.

use std::fmt;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use crate::relay::rules::HeldBack;

/// Counting stops here: beyond it an estimate has to do.
pub const COUNTED: i64 = 10_000;

/// A number of rows: exact up to [`COUNTED`], beyond it with an estimate where there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    counted: i64,
    estimate: Option<i64>,
}

impl Count {
    /// `counted` is what was counted with a limit of one more than [`COUNTED`].
    #[must_use]
    pub fn new(counted: i64, estimate: Option<i64>) -> Self {
        Self { counted, estimate }
    }

    /// The number is no estimate.
    #[must_use]
    pub fn is_exact(self) -> bool {
        self.counted <= COUNTED
    }

    /// The best that is known.
    #[must_use]
    pub fn value(self) -> i64 {
        if self.is_exact() {
            self.counted
        } else {
            self.estimate.unwrap_or(0).max(self.counted)
        }
    }
}

/// `42`, `more than 10000`, `about 250000`.
impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.estimate {
            _ if self.is_exact() => self.counted.fmt(f),
            Some(estimate) if estimate > COUNTED => write!(f, "about {estimate}"),
            Some(_) | None => write!(f, "more than {COUNTED}"),
        }
    }
}

/// An outbox as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measures {
    /// Not sent yet, whatever they wait for.
    pub pending: Count,
    /// Of these, `available_at` lies ahead.
    pub scheduled: Count,
    /// Of these, an attempt has failed; the next one may be due or not.
    pub waiting: Count,
    /// Ordering keys that a row waiting after a failure holds back.
    pub blocked_keys: Count,
    /// Age of the oldest row that should have been sent: since it was written, or since its
    /// `available_at`. `None` if there is none.
    pub oldest_due: Option<Duration>,
    /// Reasons for which rows wait after a failure, most frequent first. Of the first 10,000.
    pub reasons: Vec<(String, i64)>,
    /// What was given up, by reason.
    pub quarantine: Vec<GivenUp>,
    /// Versions of rows that vacuum has yet to remove, as the statistics have it.
    pub dead_tuples: Option<i64>,
    /// Other sessions could be looked at (`pg_read_all_stats`).
    pub sees_sessions: bool,
    /// What holds vacuum back, the oldest of each kind first.
    pub pins: Vec<Pin>,
    /// What is paused.
    pub pauses: Vec<Pause>,
    /// Who holds the partitions.
    pub partitions: Vec<Holder>,
    /// Who is alive, or lately was.
    pub instances: Vec<Instance>,
}

/// Rows in quarantine for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// `reason_class`.
    pub reason: String,
    /// How many.
    pub rows: Count,
    /// How long the oldest has been there.
    pub oldest: Duration,
}

/// What kind of thing holds vacuum back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PinKind {
    /// A session with a transaction or statement that is long under way.
    Session,
    /// A prepared transaction that nobody ends.
    Prepared,
    /// A replication slot that nobody reads.
    Slot,
    /// A standby with `hot_standby_feedback` and a long query.
    Standby,
}

impl PinKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Session, Self::Prepared, Self::Slot, Self::Standby];

    /// As it is written in labels and in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Prepared => "prepared",
            Self::Slot => "slot",
            Self::Standby => "standby",
        }
    }
}

/// Something that holds vacuum back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// Its kind.
    pub kind: PinKind,
    /// Who it is, and what to look for: `pid 4711 (shop-worker)`, `slot backup`.
    pub who: String,
    /// What it does: `idle in transaction`.
    pub state: String,
    /// Since when; slots and standbys do not tell.
    pub since: Option<SystemTime>,
    /// For how long.
    pub age: Option<Duration>,
    /// How many transactions ago the oldest row version is that it still may see.
    pub transactions: i64,
}

impl Measures {
    /// How many partitions a relay holds by the leases. What it said at its last sign of life would
    /// count those twice that another has taken over since; it is told where there are no leases, of
    /// one whose own would not be over.
    #[must_use]
    pub fn partitions_of(&self, relay: &Instance) -> i64 {
        if self.partitions.iter().all(|holder| holder.owner.is_none()) {
            let over = relay.silent_for > relay.lease;
            return if over { 0 } else { relay.partitions.into() };
        }
        let held = self.partitions.iter();
        let held = held.filter(|holder| holder.owner == Some(relay.instance));
        held.map(|holder| holder.partitions).sum()
    }
}

/// Partitions in one hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Token of the process; `None` if nobody holds them.
    pub owner: Option<Uuid>,
    /// Its name, if it is known.
    pub name: Option<String>,
    /// How many.
    pub partitions: i64,
    /// The leases are not over.
    pub valid: bool,
}

/// A relay's last sign of life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Token of the process.
    pub instance: Uuid,
    /// Host and process.
    pub name: String,
    /// Of the program.
    pub version: String,
    /// When it started.
    pub started_at: SystemTime,
    /// How old the sign is.
    pub silent_for: Duration,
    /// How long its lease lasts without another one.
    pub lease: Duration,
    /// It was ready.
    pub ready: bool,
    /// Why not.
    pub waits_for: Option<String>,
    /// State of its connection to PostgreSQL.
    pub database: Option<String>,
    /// State of its connection to RabbitMQ.
    pub broker: Option<String>,
    /// When a row of it was last confirmed.
    pub last_confirm_at: Option<SystemTime>,
    /// Partitions it held.
    pub partitions: i16,
    /// What it held back on purpose.
    pub held_back: Vec<HeldBack>,
}

/// Something that is paused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Which exchange; `None` for everything.
    pub exchange: Option<String>,
    /// Who paused it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Since when.
    pub since: SystemTime,
    /// Until when; `None` until somebody resumes.
    pub until: Option<SystemTime>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_that_were_taken_over_count_once() {
        let relay = |number| Instance {
            instance: Uuid::from_u128(number),
            name: String::new(),
            version: String::new(),
            started_at: SystemTime::UNIX_EPOCH,
            silent_for: Duration::ZERO,
            ready: true,
            waits_for: None,
            database: None,
            broker: None,
            last_confirm_at: None,
            lease: Duration::from_secs(15),
            partitions: 256,
            held_back: Vec::new(),
        };
        let held_by = |owner: Option<u128>| Holder {
            owner: owner.map(Uuid::from_u128),
            name: None,
            partitions: 256,
            valid: true,
        };
        let mut measures = Measures {
            partitions: vec![held_by(Some(2))],
            ..Measures::default()
        };
        assert_eq!(measures.partitions_of(&relay(1)), 0, "killed");
        assert_eq!(measures.partitions_of(&relay(2)), 256, "has taken over");
        measures.partitions = vec![held_by(None)];
        assert_eq!(measures.partitions_of(&relay(1)), 256, "no leases");
        let silent = Instance {
            silent_for: Duration::from_secs(16),
            ..relay(1)
        };
        assert_eq!(measures.partitions_of(&silent), 0, "all were given back");
    }

    #[test]
    fn a_count_is_exact_until_it_is_many() {
        for (count, shown, value) in [
            (Count::new(0, None), "0", 0),
            (Count::new(10_000, Some(7)), "10000", 10_000),
            (Count::new(10_001, None), "more than 10000", 10_001),
            (Count::new(10_001, Some(-1)), "more than 10000", 10_001),
            (Count::new(10_001, Some(250_000)), "about 250000", 250_000),
        ] {
            assert_eq!((count.to_string().as_str(), count.value()), (shown, value));
        }
    }
}
