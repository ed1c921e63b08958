//! What `check --queue` makes of the queues that consumers read.

use super::finding::Finding;
use crate::broker::{AmqpLink, Returned};

const CHECK: &str = "queue";

/// Looks at each of them.
pub(super) async fn look(link: &AmqpLink, queues: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for queue in queues {
        findings.push(match link.returned_messages(queue).await {
            Ok(returned) => judged(queue, &returned),
            Err(error) => Finding::failed(CHECK, error.to_string(), "see the broker's log"),
        });
    }
    findings
}

const REMEDY: &str = "give it one, and a queue behind it (outbox-relay topology --print shows how); \
     one that a policy sets cannot be seen from here";

fn judged(queue: &str, returned: &Returned) -> Finding {
    let queue = format!("{queue:?}");
    match returned {
        Returned::DeadLettered => Finding::ok(
            CHECK,
            format!("{queue} hands what comes back too often to a dead-letter exchange"),
        ),
        Returned::Delivered => Finding::ok(
            CHECK,
            format!("{queue} is no quorum queue: it drops nothing that comes back"),
        ),
        Returned::Dropped => Finding::warning(
            CHECK,
            format!(
                "{queue} is a quorum queue without a dead-letter exchange: a message that came back \
                 too often (x-delivery-limit; 20 times by default from RabbitMQ 4 on) is dropped"
            ),
            REMEDY,
        ),
        Returned::DroppedIfQuorum => Finding::warning(
            CHECK,
            format!(
                "{queue} has no dead-letter exchange: if it is a quorum queue (its other arguments \
                 hide its type), a message that came back too often is dropped"
            ),
            REMEDY,
        ),
        Returned::NoQueue => Finding::warning(
            CHECK,
            format!("{queue} does not exist"),
            "declare it, or import what outbox-relay topology --print prints",
        ),
        Returned::MayNotAsk => Finding::ok(
            CHECK,
            format!("{queue} not looked at: this user may not declare it, as a relay need not"),
        ),
        Returned::Unknown(said) => Finding::warning(
            CHECK,
            format!("{queue} cannot be judged: the broker said: {said}"),
            "look at its arguments in the management page",
        ),
    }
}
