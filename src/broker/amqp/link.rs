//! One connection: its state, its channels, and what may be asked of the broker.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use lapin::options::{ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{ConnectionStatus, Event, ExchangeKind};
use tokio::sync::{Mutex, oneshot, watch};
use tokio::time::{Instant, timeout};

use super::channel::AmqpChannel;
use super::connect::Connected;
use super::fault::{self, cause};
use super::socket::ShutOnDrop;
use super::{until, whole_seconds};
use crate::broker::patience::Patience;
use crate::broker::{BrokerError, Link, LinkState, LossCause};
use crate::config::{BrokerEndpoint, Login};

/// How long a goodbye may take. Nothing depends on its success.
const CLOSE_DEADLINE: Duration = Duration::from_secs(2);

/// A connection to RabbitMQ. Dropping it ends the connection at once, also under its channels.
pub struct AmqpLink {
    connection: lapin::Connection,
    socket: Arc<ShutOnDrop>,
    state: watch::Receiver<LinkState>,
    /// The last error that ended a channel.
    faults: watch::Receiver<Option<LossCause>>,
    /// For questions whose answer may be the end of the channel.
    side: Mutex<Option<lapin::Channel>>,
    host: String,
    login: Option<String>,
    answer_timeout: Duration,
    confirm_timeout: Duration,
}

impl AmqpLink {
    pub(super) fn new(
        connected: Connected,
        endpoint: &BrokerEndpoint,
        confirm_timeout: Duration,
    ) -> Self {
        let Connected {
            connection,
            socket,
            thread,
        } = connected;
        let socket = Arc::new(socket);
        // First the subscription, then the question: an event in between is not lost.
        let events = connection.events_listener();
        let status = connection.status().clone();
        let first = match status.blocked() {
            true => LinkState::Blocked("the broker does not say why".to_owned()),
            false => LinkState::Open,
        };
        let (state, state_seen) = watch::channel(first);
        let (faults, faults_seen) = watch::channel(None);
        let watcher = Watcher {
            status,
            state,
            faults,
            socket: Arc::clone(&socket),
        };
        tokio::spawn(watcher.watch(events, thread));
        Self {
            connection,
            socket,
            state: state_seen,
            faults: faults_seen,
            side: Mutex::new(None),
            host: endpoint.to_string(),
            login: match &endpoint.login {
                Login::Plain { user, .. } => Some(user.clone()),
                Login::External => None,
            },
            answer_timeout: endpoint.connect_timeout,
            confirm_timeout,
        }
    }

    /// `host:port/vhost` that is connected to.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Waits for an answer. The deadline stands while the broker blocks: lapin does not even
    /// write the question then.
    pub(super) async fn answer<T>(
        &self,
        step: &'static str,
        question: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, Refusal> {
        let mut question = pin!(question);
        let mut patience = Patience::new(self.answer_timeout);
        let mut state = self.state.clone();
        let asked = Instant::now();
        loop {
            match &*state.borrow_and_update() {
                // Of a lost connection lapin says so by itself.
                LinkState::Open | LinkState::Lost(_) => patience.go_on(Instant::now()),
                LinkState::Blocked(_) => patience.stop(Instant::now()),
            }
            tokio::select! {
                biased;
                answer = &mut question => return answer.map_err(Refusal::Lapin),
                Ok(()) = state.changed() => {}
                () = until(patience.deadline(asked)) => {
                    return Err(Refusal::Silence(self.timeout(step)));
                }
            }
        }
    }

    fn timeout(&self, step: &'static str) -> BrokerError {
        BrokerError::Timeout {
            host: self.host.clone(),
            step,
            seconds: whole_seconds(self.answer_timeout),
        }
    }

    pub(super) fn refused(&self, step: &'static str, refusal: Refusal) -> BrokerError {
        match refusal {
            Refusal::Lapin(error) => self.failed(step, &error),
            Refusal::Silence(error) => error,
        }
    }

    fn failed(&self, step: &'static str, error: &lapin::Error) -> BrokerError {
        BrokerError::Failed {
            host: self.host.clone(),
            step,
            reason: error.to_string(),
        }
    }

    pub(super) async fn new_channel(&self) -> Result<lapin::Channel, BrokerError> {
        let step = "channel.open";
        let opened = self.answer(step, self.connection.create_channel()).await;
        opened.map_err(|refusal| self.refused(step, refusal))
    }
}

/// Why there is no answer to a question.
pub(super) enum Refusal {
    Lapin(lapin::Error),
    Silence(BrokerError),
}

impl Link for AmqpLink {
    type Channel = AmqpChannel;

