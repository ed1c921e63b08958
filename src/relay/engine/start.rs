//! Starts the tasks of a relay and connects them with its engine.

use std::sync::Arc;

use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::board::Board;
use super::event::Events;
use super::herald::Herald;
use super::observer::{Connections, Observer, Server};
use super::pace::Pace;
use super::run::Engine;
use super::settler::Inbox;
use super::tenure::Tenure;
use super::tray::Tray;
use super::upkeep::Upkeep;
use super::{Relay, apart, link, reader, settler};
use crate::broker::Broker;
use crate::relay::rules::{ChannelNo, Request};
use crate::store::Store;

/// Where decisions go.
pub(super) struct Outlets {
    pub(super) requests: mpsc::UnboundedSender<Request>,
    pub(super) settlements: Tray,
    pub(super) questions: mpsc::UnboundedSender<String>,
    /// Calls the reader to its session.
    pub(super) nudge: Arc<Notify>,
    /// Calls for a connection apart.
    pub(super) apart: Arc<Notify>,
    /// What is held back.
    pub(super) board: Board,
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
        let (settlements, orders, inbox) = Inbox::channels();
        let (reads, wanted) = watch::channel(true);
        let (board, posted) = Board::new();
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
            Herald::new(settings.identity.clone(), health.clone(), posted),
            Upkeep::new(settings.retention),
            Arc::clone(&observer),
            stop.clone(),
        ));
        let sharing = settings.limits.channels_to_open();
        let (questions, apart) = start_publishing(broker, sharing, &observer, tasks, events, stop);
        tasks.spawn(adjuster.forward(events.clone(), stop.clone()));
        tasks.close();
        let settlements = Tray::new(Pace::new(settings.limits.max_in_flight), settlements);
        let outlets = Outlets {
            requests,
            settlements,
            questions,
            nudge,
            apart,
            board,
        };
        let tenure = Tenure::new(&settings.identity, orders, reads);
        Engine::new(&settings, outlets, tenure, health, observer)
    }
}

/// Starts what talks to the broker. Returns where questions go, and what calls for a connection apart.
fn start_publishing<B: Broker>(
    broker: B,
    sharing: usize,
    observer: &Arc<dyn Observer>,
    tasks: &TaskTracker,
    events: &Events,
    stop: &CancellationToken,
) -> (mpsc::UnboundedSender<String>, Arc<Notify>) {
    let (questions, put) = mpsc::unbounded_channel();
    let (called, broker) = (Arc::new(Notify::new()), Arc::new(broker));
    tasks.spawn(apart::stand_by(
        Arc::clone(&broker),
        ChannelNo(sharing),
        Arc::clone(&called),
        events.clone(),
        stop.clone(),
    ));
    tasks.spawn(link::keep(
        broker,
        sharing,
        put,
        events.clone(),
        Connections::new(Server::Broker, observer),
        stop.clone(),
    ));
    (questions, called)
}
