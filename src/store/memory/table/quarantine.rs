//! Rows behind a quarantined one, and an operator's decisions about that one.

use std::time::Duration;

use super::{StoredRow, Table};
use crate::message::{OutboxRow, RowId};
use crate::relay::rules::BEHIND_QUARANTINED;

impl Table {
    /// Since when an earlier row of its key has been in quarantine.
    pub(super) fn held(&self, row: &OutboxRow) -> Option<Duration> {
        let key = row.ordering_key.as_ref().filter(|_| self.successors_wait)?;
        let earlier = self.quarantined.range(..row.id.0);
        let of_key = |stored: &StoredRow| stored.row.ordering_key.as_ref() == Some(key);
        let mut held = earlier.filter(|(_, (stored, _))| of_key(stored));
        held.next().map(|_| Duration::ZERO)
    }

    /// An operator decides about a quarantined row: it is put back as it was, or gone for good.
    /// What waits behind it is let go.
    pub fn release(&mut self, id: RowId, replayed: bool) {
        let Some((mut stored, _)) = self.quarantined.remove(&id.0) else {
            return;
        };
        self.next_xid += 1;
        let (xid, now) = (self.next_xid, self.now);
        for row in self.rows.values_mut().filter(|row| {
            row.sent_at.is_none()
                && row.last_error.as_deref() == Some(BEHIND_QUARANTINED)
                && row.row.ordering_key == stored.row.ordering_key
                && row.row.id > id
        }) {
            row.xid = xid;
            row.retry_at = row.retry_at.map(|_| now);
        }
        if replayed {
            stored.xid = xid;
            (stored.retry_at, stored.last_error, stored.locked) = (None, None, false);
            stored.row.attempts = 0;
            self.rows.insert(id.0, stored);
        }
    }
}