    async fn open_channel(&self) -> Result<AmqpChannel, BrokerError> {
        let channel = self.new_channel().await?;
        let step = "confirm.select";
        let confirms = channel.confirm_select(ConfirmSelectOptions::default());
        let answer = self.answer(step, confirms).await;
        answer.map_err(|refusal| self.refused(step, refusal))?;
        let (state, faults) = (self.state.clone(), self.faults.clone());
        Ok(AmqpChannel::new(
            channel,
            state,
            faults,
            self.confirm_timeout,
        ))
    }

    /// A passive declaration needs no right at all; that the broker may not be asked (403) is
    /// no sign of absence, so publishing may be tried.
    async fn exchange_exists(&self, exchange: &str) -> Result<bool, BrokerError> {
        let Ok(name) = ShortString::try_new(exchange) else {
            return Ok(false);
        };
        if exchange.is_empty() {
            return Ok(true);
        }
        // RabbitMQ takes these off the name in a declaration (`rabbit_channel:strip_cr_lf`), so that
        // it would answer for another exchange; of this name there can be none.
        if exchange.contains(['\r', '\n']) {
            return Ok(false);
        }
        // Also holds a second question back until this one is answered.
        let mut side = self.side.lock().await;
        // Put back only after an answer: after doubt or a close, a new one is opened.
        let channel = match side.take() {
            Some(channel) if channel.status().connected() => channel,
            Some(_) | None => self.new_channel().await?,
        };
        let step = "exchange.declare (passive)";
        let passive = ExchangeDeclareOptions {
            passive: true,
            ..ExchangeDeclareOptions::default()
        };
        let arguments = FieldTable::default();
        let question = channel.exchange_declare(name, ExchangeKind::Direct, passive, arguments);
        match self.answer(step, question).await {
            Ok(()) => {
                *side = Some(channel);
                Ok(true)
            }
            Err(Refusal::Lapin(error)) if fault::is_closed_with(&error, 404) => Ok(false),
            Err(Refusal::Lapin(error)) if fault::is_closed_with(&error, 403) => Ok(true),
            Err(refusal) => Err(self.refused(step, refusal)),
        }
    }

    fn frame_max(&self) -> u32 {
        self.connection.configuration().frame_max()
    }

    fn login(&self) -> Option<&str> {
        self.login.as_deref()
    }

    fn state(&self) -> watch::Receiver<LinkState> {
        self.state.clone()
    }

    async fn close(self) {
        // While the broker blocks, lapin writes nothing, so it cannot say goodbye either.
        if *self.state.borrow() == LinkState::Open {
            let goodbye = self.connection.close(200, ShortString::from("OK"));
            // The socket is shut next, whatever came of it.
            let _ = timeout(CLOSE_DEADLINE, goodbye).await;
        }
    }
}

impl Drop for AmqpLink {
    fn drop(&mut self) {
        self.socket.shut();
    }
}

/// Tells what lapin's events mean for the link. Lives as long as lapin's thread.
struct Watcher {
    status: ConnectionStatus,
    state: watch::Sender<LinkState>,
    faults: watch::Sender<Option<LossCause>>,
    socket: Arc<ShutOnDrop>,
}

impl Watcher {
    async fn watch(
        self,
        mut events: impl Stream<Item = Event> + Unpin,
        mut thread: oneshot::Receiver<()>,
    ) {
        loop {
            let event = tokio::select! {
                // The reason, if there is one, was sent before the thread ended.
                biased;
                event = events.next() => event,
                _ = &mut thread => None,
            };
            let lost = match event {
                Some(event) => self.heed(event),
                None => self.lost("the connection was closed".to_owned()),
            };
            if lost {
                return;
            }
        }
    }

    /// Returns whether the connection is lost.
    fn heed(&self, event: Event) -> bool {
        match event {
            Event::ConnectionBlocked(reason) => self.set(LinkState::Blocked(reason)),
            Event::ConnectionUnblocked => self.set(LinkState::Open),
            Event::Error(error) if self.status.connected() => {
                self.faults.send_replace(Some(cause(&error)));
            }
            Event::Error(error) => return self.lost(error.to_string()),
            Event::Connected | Event::SendFlow(_) | _ => {}
        }
        false
    }

    fn set(&self, state: LinkState) {
        self.state.send_replace(state);
    }

    fn lost(&self, reason: String) -> bool {
        self.set(LinkState::Lost(reason));
        self.socket.shut();
        true
    }
}
