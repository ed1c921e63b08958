//! Compares the leases with what they must be.

use super::migration::BOOKKEEPING;
use super::pending::{Compare, Pending};

impl Compare<'_> {
    /// All partitions are there, and only who is known to be alive owns any.
    pub(super) fn leases(&self, list: &mut Vec<Pending>) {
        let Some(rows) = self.found.leases else {
            return;
        };
        let lease = format!("table {}.lease", self.wanted.outbox.schema());
        if !self.found.owners_live {
            let problem = format!("{lease}: owner does not refer to instance");
            list.push(self.migrate(problem, BOOKKEEPING));
        }
        if rows == 0 || rows % 256 != 0 {
            let problem = format!("{lease}: not 256 for each outbox");
            list.push(self.migrate(problem, BOOKKEEPING));
        }
    }
}
