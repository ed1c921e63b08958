//! What can be known of a queue's arguments over AMQP: what becomes of messages that come back.
//!
//! AMQP has no question for that. But RabbitMQ compares a declaration with the queue that is
//! there, and says what differs (406); one whose argument can never be valid creates nothing
//! where there is no queue. The words are a matter of the broker's release: what is not
//! understood is `Unknown`. Arguments that a policy sets cannot be seen this way.

use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::fault::cause;
use super::link::{AmqpLink, Refusal};
use crate::broker::{BrokerError, LossCause};

/// What becomes of a message that consumers return to its queue again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Returned {
    /// The queue has a dead-letter exchange.
    DeadLettered,
    /// A quorum queue without one: beyond its delivery limit, 20 by default from RabbitMQ 4 on, the
    /// message is dropped (<https://www.rabbitmq.com/docs/quorum-queues#poison-message-handling>).
    Dropped,
    /// No dead-letter exchange; of which type it is, its other arguments hide.
    DroppedIfQuorum,
    /// No quorum queue: it comes round for ever.
    Delivered,
    /// There is no such queue.
    NoQueue,
    /// The user may not declare it, so that the broker does not compare.
    MayNotAsk,
    /// The broker said something else.
    Unknown(String),
}

/// A broker's refusal of a declaration: AMQP reply code and words.
type Refused = (u16, String);

impl AmqpLink {
    /// Asks what becomes of returned messages. The broker logs each of the one or two questions
    /// as an error of its channel.
    ///
    /// # Errors
    /// [`BrokerError`] if there is no answer, or the connection ends.
    pub async fn returned_messages(&self, queue: &str) -> Result<Returned, BrokerError> {
        let Ok(queue) = ShortString::try_new(queue) else {
            return Ok(Returned::NoQueue);
        };
        let quorum = AMQPValue::LongString("quorum".into());
        let no_exchange = AMQPValue::LongInt(-1);
        let arguments = [
            ("x-queue-type", quorum),
            ("x-dead-letter-exchange", no_exchange),
        ];
        let refused = self.declare_in_vain(&queue, &arguments).await?;
        let Some(told) = by_dead_letter_exchange(&refused) else {
            let no_type = AMQPValue::LongString("none".into());
            let arguments = [("x-queue-type", no_type)];
            return Ok(by_type(&self.declare_in_vain(&queue, &arguments).await?));
        };
        Ok(told)
    }

    async fn declare_in_vain(
        &self,
        queue: &ShortString,
        arguments: &[(&str, AMQPValue)],
    ) -> Result<Refused, BrokerError> {
        let channel = self.new_channel().await?;
        let mut table = FieldTable::default();
        for (name, value) in arguments {
            table.insert((*name).into(), value.clone());
        }
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let step = "queue.declare (in vain)";
        let question = channel.queue_declare(queue.clone(), durable, table);
        match self.answer(step, question).await {
            Ok(_) => Ok((0, "the broker took an invalid declaration".to_owned())),
            Err(Refusal::Lapin(error)) => match cause(&error) {
                LossCause::Closed { code, text } => Ok((code, text)),
                LossCause::ConnectionClosed { .. }
                | LossCause::Connection { .. }
                | LossCause::Silent { .. } => Err(self.refused(step, Refusal::Lapin(error))),
            },
            Err(refusal) => Err(self.refused(step, refusal)),
        }
    }
}

/// `None`: there is none, so that it depends on the queue's type.
fn by_dead_letter_exchange((code, text): &Refused) -> Option<Returned> {
    let differs = |argument: &str| text.contains(&format!("inequivalent arg '{argument}'"));
    Some(match code {
        403 => Returned::MayNotAsk,
        406 if differs("x-dead-letter-exchange") => {
            if text.ends_with("current is none") {
                return None;
            }
            Returned::DeadLettered
        }
        // Quorum queues are durable, belong to nobody and stay.
        406 if ["durable", "auto_delete", "exclusive", "x-queue-type"]
            .into_iter()
            .any(differs) =>
        {
            Returned::Delivered
        }
        406 if text.contains("invalid type") => Returned::NoQueue,
        _ => Returned::Unknown(text.clone()),
    })
}

fn by_type((_, text): &Refused) -> Returned {
    let told = text.contains("inequivalent arg 'x-queue-type'");
    let is = |kind: &str| text.ends_with(kind);
    if told && is("current is 'quorum'") {
        Returned::Dropped
    } else if told && (is("current is none") || is("current is 'classic'")) {
        Returned::Delivered
    } else {
        Returned::DroppedIfQuorum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_not_understood_are_passed_on() {
        let odd = (406, "PRECONDITION_FAILED - something new".to_owned());
        let unknown = Returned::Unknown(odd.1.clone());
        assert_eq!(by_dead_letter_exchange(&odd), Some(unknown));
        assert_eq!(by_type(&odd), Returned::DroppedIfQuorum);
        let locked = (405, "RESOURCE_LOCKED".to_owned());
        let unknown = Returned::Unknown(locked.1.clone());
        assert_eq!(by_dead_letter_exchange(&locked), Some(unknown));
    }
}
