//! PostgreSQL's view of which transactions were over, as `pg_current_snapshot()` prints it.
//!
//! The tail of the outbox is read by it: a row is new since a snapshot exactly if the
//! snapshot did not see the row's transaction as finished. Format and meaning:
//! PostgreSQL manual, "Transaction ID and Snapshot Information Functions".

use std::str::FromStr;

/// `xmin:xmax:xip_list`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Every transaction below was over.
    pub xmin: u64,
    /// Every transaction from here on had not begun, or was not over.
    pub xmax: u64,
    /// In progress between the two, ascending.
    pub in_progress: Vec<u64>,
}

impl Snapshot {
    /// Was the transaction over (committed or rolled back) when the snapshot was taken?
    #[must_use]
    pub fn sees(&self, xid: u64) -> bool {
        xid < self.xmin || (xid < self.xmax && self.in_progress.binary_search(&xid).is_err())
    }
}

/// The text is not a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a snapshot (xmin:xmax:xip,xip…)")]
pub struct SnapshotSyntax(String);

impl FromStr for Snapshot {
    type Err = SnapshotSyntax;

    fn from_str(text: &str) -> Result<Self, SnapshotSyntax> {
        let wrong = || SnapshotSyntax(text.to_owned());
        let mut parts = text.splitn(3, ':');
        let mut number = || {
            parts
                .next()
                .and_then(|part| part.parse().ok())
                .ok_or_else(wrong)
        };
        let (xmin, xmax) = (number()?, number()?);
        let mut in_progress = parts
            .next()
            .ok_or_else(wrong)?
            .split(',')
            .filter(|part| !part.is_empty())
            .map(|part| part.parse().map_err(|_| wrong()))
            .collect::<Result<Vec<u64>, _>>()?;
        in_progress.sort_unstable();
        Ok(Self {
            xmin,
            xmax,
            in_progress,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_sees_what_was_over_and_not_what_was_running_or_later() {
        let snapshot: Snapshot = "10:20:10,14,15".parse().unwrap();
        let seen: Vec<u64> = (8..22).filter(|xid| snapshot.sees(*xid)).collect();
        assert_eq!(seen, [8, 9, 11, 12, 13, 16, 17, 18, 19]);
    }

    #[test]
    fn a_snapshot_without_running_transactions_parses() {
        let snapshot: Snapshot = "10:10:".parse().unwrap();
        assert!(snapshot.sees(9) && !snapshot.sees(10));
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "10", "10:20", "a:b:", "10:20:x", "-1:2:"] {
            assert!(text.parse::<Snapshot>().is_err(), "{text}");
        }
    }
}
