//! Exchanges, bindings and queues of the broker in memory, and what they do with a message.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::state::Fate;
use crate::broker::LossCause;
use crate::message::Publication;

#[derive(Default)]
pub(super) struct Topology {
    exchanges: BTreeMap<String, Vec<Binding>>,
    queues: BTreeMap<String, Queue>,
    refusing_writes: BTreeSet<String>,
}

struct Binding {
    routing_key: String,
    queue: String,
}

#[derive(Default)]
pub(super) struct Queue {
    pub(super) messages: Vec<Arc<Publication>>,
    pub(super) max_length: Option<usize>,
    pub(super) stalled: bool,
}

impl Topology {
    pub(super) fn declare_exchange(&mut self, exchange: &str) {
        self.exchanges.entry(exchange.to_owned()).or_default();
    }

    pub(super) fn delete_exchange(&mut self, exchange: &str) {
        self.exchanges.remove(exchange);
    }

    pub(super) fn has_exchange(&self, exchange: &str) -> bool {
        exchange.is_empty() || self.exchanges.contains_key(exchange)
    }

    pub(super) fn queue(&mut self, queue: &str) -> &mut Queue {
        self.queues.entry(queue.to_owned()).or_default()
    }

    pub(super) fn messages(&self, queue: &str) -> Vec<Arc<Publication>> {
        let queue = self.queues.get(queue);
        queue.map_or_else(Vec::new, |queue| queue.messages.clone())
    }

    pub(super) fn bind(&mut self, exchange: &str, routing_key: &str, queue: &str) {
        self.queue(queue);
        let bindings = self.exchanges.entry(exchange.to_owned()).or_default();
        bindings.push(Binding {
            routing_key: routing_key.to_owned(),
            queue: queue.to_owned(),
        });
    }

    pub(super) fn unbind(&mut self, exchange: &str, routing_key: &str, queue: &str) {
        if let Some(bindings) = self.exchanges.get_mut(exchange) {
            bindings.retain(|binding| binding.routing_key != routing_key || binding.queue != queue);
        }
    }

    pub(super) fn refuse_writes(&mut self, exchange: &str, refused: bool) {
        match refused {
            true => self.refusing_writes.insert(exchange.to_owned()),
            false => self.refusing_writes.remove(exchange),
        };
    }

    /// Routes a publication into queues. Refused, it costs the channel.
    pub(super) fn take(&mut self, publication: &Arc<Publication>) -> Result<Fate, LossCause> {
        let exchange = publication.exchange().as_str();
        if !self.has_exchange(exchange) {
            let text = format!("NOT_FOUND - no exchange '{exchange}' in vhost '/'");
            return Err(LossCause::Closed { code: 404, text });
        }
        if self.refusing_writes.contains(exchange) {
            let text = format!("ACCESS_REFUSED - access to exchange '{exchange}' refused");
            return Err(LossCause::Closed { code: 403, text });
        }
        let queues = self.route(exchange, publication.routing_key().as_str());
        let mut stalled = BTreeSet::new();
        let mut nacked = false;
        for name in &queues {
            let queue = self.queue(name);
            if queue
                .max_length
                .is_some_and(|max| queue.messages.len() >= max)
            {
                nacked = true;
                continue;
            }
            queue.messages.push(Arc::clone(publication));
            if queue.stalled {
                stalled.insert(name.clone());
            }
        }
        Ok(match () {
            () if queues.is_empty() && publication.is_mandatory() => Fate::Returned,
            () if nacked => Fate::Nacked,
            () if stalled.is_empty() => Fate::Confirmed,
            () => Fate::Stalled(stalled),
        })
    }

    fn route(&self, exchange: &str, routing_key: &str) -> BTreeSet<String> {
        if exchange.is_empty() {
            let queue = self.queues.get_key_value(routing_key);
            return queue.map(|(name, _)| name.clone()).into_iter().collect();
        }
        let bindings = self.exchanges.get(exchange).into_iter().flatten();
        bindings
            .filter(|b| b.routing_key == "#" || b.routing_key == routing_key)
            .map(|b| b.queue.clone())
            .collect()
    }
}
