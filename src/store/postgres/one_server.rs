//! That a relay reads from the server on which it marks rows.
//!
//! With several hosts, or behind a name that moved, one session may survive while the other is
//! opened elsewhere: a former primary that came back reads well and knows nothing of what is
//! committed on the new one. Whoever notices gives its session up, and has the other give up its
//! own: both look for the primary anew.

use std::sync::{Arc, Mutex, PoisonError};

use crate::store::{Fault, StoreError};

/// Which of a relay's two sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Reading,
    Settling,
}

impl Side {
    /// As its session is called in `application_name`.
    pub(super) fn role(self) -> &'static str {
        match self {
            Self::Reading => "reader",
            Self::Settling => "settler",
        }
    }
}

/// Where the sessions of one relay are connected to. A server is known by when it was started:
/// two that tell the same microsecond are the same.
#[derive(Clone, Debug, Default)]
pub struct OneServer(Arc<Mutex<Sides>>);

#[derive(Debug, Default)]
struct Sides {
    reading: Option<String>,
    settling: Option<String>,
    /// The other one found this one elsewhere.
    doubted: Option<Side>,
}

impl OneServer {
    /// A session was opened to the server that was started then.
    pub(super) fn enter(&self, side: Side, started: &str) -> Seat {
        self.set(side, Some(started.to_owned()));
        Seat {
            servers: self.clone(),
            side,
        }
    }

    fn set(&self, side: Side, started: Option<String>) {
        let mut sides = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if sides.doubted == Some(side) {
            sides.doubted = None;
        }
        match side {
            Side::Reading => sides.reading = started,
            Side::Settling => sides.settling = started,
        }
    }
}

/// A session that is open; its end is noted.
#[derive(Debug)]
pub(super) struct Seat {
    servers: OneServer,
    side: Side,
}

impl Seat {
    /// # Errors
    /// The other session is connected to another server, or found so before it ended.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let mut sides = self
            .servers
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let apart = sides.reading.is_some() && sides.settling.is_some();
        let apart = apart && sides.reading != sides.settling;
        if apart && sides.doubted.is_none() {
            sides.doubted = Some(match self.side {
                Side::Reading => Side::Settling,
                Side::Settling => Side::Reading,
            });
        }
        if apart || sides.doubted == Some(self.side) {
            let reason = "the relay reads from one server and marks rows on another; \
                 connecting anew";
            return Err(StoreError::Unreachable(Fault::new(
                "use the database",
                reason,
            )));
        }
        Ok(())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.servers.set(self.side, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_servers_both_sessions_let_go() {
        let servers = OneServer::default();
        let reading = servers.enter(Side::Reading, "09:00");
        reading.check().unwrap();
        let settling = servers.enter(Side::Settling, "10:00");
        assert!(reading.check().is_err());
        drop(reading);
        assert!(settling.check().is_err(), "though the other is gone");
        drop(settling);
        let settling = servers.enter(Side::Settling, "09:00");
        let reading = servers.enter(Side::Reading, "09:00");
        reading.check().unwrap();
        settling.check().unwrap();
    }
}
