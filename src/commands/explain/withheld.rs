//! What a relay says of a row that it holds back, in a sentence.

use std::time::Duration;

use super::super::status::text::span;
use crate::relay::rules::{HeldBack, IDS_TOLD, Unwritten, Withheld};

/// Goes on after "Row 4711 (message_id)".
pub(super) fn sentence(relay: &str, row: i64, told: &HeldBack) -> String {
    let HeldBack {
        what,
        for_seconds,
        why,
    } = told;
    let age = span(Duration::from_secs((*for_seconds).max(1)));
    let why = why.trim_end_matches('.');
    match what {
        Withheld::Unmarked { fate, .. } => {
            let what = match fate {
                Unwritten::Sent => "was sent by",
                Unwritten::Waits => "was refused and is to wait for another attempt, says",
                Unwritten::GivenUp => "is to go to quarantine, says",
            };
            format!("{what} {relay}, which cannot write that down (of some rows for {age}): {why}.")
        }
        Withheld::Destination {
            routing_key,
            tried_by,
            ..
        } => {
            let what = match routing_key {
                Some(_) => "its destination",
                None => "its exchange",
            };
            let tried = match tried_by {
                Some(id) if *id == row => {
                    "; it is the one that tries, and the others follow".to_owned()
                }
                Some(id) => format!("; row {id} tries it, and the others follow"),
                None => String::new(),
            };
            format!("is due, and {relay} has held back rows to {what} for {age}: {why}{tried}.")
        }
        Withheld::Everything { unmarked } if *unmarked > IDS_TOLD => format!(
            "is due, or was sent and is one of them: {relay} has been unable for {age} to write down what became \
             of {unmarked} rows: {why}."
        ),
        Withheld::Everything { unmarked } => format!(
            "is due, and {relay} has been unable for {age} to write down what became of {unmarked} rows: {why}."
        ),
        Withheld::Others { .. } => format!("is held back by {relay}: {why}."),
    }
}

/// What to do about it.
pub(super) fn remedy(told: &HeldBack) -> &'static str {
    match told.what {
        Withheld::Unmarked {
            fate: Unwritten::Sent,
            ..
        } => {
            "End what is in the way, and it is marked. Until then a restart of the relay sends it again."
        }
        Withheld::Unmarked { .. } => "End what is in the way, and it is written down.",
        Withheld::Everything { .. } => {
            "See outbox-relay status for what is in the way of those rows, and end it; this one goes by itself."
        }
        Withheld::Destination { .. } | Withheld::Others { .. } => {
            "Mend what that names; the row goes by itself."
        }
    }
}
