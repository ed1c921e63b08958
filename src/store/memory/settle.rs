//! Settling in the in-memory twin.

use std::time::SystemTime;

use uuid::Uuid;

use super::table::{StoredRow, Table, fingerprint};
use crate::relay::rules::{SettleReport, Settlement, Verdict};

impl Table {
    /// Settles a batch for a relay.
    pub fn settle(&mut self, me: Uuid, batch: &[Settlement]) -> SettleReport {
        let (now, mut report) = (self.now(), SettleReport::default());
        for Settlement {
            id,
            partition,
            fingerprint: known,
            ticket,
            verdict,
        } in batch
        {
            let may = verdict.is_anybody_s() || self.leases.owner(*partition) == Some(me);
            let it_is = |row: &StoredRow| known.is_none_or(|known| known == fingerprint(&row.row));
            let row = self.rows.get_mut(&id.0);
            match row.filter(|row| row.sent_at.is_none() && it_is(row)) {
                None => report.gone.push((*id, *ticket)),
                Some(_) if !may => report.disowned.push((*id, *ticket)),
                Some(row) if row.locked => report.locked.push(*ticket),
                Some(row) => {
                    apply(row, verdict, now);
                    if let Verdict::Quarantine { why, .. } = verdict
                        && let Some(row) = self.rows.remove(&id.0)
                    {
                        self.quarantined.insert(id.0, (row, why.clone()));
                    }
                    report.written.push((*id, *ticket));
                }
            }
        }
        report
    }
}

fn apply(row: &mut StoredRow, verdict: &Verdict, now: SystemTime) {
    match verdict {
        Verdict::Sent(_) => row.sent_at = Some(now),
        Verdict::RetryAt {
            delay,
            attempts,
            error,
            ..
        } => {
            row.retry_at = Some(now + *delay);
            row.last_error = Some(error.clone());
            row.row.attempts = *attempts;
        }
        Verdict::Quarantine { attempts, why } => {
            row.last_error = Some(why.to_string());
            row.row.attempts = *attempts;
        }
    }
}
