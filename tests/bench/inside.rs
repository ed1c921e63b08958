//! A relay inside this program, between any two servers, with the daemon's own settings; counts
//! what is confirmed.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_relay::broker::Broker;
use outbox_relay::commands::run::settings;
use outbox_relay::config::{BrokerTarget, Config};
use outbox_relay::message::ReasonClass;
use outbox_relay::relay::rules::Standing;
use outbox_relay::relay::{Ended, Landing, Mode, Observer, Relay, Server};
use outbox_relay::runtime::{Clock, Health, Moment, executor};
use outbox_relay::store::Measures;
use outbox_relay::store::postgres::PgStore;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Without any progress for so long, a measure has failed.
const PATIENCE: Duration = Duration::from_secs(90);

/// A thread on which tasks run as those of the daemon do. Its end is theirs.
pub struct Thread {
    handle: Handle,
    _stop: oneshot::Sender<Infallible>,
}

impl Thread {
    /// Starts it.
    pub fn start() -> Self {
        let (stop, stopped) = oneshot::channel();
        let runtime = executor().expect("a runtime");
        let handle = runtime.handle().clone();
        std::thread::spawn(move || runtime.block_on(stopped));
        Self {
            handle,
            _stop: stop,
        }
    }

    /// Runs a task on it.
    pub fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.handle.spawn(task)
    }
}

/// A relay under way; it drains when this is dropped.
pub struct Inside {
    counter: Arc<Counter>,
    health: Health,
    ended: JoinHandle<Ended>,
    drain: DropGuard,
    _thread: Thread,
}

impl Inside {
    /// Starts it, with all settings at their defaults.
    pub fn start<B: Broker>(store: PgStore, broker: B, target: &BrokerTarget) -> Self {
        let settings = settings(&Config::default(), target, store.token);
        let (counter, drain) = (Arc::new(Counter::new()), CancellationToken::new());
        let health = Health::starting(Clock.now());
        let relay = Relay::new(settings, store, broker, health.clone());
        let relay = relay.observed_by(Arc::clone(&counter) as _);
        let thread = Thread::start();
        Self {
            counter,
            health,
            ended: thread.spawn(relay.run(Mode::Forever, drain.clone())),
            drain: drain.drop_guard(),
            _thread: thread,
        }
    }

    /// Waits until both connections stand.
    ///
    /// # Panics
    /// If they do not.
    pub async fn ready(&self) {
        let mut condition = self.health.watch();
        let ready = async {
            while !self.health.readiness(Clock.now()).ready {
                condition.changed().await.expect("the relay lives");
            }
        };
        timeout(PATIENCE, ready).await.expect("in time");
    }

    /// How many rows were confirmed so far.
    pub fn confirmed(&self) -> u64 {
        self.counter.count.load(Ordering::Relaxed)
    }

    /// Waits until so many rows are confirmed.
    ///
    /// # Panics
    /// If no row is for a long time.
    pub async fn until_confirmed(&self, rows: u64) {
        let mut before = self.confirmed();
        while before < rows {
            // Nobody is woken for each row: that would be measured, too.
            self.counter.goal.store(rows, Ordering::Relaxed);
            let reached = self.counter.reached.notified();
            let over = self.confirmed() >= rows || timeout(PATIENCE, reached).await.is_ok();
            let confirmed = self.confirmed();
            assert!(over || confirmed > before, "no row for a long time");
            before = confirmed;
        }
    }

    /// Measures what comes from now on.
    pub fn begin_anew(&self) {
        *self.counter.seen() = Seen::default();
    }

    /// From the beginning of the first read that brought rows to the last confirm.
    pub fn took(&self) -> Duration {
        let seen = self.counter.seen();
        let (began, last) = (seen.began, seen.last);
        last.expect("a confirm").since(began.expect("a read"))
    }

    /// How long publications waited for their confirms, added up.
    pub fn under_way(&self) -> Duration {
        self.counter.seen().under_way
    }

    /// Drains it.
    ///
    /// # Panics
    /// If it does not end well.
    pub async fn stop(self) {
        drop(self.drain);
        let ended = timeout(PATIENCE, self.ended).await;
        let ended = ended.expect("in time").expect("no panic");
        assert_eq!(ended, Ended::Drained);
    }
}

#[derive(Default)]
struct Seen {
    began: Option<Moment>,
    last: Option<Moment>,
    under_way: Duration,
}

struct Counter {
    seen: Mutex<Seen>,
    count: AtomicU64,
    /// Somebody waits for so many.
    goal: AtomicU64,
    reached: Notify,
}

impl Counter {
    fn new() -> Self {
        Self {
            seen: Mutex::default(),
            count: AtomicU64::new(0),
            goal: AtomicU64::new(u64::MAX),
            reached: Notify::new(),
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Counter {
    fn read(&self, rows: usize, took: Duration) {
        if rows > 0 {
            let now = Clock.now();
            let began = now.checked_sub(took).unwrap_or(now);
            self.seen().began.get_or_insert(began);
        }
    }

    fn landed(&self, landings: &[Landing<'_>]) {
        let mut seen = self.seen();
        seen.under_way += landings
            .iter()
            .map(|landing| landing.took)
            .sum::<Duration>();
        let delivered = landings
            .iter()
            .filter(|landing| landing.since_due.is_some());
        let delivered = delivered.count() as u64;
        if delivered > 0 {
            seen.last = Some(Clock.now());
            let before = self.count.fetch_add(delivered, Ordering::Relaxed);
            if before + delivered >= self.goal.load(Ordering::Relaxed) {
                self.goal.store(u64::MAX, Ordering::Relaxed);
                self.reached.notify_one();
            }
        }
    }

    fn settled(&self, _took: Duration) {}
    fn removed(&self, _rows: usize) {}
    fn kept(&self) {}
    fn retried(&self, _reason: ReasonClass) {}
    fn standing(&self, _standing: &Standing) {}
    fn connected(&self, _server: Server, _again: bool) {}
    fn leases_lost(&self, _partitions: usize) {}
    fn measured(&self, _measures: Measures) {}
}
