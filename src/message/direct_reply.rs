//! RabbitMQ's direct reply-to, which an outbox cannot use, neither to ask nor to answer.
//!
//! `amq.rabbitmq.reply-to` is no queue but a word for "the consumer on this very channel", and
//! `amq.rabbitmq.reply-to.<address>` is the process of somebody's channel
//! (<https://www.rabbitmq.com/docs/direct-reply-to>). Seen with RabbitMQ 3.10.8
//! (`tests/contract/rabbitmq_facts.rs`): a message with the first as `reply_to` closes the
//! channel (406), because the relay consumes nothing. A message to the second is returned as
//! unroutable whether it arrived or not, and a damaged address ends the whole connection (541).

use super::field::{FieldTable, FieldValue};
use super::headers::FURTHER_KEYS;
use super::reason::{ReasonClass, Unfit, quoted};

/// The pseudo-queue.
const PSEUDO_QUEUE: &str = "amq.rabbitmq.reply-to";

const ADVICE: &str = "name a queue of its own for replies";

/// Is the name the pseudo-queue or an address behind it?
fn is_address(name: &str) -> bool {
    name.strip_prefix(PSEUDO_QUEUE)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Refuses to ask for direct replies. An address that another channel was given may be passed on.
pub(super) fn check_reply_to(reply_to: &str) -> Result<(), Unfit> {
    if reply_to != PSEUDO_QUEUE {
        return Ok(());
    }
    let reason = format!(
        "property reply_to is {PSEUDO_QUEUE}: direct replies go to a consumer on the channel that \
         asks, and the relay consumes nothing; {ADVICE}"
    );
    Err(Unfit::new(ReasonClass::InvalidProperties, reason))
}

/// Refuses to publish to such an address. Only the default exchange knows them.
pub(super) fn check_destination(
    exchange: &str,
    routing_key: &str,
    headers: &FieldTable,
) -> Result<(), Unfit> {
    if !exchange.is_empty() {
        return Ok(());
    }
    if is_address(routing_key) {
        let shown = quoted(routing_key);
        let reason = format!(
            "routing_key {shown} is a direct reply: its receiver may be gone, and the broker does \
             not tell; {ADVICE}"
        );
        return Err(Unfit::new(ReasonClass::InvalidRoutingKey, reason));
    }
    for name in FURTHER_KEYS {
        if let Some(FieldValue::List(keys)) = headers.get(name)
            && keys.iter().any(is_address_too)
        {
            let reason = format!("header {name} names a direct reply; {ADVICE}");
            return Err(Unfit::new(ReasonClass::InvalidHeaders, reason));
        }
    }
    Ok(())
}

fn is_address_too(key: &FieldValue) -> bool {
    matches!(key, FieldValue::Text(key) if is_address(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_the_pseudo_queue_and_what_stands_behind_its_dot() {
        for (name, address) in [
            ("amq.rabbitmq.reply-to", true),
            ("amq.rabbitmq.reply-to.", true),
            ("amq.rabbitmq.reply-to.g1h.x", true),
            ("amq.rabbitmq.reply-tomorrow", false),
            ("reply-to", false),
            ("", false),
        ] {
            assert_eq!(is_address(name), address, "{name}");
        }
    }
}
