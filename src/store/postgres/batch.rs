//! A batch of settlements in PostgreSQL's types. Writes nothing.

use super::leases::numbers;
use crate::message::RowId;
use crate::relay::rules::{Fingerprint, Settlement, Ticket, Verdict};
use crate::runtime::Map;

/// A batch, sorted by what is to be done, in PostgreSQL's types.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) sent: Vec<i64>,
    /// What each row is known by beside its id.
    pub(super) sent_prints: Vec<Option<i64>>,
    pub(super) retry: Vec<i64>,
    pub(super) retry_prints: Vec<Option<i64>>,
    /// Partitions.
    pub(super) retry_in: Vec<i16>,
    /// Seconds.
    pub(super) delays: Vec<f64>,
    pub(super) attempts: Vec<i32>,
    pub(super) errors: Vec<String>,
    pub(super) unfit: Vec<i64>,
    pub(super) unfit_prints: Vec<Option<i64>>,
    /// Partitions.
    pub(super) unfit_in: Vec<i16>,
    pub(super) unfit_attempts: Vec<i32>,
    pub(super) classes: Vec<&'static str>,
    pub(super) reasons: Vec<String>,
}

impl Batch {
    pub(super) fn of(settlements: &[Settlement]) -> Self {
        let mut batch = Self::default();
        for settlement in latest(settlements) {
            let RowId(id) = settlement.id;
            let partition = numbers([settlement.partition].into_iter());
            match &settlement.verdict {
                Verdict::Sent(_) => {
                    batch.sent.push(id);
                    batch.sent_prints.push(print(settlement));
                }
                Verdict::RetryAt {
                    delay,
                    attempts,
                    error,
                    ..
                } => {
                    batch.retry.push(id);
                    batch.retry_prints.push(print(settlement));
                    batch.retry_in.extend(partition);
                    batch.delays.push(delay.as_secs_f64());
                    batch.attempts.push(counted(*attempts));
                    batch.errors.push(storable(error));
                }
                Verdict::Quarantine { attempts, why } => {
                    batch.unfit.push(id);
                    batch.unfit_prints.push(print(settlement));
                    batch.unfit_in.extend(partition);
                    batch.unfit_attempts.push(counted(*attempts));
                    batch.classes.push(why.class.as_str());
                    batch.reasons.push(storable(&why.reason));
                }
            }
        }
        batch
    }
}

/// What the row is known by beside its id.
pub(super) fn print(settlement: &Settlement) -> Option<i64> {
    settlement.fingerprint.map(|Fingerprint(hash)| hash)
}

/// Of several waits of one row in a batch only the last counts.
fn latest(settlements: &[Settlement]) -> Vec<&Settlement> {
    let wait = |s: &&Settlement| matches!(s.verdict, Verdict::RetryAt { .. });
    let waits: Map<RowId, Ticket> = settlements
        .iter()
        .filter(wait)
        .map(|s| (s.id, s.ticket))
        .collect();
    let counts = |s: &&Settlement| !wait(s) || waits.get(&s.id) == Some(&s.ticket);
    settlements.iter().filter(counts).collect()
}

fn counted(attempts: u32) -> i32 {
    i32::try_from(attempts).unwrap_or(i32::MAX)
}

/// `text` cannot hold U+0000.
fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
