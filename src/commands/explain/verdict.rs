//! What the facts about a row mean: one state, one sentence, one remedy. Asks nobody.

use std::time::SystemTime;

use super::super::calendar::clock;
use super::withheld;
use crate::relay::rules::{HeldBack, Unwritten, Withheld};
use crate::store::postgres::explain::{Held, Lease, Sender, Standing};
use crate::store::postgres::quarantine::Entry;

/// What is around a row that is due.
pub(super) struct Circumstances {
    pub(super) held: Option<Held>,
    /// The database accepts no writes.
    pub(super) read_only: bool,
    /// The owner of its partition first, then the most useful.
    pub(super) senders: Vec<Sender>,
    pub(super) lease: Option<Lease>,
    /// Another row of its destination that was refused and tries again.
    pub(super) knocking: Option<Standing>,
}

/// Attempts that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failures {
    pub(super) attempts: i32,
    pub(super) error: Option<String>,
}

impl Failures {
    fn of(row: &Standing) -> Self {
        Self {
            attempts: row.attempts,
            error: row.last_error.clone(),
        }
    }
}

/// The state that a row is in.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    Sent(SystemTime),
    Scheduled(SystemTime),
    Retry {
        at: SystemTime,
        failures: Failures,
        /// Why nobody would try it if that were now.
        but: Option<&'static str>,
    },
    Behind {
        id: i64,
        key: String,
        why: Box<Verdict>,
    },
    BehindQuarantined(Entry),
    Paused(Held),
    /// The database accepts no writes: nothing is sent, and no relay is heard of.
    ReadOnly,
    NoRelay {
        last: Option<Sender>,
        failures: Failures,
    },
    RelayWaits(Sender),
    /// The owner of its partition fell silent; others are there to take over.
    RelaySilent {
        owner: Sender,
        lease: Option<Lease>,
    },
    /// Its destination refuses: another row tries it again, and this one goes when that one got through.
    Destination {
        id: i64,
        at: Option<SystemTime>,
        failures: Failures,
    },
    Due {
        failures: Failures,
        lease: Option<Lease>,
    },
    /// The relay that is to send or mark it says that it does not, and why.
    HeldBack {
        relay: String,
        row: i64,
        told: HeldBack,
    },
    Quarantined(Entry),
    /// Its id is below 1.
    NeverRead,
}

/// What would have to be otherwise for a row to be tried.
pub(super) const READ_ONLY: &str = "the database accepts writes again";
pub(super) const NO_RELAY: &str = "a relay runs";

impl Verdict {
    /// What the row alone tells.
    pub(super) fn by_itself(row: &Standing) -> Option<Self> {
        if let Some(at) = row.sent_at {
            return Some(Self::Sent(at));
        }
        if row.id < 1 {
            return Some(Self::NeverRead);
        }
        row.available_at
            .filter(|_| row.scheduled)
            .map(Self::Scheduled)
    }

    /// Of a row that stands behind no other.
    pub(super) fn of(row: &Standing, circumstances: Circumstances) -> Self {
        if let Some(verdict) = Self::by_itself(row) {
            return verdict;
        }
        let Circumstances {
            held,
            read_only,
            senders,
            lease,
            knocking,
        } = circumstances;
        if let Some(unmarked) = Self::unmarked(row, &senders) {
            return unmarked;
        }
        let told = held_back(row, &senders);
        let failures = Failures::of(row);
        let others = senders.iter().any(|sender| sender.alive);
        if let Some(held) = held {
            return Self::Paused(held);
        }
        if let Some(at) = row.retry_at.filter(|_| row.waiting) {
            let but = match (read_only, others) {
                (true, _) => Some(READ_ONLY),
                (false, false) => Some(NO_RELAY),
                (false, true) => None,
            };
            return Self::Retry { at, failures, but };
        }
        if read_only {
            return Self::ReadOnly;
        }
        match senders.into_iter().next() {
            Some(sender) if sender.alive && sender.ready => match knocking {
                Some(other) if other.waiting || told.is_none() => Self::Destination {
                    id: other.id,
                    at: other.retry_at.filter(|_| other.waiting),
                    failures: Failures::of(&other),
                },
                Some(_) | None => told.unwrap_or(Self::Due { failures, lease }),
            },
            Some(sender) if sender.alive => told
                .filter(Self::is_about_everything)
                .unwrap_or(Self::RelayWaits(sender)),
            Some(owner) if others => Self::RelaySilent { owner, lease },
            last => Self::NoRelay { last, failures },
        }
    }

