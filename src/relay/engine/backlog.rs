//! What is left to send, from how the rows in memory stand. Whether that is well is
//! `runtime::readiness`'s to say.

use crate::relay::rules::Standing;
use crate::runtime::Backlog;

/// What is left to send. A destination that refuses is no fault of the relay's, and is not said to
/// be idleness either. Without the broker what the last read found is soon no longer so, and only
/// what is in memory is known.
pub(super) fn backlog(standing: Standing) -> Backlog {
    if !standing.linked && standing.open == 0 && !standing.walking {
        Backlog::Unread
    } else if standing.clogged || standing.open > 0 && standing.open == standing.settling {
        Backlog::Unmarked
    } else if !standing.nothing_due {
        Backlog::Due
    } else if standing.closed_gates > 0 || standing.blocked_keys > 0 {
        Backlog::HeldBack
    } else {
        Backlog::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Standing = Standing {
        in_flight: 0,
        open: 0,
        settling: 0,
        clogged: false,
        buffered_bytes: 0,
        closed_gates: 0,
        blocked_keys: 0,
        nothing_due: true,
        walking: false,
        linked: true,
    };

    #[test]
    fn what_is_left_is_told_apart() {
        assert_eq!(backlog(IDLE), Backlog::Nothing);
        let behind = Standing {
            blocked_keys: 1,
            ..IDLE
        };
        assert_eq!(backlog(behind), Backlog::HeldBack);
        let closed = Standing {
            closed_gates: 1,
            ..IDLE
        };
        assert_eq!(backlog(closed), Backlog::HeldBack);
        let mut due = Standing {
            open: 2,
            settling: 1,
            nothing_due: false,
            ..closed
        };
        assert_eq!(backlog(due), Backlog::Due);
        due.settling = 2;
        assert_eq!(backlog(due), Backlog::Unmarked);
        due.open = 0;
        due.settling = 0;
        assert_eq!(backlog(due), Backlog::Due, "a pass is not over");
    }

    #[test]
    fn without_the_broker_what_a_read_said_is_forgotten_and_what_is_in_memory_is_not() {
        let mut found = Standing {
            open: 2,
            settling: 2,
            nothing_due: false,
            linked: false,
            ..IDLE
        };
        assert_eq!(backlog(found), Backlog::Unmarked);
        found.settling = 1;
        assert_eq!(backlog(found), Backlog::Due);
        found.open = 0;
        found.settling = 0;
        assert_eq!(backlog(found), Backlog::Unread, "all of it was marked");
        found.walking = true;
        assert_eq!(backlog(found), Backlog::Due, "there was more");
    }
}
