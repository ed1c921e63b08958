//! What can be said about a table as a whole.

use super::{StoredRow, Table};
use crate::store::Measures;
use crate::store::measures::Count;

impl Table {
    /// What can be said about the table as a whole.
    #[must_use]
    pub fn measure(&self) -> Measures {
        let count = |rows: &dyn Fn(&StoredRow) -> bool| {
            let rows = self.pending().filter(|row| rows(row)).count();
            Count::new(i64::try_from(rows).unwrap_or(i64::MAX), None)
        };
        let written = self.pending().filter(|row| !self.is_scheduled(row));
        let oldest = written.map(|row| row.row.created_at).min();
        Measures {
            pending: count(&|_| true),
            scheduled: count(&|row| self.is_scheduled(row)),
            waiting: count(&|row| row.retry_at.is_some()),
            oldest_due: oldest.and_then(|at| self.now.duration_since(at).ok()),
            ..Measures::default()
        }
    }
}