    /// Was its fate decided, and cannot be written down? Whatever else it seems to wait for.
    pub(super) fn unmarked(row: &Standing, senders: &[Sender]) -> Option<Self> {
        held_back(row, senders).filter(Self::is_unmarked)
    }

    fn is_unmarked(&self) -> bool {
        let unmarked = |told: &HeldBack| matches!(told.what, Withheld::Unmarked { .. });
        matches!(self, Self::HeldBack { told, .. } if unmarked(told))
    }

    /// A row that was sent holds its key no longer, marked or not.
    pub(super) fn lets_pass(&self) -> bool {
        let sent = |told: &HeldBack| {
            matches!(
                told.what,
                Withheld::Unmarked {
                    fate: Unwritten::Sent,
                    ..
                }
            )
        };
        matches!(self, Self::HeldBack { told, .. } if sent(told))
    }

    /// Does the relay say why it sends nothing at all?
    fn is_about_everything(&self) -> bool {
        let everything = |told: &HeldBack| matches!(told.what, Withheld::Everything { .. });
        matches!(self, Self::HeldBack { told, .. } if everything(told))
    }

    /// For scripts; never changes within 1.x.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Sent(_) => "sent",
            Self::Scheduled(_) => "scheduled",
            Self::Retry { .. } => "retry",
            Self::Behind { .. } => "behind",
            Self::BehindQuarantined(_) => "behind_quarantined",
            Self::Paused(_) => "paused",
            Self::ReadOnly => "read_only",
            Self::NoRelay { .. } => "no_relay",
            Self::RelayWaits(_) => "relay_waits",
            Self::RelaySilent { .. } => "relay_silent",
            Self::Destination { .. } => "destination",
            Self::Due { .. } => "due",
            Self::HeldBack { .. } if self.is_unmarked() => "unmarked",
            Self::HeldBack { .. } => "held_back",
            Self::Quarantined(_) => "quarantined",
            Self::NeverRead => "never_read",
        }
    }

    /// Goes on after "Row 4711 (message_id)".
    pub(super) fn sentence(&self) -> String {
        match self {
            Self::Sent(at) => format!("was sent at {} UTC.", clock(*at)),
            Self::Scheduled(at) => format!("is scheduled for {} UTC.", clock(*at)),
            Self::Retry { at, failures, but } => {
                let but = but.map_or_else(String::new, |but| format!(", if {but} by then"));
                format!(
                    "is tried again at {} UTC{but}{}.",
                    clock(*at),
                    told(failures)
                )
            }
            Self::Behind { id, key, why } => {
                format!(
                    "waits behind row {id} of its ordering key {key}, which {}",
                    why.sentence()
                )
            }
            Self::BehindQuarantined(entry) => behind_quarantined(entry),
            Self::Paused(held) => paused(held),
            Self::ReadOnly => {
                "is due, and the database accepts no writes (default_transaction_read_only), so \
                 that nothing is sent and no relay can give a sign of life."
                    .to_owned()
            }
            Self::NoRelay { last, failures } => no_relay(last.as_ref(), failures),
            Self::RelayWaits(sender) => format!(
                "is due, and the relay {} waits, as it said at {} UTC: {}.",
                sender.name,
                clock(sender.seen_at),
                sender
                    .waits_for
                    .as_deref()
                    .unwrap_or("it does not say for what")
            ),
            Self::RelaySilent { owner, lease } => silent(owner, lease.as_ref()),
            Self::Destination { id, at, failures } => refused(*id, *at, failures),
            Self::Due { failures, lease } => due(failures, lease.as_ref()),
            Self::HeldBack { relay, row, told } => withheld::sentence(relay, *row, told),
            Self::NeverRead => UNREAD.to_owned(),
            Self::Quarantined(entry) => format!(
                "is in quarantine since {} UTC (entry {}), {}: {}.",
                clock(entry.quarantined_at),
                entry.quarantine_id,
                entry.reason_class,
                entry.reason.trim_end_matches('.')
            ),
        }
    }
}

