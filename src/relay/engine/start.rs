//! Starts the tasks of a relay and connects them with its engine.

use std::sync::Arc;

use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::event::Events;
use super::herald::Herald;
use super::observer::{Connections, Server};
use super::pace::Pace;
use super::run::Engine;
use super::settler::Inbox;
use super::tenure::Tenure;
use super::tray::Tray;
use super::upkeep::Upkeep;
use super::{Relay, link, reader, settler};
use crate::broker::Broker;
use crate::relay::rules::Request;
use crate::store::Store;

/// Where decisions go.
pub(super) struct Outlets {
    pub(super) requests: mpsc::UnboundedSender<Request>,
    pub(super) settlements: Tray,
    pub(super) questions: mpsc::UnboundedSender<String>,
    pub(super) nudge: Arc<Notify>,
}

impl Outlets {
    fn new(
        requests: mpsc::UnboundedSender<Request>,
        settlements: Tray,
        questions: mpsc::UnboundedSender<String>,
        nudge: Arc<Notify>,
    ) -> Self {
        Self {
            requests,
            settlements,
            questions,
            nudge,
        }
    }
}

impl<S: Store, B: Broker> Relay<S, B> {
    /// Starts the tasks.
    pub(super) fn start(
        self,
        tasks: &TaskTracker,
        events: &Events,
        stop: &CancellationToken,
    ) -> Engine {
        let Self {
            settings,
            store,
            broker,
            health,
            adjuster,
            observer,
        } = self;
        let (requests, asked) = mpsc::unbounded_channel();
        let (settlements, decided) = mpsc::unbounded_channel();
        let (questions, put) = mpsc::unbounded_channel();
        let (orders, ordered) = mpsc::unbounded_channel();
        let inbox = Inbox {
            settlements: decided,
            orders: ordered,
        };
        let (reads, wanted) = watch::channel(true);
        let (nudge, store) = (Arc::new(Notify::new()), Arc::new(store));
        tasks.spawn(reader::read(
            Arc::clone(&store),
            asked,
            Arc::clone(&nudge),
            events.clone(),
            Connections::new(Server::Database, &observer),
            wanted,
            stop.clone(),
        ));
        tasks.spawn(settler::settle(
            store,
            inbox,
            events.clone(),
            Herald::new(settings.identity.clone(), health.clone()),
            Upkeep::new(settings.retention),
            Arc::clone(&observer),
            stop.clone(),
        ));
        tasks.spawn(link::keep(
            broker,
            settings.limits.channels_to_open(),
            put,
            events.clone(),
            Connections::new(Server::Broker, &observer),
            stop.clone(),
        ));
        tasks.spawn(adjuster.forward(events.clone(), stop.clone()));
        tasks.close();
        let settlements = Tray::new(Pace::new(settings.limits.max_in_flight), settlements);
        let outlets = Outlets::new(requests, settlements, questions, nudge);
        let tenure = Tenure::new(&settings.identity, orders, reads);
        Engine::new(&settings, outlets, tenure, health, observer)
    }
}
