//! What a relay says of a row that it holds back, in a sentence.

use std::time::Duration;

use super::super::status::text::span;
use crate::relay::rules::{HeldBack, Withheld};

/// Goes on after "Row 4711 (message_id)".
pub(super) fn sentence(relay: &str, told: &HeldBack) -> String {
    let HeldBack {
        what,
        for_seconds,
        why,
    } = told;
    let (age, why) = (
        span(Duration::from_secs(*for_seconds)),
        why.trim_end_matches('.'),
    );
    match what {
        Withheld::Unmarked { .. } => format!(
            "was sent or given up by {relay}, which could not write that down for {age}: {why}."
        ),
        Withheld::Destination {
            routing_key,
            tried_by,
            ..
        } => {
            let what = match routing_key {
                Some(_) => "its destination",
                None => "its exchange",
            };
            let tried = tried_by.map_or_else(String::new, |id| {
                format!("; row {id} tries it, and the others follow")
            });
            format!("is due, and {relay} has held back rows to {what} for {age}: {why}{tried}.")
        }
    }
}

/// What to do about it.
pub(super) fn remedy(told: &HeldBack) -> &'static str {
    match told.what {
        Withheld::Unmarked { .. } => {
            "End what is in the way, and it is marked. Until then a restart of the relay sends it again."
        }
        Withheld::Destination { .. } => "Mend what that names; the row goes by itself.",
    }
}
