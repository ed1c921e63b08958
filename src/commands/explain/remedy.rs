//! What to do about a row that is not sent, in a sentence or two.

use super::super::calendar::time_of;
use super::super::plain::shell_word;
use super::verdict::{NO_RELAY, Verdict};
use super::withheld;

impl Verdict {
    /// What to do about it, if there is something to do.
    pub(super) fn remedy(&self, id: i64) -> Option<String> {
        match self {
            // This row and no other: the first one behind its predecessor's id.
            Self::Sent(at) => Some(format!(
                "To send it again: outbox-relay resend --since {} --after={} --limit 1 --reason WHY",
                time_of(*at),
                id.saturating_sub(1)
            )),
            Self::Behind { id, why, .. } => why.remedy(*id),
            Self::Paused(held) => Some(match held.exchange.as_deref() {
                None => "To go on: outbox-relay resume --reason WHY".to_owned(),
                Some(exchange) => {
                    let exchange = shell_word(exchange);
                    format!("To go on: outbox-relay resume --exchange {exchange} --reason WHY")
                }
            }),
            Self::BehindQuarantined(entry) => Some(format!(
                "Decide about that one: outbox-relay quarantine replay --id {0}, or discard --id {0}.",
                entry.id
            )),
            Self::NeverRead => Some(format!(
                "Insert it again without an id, and delete the row with the id {id}."
            )),
            Self::Quarantined(entry) => Some(format!(
                "After mending the cause: outbox-relay quarantine replay --id {} --reason WHY",
                entry.id
            )),
            Self::Scheduled(_)
            | Self::Destination { .. }
            | Self::Retry { .. }
            | Self::ReadOnly
            | Self::NoRelay { .. }
            | Self::RelayWaits(_)
            | Self::RelaySilent { .. }
            | Self::HeldBack { .. }
            | Self::Due { .. } => self.usual_remedy().map(str::to_owned),
        }
    }

    /// Of what is the same for every row.
    fn usual_remedy(&self) -> Option<&'static str> {
        match self {
            Self::Destination { .. } => {
                Some("Mend what the error names; when that row gets through, the others follow.")
            }
            Self::Retry {
                but: Some(NO_RELAY),
                ..
            } => Some("No relay runs now. Start one: outbox-relay run."),
            Self::Retry {
                but: None,
                failures,
                ..
            } if failures.error.is_none() => Some("It goes by itself then."),
            Self::Retry { but: None, .. } => {
                Some("Mend what the error names; the row goes by itself.")
            }
            Self::ReadOnly | Self::Retry { but: Some(_), .. } => Some(
                "Let it accept writes, or name the server that does; relays go on by themselves.",
            ),
            Self::NoRelay { last: None, .. } => Some("Start one: outbox-relay run."),
            Self::NoRelay { .. } => Some(
                "Start one: outbox-relay run. If that one still lives, see what it waits for: its log, /readyz.",
            ),
            Self::RelayWaits(_) => Some(
                "Mend what it waits for; it goes on by itself. See outbox-relay status, and check for what is \
                 set up wrongly.",
            ),
            Self::HeldBack { told, .. } => Some(withheld::remedy(told)),
            Self::Due { .. } => Some(
                "A row changed by hand goes within a minute. If it stays so, see outbox-relay status: the \
                 relay may be busy with a backlog.",
            ),
            Self::Scheduled(_)
            | Self::RelaySilent { .. }
            | Self::Sent(_)
            | Self::Behind { .. }
            | Self::BehindQuarantined(_)
            | Self::Paused(_)
            | Self::NeverRead
            | Self::Quarantined(_) => None,
        }
    }
}