const UNREAD: &str = "will not be sent: its id is below 1, and such a row is read only by a relay that runs \
     when it is committed.";

/// What the first of these says of the row.
fn held_back(row: &Standing, senders: &[Sender]) -> Option<Verdict> {
    let sender = senders.first().filter(|sender| sender.alive)?;
    let concerns = |told: &&HeldBack| told.concerns(row.id, (&row.exchange, &row.routing_key));
    let told = sender.held_back.iter().find(concerns)?.clone();
    let relay = sender.name.clone();
    let row = row.id;
    Some(Verdict::HeldBack { relay, row, told })
}

fn no_relay(last: Option<&Sender>, failures: &Failures) -> String {
    // It may live, and not be able to say so.
    let relay = last.map_or_else(
        || "no relay runs".to_owned(),
        |last| {
            format!(
                "no relay gives a sign of life: {} was last seen at {} UTC",
                last.name,
                clock(last.seen_at)
            )
        },
    );
    format!("is due, and {relay}{}.", told(failures))
}

fn due(failures: &Failures, lease: Option<&Lease>) -> String {
    let failed = told(failures);
    let Some(lease) = lease else {
        return format!(
            "is due, and no relay holds its partition at the moment: one that runs takes it, after one \
             that was killed when its lease is over{failed}."
        );
    };
    format!(
        "is due: about to be sent, or on its way and not confirmed yet by {}, which holds its partition \
         until {} UTC{failed}.",
        lease.owner,
        clock(lease.until)
    )
}

fn refused(id: i64, at: Option<SystemTime>, failures: &Failures) -> String {
    let at = at.map_or_else(String::new, |at| format!(" at {} UTC", clock(at)));
    format!(
        "waits for its destination, which refuses; row {id} of the same is tried again{at}{}.",
        told(failures)
    )
}

fn silent(owner: &Sender, lease: Option<&Lease>) -> String {
    let until = lease.map_or_else(String::new, |lease| {
        format!(" at {} UTC", clock(lease.until))
    });
    format!(
        "is due; the relay {}, which holds its partition, was last seen at {} UTC. Another takes over \
         when its lease ends{until}.",
        owner.name,
        clock(owner.seen_at)
    )
}

fn behind_quarantined(entry: &Entry) -> String {
    format!(
        "waits behind row {} of its ordering key, which is in quarantine since {} UTC (entry {}), \
         {}: {}; quarantine.successors is \"wait\".",
        entry.id,
        clock(entry.quarantined_at),
        entry.quarantine_id,
        entry.reason_class,
        entry.reason.trim_end_matches('.')
    )
}

fn paused(held: &Held) -> String {
    let what = match held.exchange.as_deref() {
        None => "everything",
        Some("") => "the default exchange",
        Some(_) => "its exchange",
    };
    let until = held
        .until
        .map_or_else(String::new, |at| format!(" until {} UTC", clock(at)));
    let (since, by, reason) = (clock(held.since), &held.by, &held.reason);
    format!("waits because {by} paused {what} at {since} UTC{until}: {reason}.")
}

fn told(failures: &Failures) -> String {
    match (failures.attempts, &failures.error) {
        (_, None) => String::new(),
        (0, Some(error)) => format!("; the last attempt failed: {error}"),
        (attempts, Some(error)) => {
            let charged = match attempts {
                1 => "1 attempt was".to_owned(),
                attempts => format!("{attempts} attempts were"),
            };
            format!("; {charged} charged to it, the last failed: {error}")
        }
    }
}
