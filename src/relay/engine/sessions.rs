//! How the two database sessions are: what is told of the database is the worse of them.

use crate::runtime::condition::Database;
use crate::store::StoreError;

/// Which of the two.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Reading,
    Settling,
}

pub(super) struct Sessions {
    reader: Database,
    settler: Database,
}

impl Sessions {
    pub(super) fn connecting() -> Self {
        let connecting = || Database::Disconnected("connecting".to_owned());
        Self {
            reader: connecting(),
            settler: connecting(),
        }
    }

    /// One of them stands, or does not, and why.
    pub(super) fn changed(&mut self, side: Side, error: Option<&StoreError>) -> Database {
        let state = match error {
            None => Database::Connected,
            Some(error @ StoreError::ReadOnly(_)) => Database::ReadOnly(error.to_string()),
            Some(error) if error.lasts() => Database::Refused(error.to_string()),
            Some(error) => Database::Disconnected(error.to_string()),
        };
        match side {
            Side::Reading => self.reader = state,
            Side::Settling => self.settler = state,
        }
        let worse = if self.reader == Database::Connected {
            &self.settler
        } else {
            &self.reader
        };
        worse.clone()
    }
}
