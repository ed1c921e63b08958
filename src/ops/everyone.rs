//! Tells several observers what the engine tells.

use std::sync::Arc;
use std::time::Duration;

use crate::message::ReasonClass;
use crate::relay::rules::Standing;
use crate::relay::{Landing, Observer, Server};
use crate::store::Measures;

/// Each is told everything.
pub struct Everyone(pub Vec<Arc<dyn Observer>>);

impl Observer for Everyone {
    fn read(&self, rows: usize, took: Duration) {
        self.0.iter().for_each(|one| one.read(rows, took));
    }

    fn landed(&self, landings: &[Landing<'_>]) {
        self.0.iter().for_each(|one| one.landed(landings));
    }

    fn settled(&self, took: Duration) {
        self.0.iter().for_each(|one| one.settled(took));
    }

    fn removed(&self, rows: usize) {
        self.0.iter().for_each(|one| one.removed(rows));
    }

    fn kept(&self) {
        self.0.iter().for_each(|one| one.kept());
    }

    fn retried(&self, reason: ReasonClass) {
        self.0.iter().for_each(|one| one.retried(reason));
    }

    fn standing(&self, standing: &Standing) {
        self.0.iter().for_each(|one| one.standing(standing));
    }

    fn connected(&self, server: Server, again: bool) {
        self.0.iter().for_each(|one| one.connected(server, again));
    }

    fn leases_lost(&self, partitions: usize) {
        self.0.iter().for_each(|one| one.leases_lost(partitions));
    }

    fn measured(&self, measures: Measures) {
        for one in &self.0 {
            one.measured(measures.clone());
        }
    }

    fn is_watched(&self) -> bool {
        self.0.iter().any(|one| one.is_watched())
    }
}
