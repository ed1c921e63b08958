//! Whose fault a channel error is, by the broker's reply code and words.

/// Whose fault a channel error is that one publication alone reproduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Row,
    Exchange,
    /// The exchange is there and may be written to, but not by this routing key.
    Topic,
    Destination,
}

/// AMQP reply code of an exchange that does not exist.
pub(super) const NOT_FOUND: u16 = 404;

/// How RabbitMQ's words begin when the user may write to the exchange, but not by this routing
/// key (<https://www.rabbitmq.com/docs/access-control#topic-authorisation>). No code tells it
/// apart from an exchange that he may not write to. RabbitMQ 3, and 4.
const FORBIDDEN_TOPIC: [&str; 2] = [
    "ACCESS_REFUSED - access to topic ",
    "ACCESS_REFUSED - write access to topic ",
];

fn is_forbidden_topic(text: &str) -> bool {
    FORBIDDEN_TOPIC.iter().any(|words| text.starts_with(words))
}

/// Reply codes: RabbitMQ manual, AMQP 0-9-1 reference, "Constants".
pub(super) fn fault_of(code: u16, text: &str) -> Fault {
    match code {
        403 if is_forbidden_topic(text) => Fault::Topic,
        // ACCESS_REFUSED, NOT_FOUND: permissions come back, exchanges get declared.
        403 | NOT_FOUND => Fault::Exchange,
        // CONTENT_TOO_LARGE, PRECONDITION_FAILED: it will be so next time.
        311 | 406 => Fault::Row,
        _ => Fault::Destination,
    }
}

/// What to do about it, where the broker's words leave that open.
pub(super) fn remedy_of(code: u16, text: &str) -> &'static str {
    match code {
        403 if is_forbidden_topic(text) => {
            "; let the relay's user write by this routing key (rabbitmqctl set_topic_permissions), or \
             correct the row"
        }
        // Internal exchanges take nothing from clients, whatever their permissions.
        403 if text.contains("internal exchange") => "; correct the row",
        403 => {
            "; let the relay's user write to it (rabbitmqctl set_permissions), or correct the row"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forbidden_topic_is_told_from_a_forbidden_exchange_in_the_words_of_each_version() {
        for (text, fault) in [
            (
                "ACCESS_REFUSED - access to topic 'a' in exchange 'x'",
                Fault::Topic,
            ),
            (
                "ACCESS_REFUSED - write access to topic 'a' in exchange 'x'",
                Fault::Topic,
            ),
            (
                "ACCESS_REFUSED - access to exchange 'x' in vhost '/'",
                Fault::Exchange,
            ),
            (
                "ACCESS_REFUSED - write access to exchange 'write access to topic '",
                Fault::Exchange,
            ),
        ] {
            assert_eq!(fault_of(403, text), fault, "{text}");
        }
    }
}
