//! The twin's removal of sent rows.

use super::Table;
use crate::message::RowId;
use crate::relay::rules::{SWEEP_ROWS, Stretch, Swept};

impl Table {
    /// Removes rows of the stretch that were sent long enough ago.
    pub fn sweep(&mut self, stretch: Stretch, left_out: &[i64]) -> Swept {
        let now = self.now();
        let in_it = |id: i64| id > stretch.after && id <= stretch.up_to && !left_out.contains(&id);
        let mut swept = Swept {
            top: self.rows().last().map_or(0, |row| row.row.id.0),
            ..Swept::default()
        };
        let mut old = Vec::new();
        let rows = self.rows().filter(|row| in_it(row.row.id.0));
        for row in rows.take(SWEEP_ROWS) {
            swept.looked += 1;
            swept.last = Some(row.row.id.0);
            let ago = row
                .sent_at
                .map(|at| now.duration_since(at).unwrap_or_default());
            match ago {
                Some(ago) if ago < stretch.retention => swept.young = true,
                Some(_) if !row.locked => old.push(row.row.id),
                Some(_) => swept.held += 1,
                None => {}
            }
        }
        swept.removed = old.len();
        old.into_iter().for_each(|id: RowId| self.delete(id));
        swept
    }
}
