//! Queues that `outbox-relay bench` makes and removes. The relay itself declares nothing.

use lapin::options::{QueueDeclareOptions, QueueDeleteOptions, QueuePurgeOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::link::AmqpLink;
use crate::broker::BrokerError;

impl AmqpLink {
    /// Declares a durable queue: a quorum queue, or a classic one.
    ///
    /// # Errors
    /// [`BrokerError`], for instance if the user may not configure a queue of this name.
    pub async fn declare_scratch_queue(
        &self,
        queue: &str,
        quorum: bool,
    ) -> Result<(), BrokerError> {
        const STEP: &str = "queue.declare";
        let mut arguments = FieldTable::default();
        if quorum {
            let kind = AMQPValue::LongString("quorum".into());
            arguments.insert("x-queue-type".into(), kind);
        }
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let channel = self.new_channel().await?;
        let name = self.name(queue, STEP)?;
        let declared = channel.queue_declare(name, durable, arguments);
        let declared = self.answer(STEP, declared).await;
        declared.map_err(|refusal| self.refused(STEP, refusal))?;
        Ok(())
    }

    /// Empties a queue.
    ///
    /// # Errors
    /// [`BrokerError`], for instance if there is none of this name.
    pub async fn purge_scratch_queue(&self, queue: &str) -> Result<(), BrokerError> {
        const STEP: &str = "queue.purge";
        let channel = self.new_channel().await?;
        let purged = channel.queue_purge(self.name(queue, STEP)?, QueuePurgeOptions::default());
        let purged = self.answer(STEP, purged).await;
        purged.map_err(|refusal| self.refused(STEP, refusal))?;
        Ok(())
    }

    /// Removes a queue with all that is in it. One that is not there is no error.
    ///
    /// # Errors
    /// [`BrokerError`] if it is still there.
    pub async fn delete_scratch_queue(&self, queue: &str) -> Result<(), BrokerError> {
        const STEP: &str = "queue.delete";
        let channel = self.new_channel().await?;
        let deleted = channel.queue_delete(self.name(queue, STEP)?, QueueDeleteOptions::default());
        let deleted = self.answer(STEP, deleted).await;
        deleted.map_err(|refusal| self.refused(STEP, refusal))?;
        Ok(())
    }

    fn name(&self, queue: &str, step: &'static str) -> Result<ShortString, BrokerError> {
        ShortString::try_new(queue).map_err(|_| BrokerError::Failed {
            host: self.host().to_owned(),
            step,
            reason: "the queue's name is longer than 255 bytes".to_owned(),
        })
    }
}
