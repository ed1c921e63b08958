//! The link task: keeps a connection to the broker and its channels open.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::channel::publish;
use super::event::{Event, Events};
use super::news::News;
use super::observer::Connections;
use super::retry::{Attempts, in_ms, pause};
use crate::broker::{Broker, BrokerError, Link, LinkState};
use crate::relay::rules::ChannelNo;
use crate::runtime::Clock;

/// How long channels may take to notice that their connection is gone.
const FAREWELL: Duration = Duration::from_secs(10);

/// Runs until it is stopped.
pub(super) async fn keep<B: Broker>(
    broker: Arc<B>,
    channels: usize,
    mut questions: mpsc::UnboundedReceiver<String>,
    events: Events,
    mut connections: Connections,
    stop: CancellationToken,
) {
    let (mut attempts, mut news) = (Attempts::new(), News::default());
    loop {
        let reason = match stop.run_until_cancelled(broker.connect()).await {
            None => return,
            Some(Err(error)) => error.to_string(),
            Some(Ok(link)) => {
                attempts.succeeded();
                connections.made();
                if news.is_success_news() {
                    let frame_max = link.frame_max();
                    info!(frame_max, channels, "connected to the broker");
                }
                while questions.try_recv().is_ok() {}
                let mut connection = Connection::new(link, channels, &events);
                let kept = connection.keep(&mut questions);
                let reason = match stop.run_until_cancelled(kept).await {
                    Some(Ok(reason)) => reason,
                    Some(Err(error)) => error.to_string(),
                    None => {
                        connection.end().await;
                        return;
                    }
                };
                // One row may cost it: that is no reason to keep the others waiting.
                if connection.end().await {
                    attempts.worked();
                }
                reason
            }
        };
        let delay = attempts.failed();
        if news.is_failure_news(&reason, Clock.now()) {
            warn!(
                reason,
                retry_in_ms = in_ms(delay),
                "no connection to the broker"
            );
        }
        events.report(Event::LinkLost(reason));
        if !pause(delay, &stop).await {
            return;
        }
    }
}

/// An established connection and the tasks of its channels.
struct Connection<L: Link> {
    link: Arc<L>,
    /// Each tells whether anything was judged on its channel.
    tasks: JoinSet<(ChannelNo, bool)>,
    /// Something was.
    works: bool,
    /// Questions on their way: an alarm may delay their answers for long.
    asked: JoinSet<(String, Result<bool, BrokerError>)>,
    /// Channels that were closed, until it is time to open them anew.
    closed: JoinSet<ChannelNo>,
    attempts: Vec<Attempts>,
    events: Events,
}

impl<L: Link> Connection<L> {
    fn new(link: L, channels: usize, events: &Events) -> Self {
        Self {
            link: Arc::new(link),
            tasks: JoinSet::new(),
            works: false,
            asked: JoinSet::new(),
            closed: JoinSet::new(),
            attempts: (0..channels).map(|_| Attempts::of_channel()).collect(),
            events: events.clone(),
        }
    }

    /// Opens the channels, opens those anew that the broker closes, and answers questions, until
    /// the connection is lost.
    async fn keep(
        &mut self,
        questions: &mut mpsc::UnboundedReceiver<String>,
    ) -> Result<String, BrokerError> {
        self.events.report(Event::LinkUp {
            frame_max: self.link.frame_max(),
        });
        for no in 0..self.attempts.len() {
            self.open(ChannelNo(no)).await?;
        }
        let (mut state, mut alarms) = (self.link.state(), News::default());
        alarms.is_success_news();
        loop {
            let now = state.borrow_and_update().clone();
            match now {
                LinkState::Open => {
                    if alarms.is_success_news() {
                        info!("the broker takes messages again");
                    }
                    self.events.report(Event::Blocked(None));
                }
                LinkState::Blocked(reason) => {
                    if alarms.is_failure_news(&reason, Clock.now()) {
                        warn!(reason, "the broker blocks publishing");
                    }
                    self.events.report(Event::Blocked(Some(reason)));
                }
                LinkState::Lost(reason) => return Ok(reason),
            }
            loop {
                tokio::select! {
                    changed = state.changed() => match changed {
                        Ok(()) => break,
                        Err(_) => return Ok("the connection ended".to_owned()),
                    },
                    Some(ended) = self.tasks.join_next() => self.put_off(ended)?,
                    Some(due) = self.closed.join_next() => self.reopen(due).await?,
                    Some(exchange) = questions.recv() => self.ask(exchange),
                    Some(answered) = self.asked.join_next() => self.pass_on(answered)?,
                }
            }
        }
    }

    async fn open(&mut self, no: ChannelNo) -> Result<(), BrokerError> {
        let channel = self.link.open_channel().await?;
        self.attempts[no.0].succeeded();
        let (batches, received) = mpsc::unbounded_channel();
        let events = self.events.clone();
        self.tasks.spawn(async move {
            let works = publish(no, channel, received, Duration::MAX, events).await;
            (no, works)
        });
        self.events.report(Event::ChannelOpen { no, batches });
        Ok(())
    }

    /// A channel ended while the connection lives: the broker closed it. One that is closed
    /// again and again is opened ever more slowly.
    fn put_off(&mut self, ended: Result<(ChannelNo, bool), JoinError>) -> Result<(), BrokerError> {
        let (no, works) = ended.map_err(|error| task_failed(&error))?;
        self.works |= works;
        let delay = self.attempts[no.0].failed();
        self.closed.spawn(async move {
            tokio::time::sleep(delay).await;
            no
        });
        Ok(())
    }

    async fn reopen(&mut self, due: Result<ChannelNo, JoinError>) -> Result<(), BrokerError> {
        let no = due.map_err(|error| task_failed(&error))?;
        if matches!(*self.link.state().borrow(), LinkState::Lost(_)) {
            return Ok(());
        }
        self.open(no).await
    }

    fn ask(&mut self, exchange: String) {
        let link = Arc::clone(&self.link);
        self.asked.spawn(async move {
            let exists = link.exchange_exists(&exchange).await;
            (exchange, exists)
        });
    }

    fn pass_on(&self, answered: Answered) -> Result<(), BrokerError> {
        let (exchange, exists) = answered.map_err(|error| task_failed(&error))?;
        let exists = exists?;
        self.events
            .report(Event::ExchangeAnswered { exchange, exists });
        Ok(())
    }

    /// Closes the connection and sees the channels' tasks end, so that each reports what is
    /// unknown before the loss of the connection is reported. Tells whether anything was judged on it.
    async fn end(self) -> bool {
        let Self {
            link,
            mut tasks,
            mut asked,
            mut works,
            ..
        } = self;
        asked.shutdown().await;
        if let Some(link) = Arc::into_inner(link) {
            link.close().await;
        }
        let all = async {
            while let Some(ended) = tasks.join_next().await {
                works |= ended.is_ok_and(|(_, works)| works);
            }
        };
        if tokio::time::timeout(FAREWELL, all).await.is_err() {
            warn!("a channel did not notice the end of its connection");
            tasks.abort_all();
        }
        works
    }
}

type Answered = Result<(String, Result<bool, BrokerError>), JoinError>;

fn task_failed(error: &JoinError) -> BrokerError {
    BrokerError::Failed {
        host: "relay".to_owned(),
        step: "task",
        reason: error.to_string(),
    }
}
