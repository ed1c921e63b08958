//! The ledger: what was committed, what was rolled back, what a consumer saw, and whether the
//! promises held. It judges only at the end, because a message may arrive before its writer
//! learns that the commit succeeded.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Mutex;

/// How many examples of a broken promise a report names.
const EXAMPLES: usize = 5;

/// What is known of one message that a writer wanted to send.
#[derive(Debug, Clone)]
enum Fate {
    /// Must arrive. Its place among the messages of its ordering key, if it has one.
    Committed(Option<(String, i64)>),
    /// Must never arrive.
    RolledBack,
    /// The writer lost its connection while committing: may arrive or not.
    Unknown,
}

#[derive(Debug, Default)]
struct Entries {
    written: HashMap<String, Fate>,
    /// Message ids in the order in which they arrived, repetitions included.
    delivered: Vec<String>,
    /// The same without repetitions.
    seen: HashSet<String>,
    /// Those whose first delivery the consumer did not see.
    unseen_at_first: HashSet<String>,
}

/// A ledger that writers and consumers of one test share.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<Entries>);

impl Ledger {
    /// A transaction with this message committed. `order` is the ordering key and a number
    /// that grows with the commits of that key, such as the outbox row's id.
    pub fn committed(&self, message_id: &str, order: Option<(&str, i64)>) {
        let order = order.map(|(key, place)| (key.to_owned(), place));
        self.write(message_id, Fate::Committed(order));
    }

    /// A transaction with this message was rolled back.
    pub fn rolled_back(&self, message_id: &str) {
        self.write(message_id, Fate::RolledBack);
    }

    /// The answer to COMMIT was lost.
    pub fn unknown(&self, message_id: &str) {
        self.write(message_id, Fate::Unknown);
    }

    /// A consumer received this message; says whether it had been received before.
    pub fn delivered(&self, message_id: &str) -> bool {
        let mut entries = self.entries();
        entries.delivered.push(message_id.to_owned());
        !entries.seen.insert(message_id.to_owned())
    }

    /// The same of a delivery that the broker calls a repetition. If the consumer never saw the
    /// first one, because its connection broke before, it cannot tell in which order that came.
    pub fn redelivered(&self, message_id: &str) -> bool {
        let again = self.delivered(message_id);
        if !again {
            self.entries().unseen_at_first.insert(message_id.to_owned());
        }
        again
    }

    /// How many deliveries there were so far, repetitions included.
    pub fn deliveries(&self) -> usize {
        self.entries().delivered.len()
    }

    /// How many committed messages have arrived so far.
    pub fn arrived(&self) -> usize {
        let entries = self.entries();
        let committed = |id: &&String| {
            let fate = entries.written.get(*id);
            matches!(fate, Some(Fate::Committed(_)))
        };
        entries.seen.iter().filter(committed).count()
    }

    /// How many messages were committed so far.
    pub fn commits(&self) -> usize {
        let written = &self.entries().written;
        let committed = |fate: &&Fate| matches!(fate, Fate::Committed(_));
        written.values().filter(committed).count()
    }

    /// Judges everything recorded so far.
    pub fn report(&self) -> Report {
        let entries = self.entries();
        let mut report = Report::default();
        let mut seen = HashSet::new();
        let mut latest: BTreeMap<&str, (i64, &str)> = BTreeMap::new();
        for id in &entries.delivered {
            if !seen.insert(id.as_str()) {
                report.duplicates += 1;
                continue;
            }
            let judged = !entries.unseen_at_first.contains(id);
            match entries.written.get(id) {
                Some(Fate::Committed(Some((key, place)))) if judged => {
                    let last = latest.entry(key).or_insert((*place, id));
                    if last.0 > *place {
                        let (key, later) = (key.clone(), last.1.to_owned());
                        report.disordered.push(Disorder {
                            key,
                            earlier: id.clone(),
                            later,
                        });
                    } else {
                        *last = (*place, id);
                    }
                }
                Some(Fate::Committed(_) | Fate::Unknown) => {}
                Some(Fate::RolledBack) | None => report.ghosts.push(id.clone()),
            }
        }
        for (id, fate) in &entries.written {
            match fate {
                Fate::Committed(_) => {
                    report.committed += 1;
                    if !seen.contains(id.as_str()) {
                        report.lost.push(id.clone());
                    }
                }
                Fate::RolledBack => report.rolled_back += 1,
                Fate::Unknown => report.unknown += 1,
            }
        }
        report.delivered = seen.len();
        report.lost.sort();
        report
    }

    fn write(&self, message_id: &str, fate: Fate) {
        let before = self.entries().written.insert(message_id.to_owned(), fate);
        assert!(before.is_none(), "{message_id} was written twice");
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, Entries> {
        self.0.lock().expect("no panic while held")
    }
}

/// Two messages of one key whose first deliveries came in the wrong order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disorder {
    /// The ordering key.
    pub key: String,
    /// Committed first, delivered second.
    pub earlier: String,
    /// Committed later, delivered before.
    pub later: String,
}

/// The judgement over a ledger.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Report {
    /// Messages whose transaction committed.
    pub committed: usize,
    /// Messages whose transaction was rolled back.
    pub rolled_back: usize,
    /// Messages whose writer never learned how its commit ended.
    pub unknown: usize,
    /// Different messages that arrived.
    pub delivered: usize,
    /// Deliveries beyond the first of a message.
    pub duplicates: usize,
    /// Committed and never delivered.
    pub lost: Vec<String>,
    /// Delivered without ever having been committed.
    pub ghosts: Vec<String>,
    /// First deliveries out of order.
    pub disordered: Vec<Disorder>,
}

impl Report {
    /// Nothing lost, no ghost, order kept. Duplicates are allowed; tests bound them apart.
    pub fn is_clean(&self) -> bool {
        self.lost.is_empty() && self.ghosts.is_empty() && self.disordered.is_empty()
    }

    /// # Panics
    /// If a promise was broken, with examples.
    pub fn assert_clean(&self) {
        assert!(self.is_clean(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} committed, {} rolled back, {} unknown, {} delivered, {} duplicates; {} lost {:?}, \
             {} ghosts {:?}, {} out of order {:?}",
            self.committed,
            self.rolled_back,
            self.unknown,
            self.delivered,
            self.duplicates,
            self.lost.len(),
            &self.lost[..self.lost.len().min(EXAMPLES)],
            self.ghosts.len(),
            &self.ghosts[..self.ghosts.len().min(EXAMPLES)],
            self.disordered.len(),
            &self.disordered[..self.disordered.len().min(EXAMPLES)],
        )
    }
}
