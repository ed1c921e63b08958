//! Everything at once: writers, two or three relays, and a seeded schedule of faults of every kind.
//! At the end nothing is lost, invented or out of order, what was sent twice is accounted for, and
//! quarantine holds exactly what was made unfit.
//!
//! `OUTBOX_RELAY_CHAOS_SECONDS` says how long (a short run otherwise), `OUTBOX_RELAY_TEST_SEED`
//! repeats a schedule. `make chaos` runs ten minutes and prints a table.

mod ill;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::ValueEnum;
use tokio::time::{Instant, sleep, timeout};

use self::ill::Ill;
use crate::support::PATIENCE;
use crate::support::postgres::{Postgres, connect};
use crate::support::proxy::{Fault, Proxy, Way};
use crate::support::queues::Queues;
use crate::support::rabbit::Rabbit;
use crate::support::relay::{Relay, Settings};
use crate::support::scene::{Scene, through};
use crate::support::writers::{Load, Writers};

const QUORUM: &str = "quorum";
const EXCHANGE: &str = "events";
const KEY: &str = "k";
const IN_FLIGHT: usize = 100;
/// What one relay may repeat: a window not confirmed, and a window confirmed and not marked.
const REPEATED: usize = 2 * IN_FLIGHT;
const RELAYS: usize = 3;

const TERMINATE: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
     WHERE application_name LIKE 'outbox-relay/%'";
const LOCK: &str = "BEGIN; SELECT FROM outbox.message WHERE sent_at IS NULL FOR UPDATE";
const LOCK_TABLE: &str = "BEGIN; LOCK TABLE outbox.message";
const PIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()";
const INSERT_UNFIT: &str = "INSERT INTO outbox.message (routing_key, payload)
     SELECT repeat('r', 256), '{}' FROM generate_series(1, 3)";

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn new() -> Self {
        let seed = std::env::var("OUTBOX_RELAY_TEST_SEED").ok();
        let seed = seed.and_then(|seed| seed.parse().ok());
        // A short run is the same every time; a long one is another each time.
        let long = std::env::var_os("OUTBOX_RELAY_CHAOS_SECONDS").is_some();
        let another = || {
            if long {
                uuid::Uuid::new_v4().as_u64_pair().0
            } else {
                7
            }
        };
        let seed = seed.unwrap_or_else(another);
        println!("OUTBOX_RELAY_TEST_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let bound = u64::try_from(bound).expect("small");
        usize::try_from((z ^ (z >> 31)) % bound).expect("below a usize")
    }

    /// A moment that is long enough to come to a point, and short beside a lease.
    async fn a_moment(&mut self) {
        let millis = u64::try_from(50 + self.below(450)).expect("small");
        // How long a fault lasts is part of the schedule.
        sleep(Duration::from_millis(millis)).await;
    }

    /// A while that is long enough for something to happen.
    async fn a_while(&mut self) {
        let millis = u64::try_from(200 + self.below(1_800)).expect("small");
        // How long a fault lasts is part of the schedule.
        sleep(Duration::from_millis(millis)).await;
    }
}

/// The servers, the ways to them, and everybody on them.
struct Stage {
    postgres: Postgres,
    rabbit: Rabbit,
    to_database: Proxy,
    to_broker: Proxy,
    scene: Scene,
    settings: Settings,
    relays: Vec<Relay>,
    unfit: usize,
}

impl Stage {
    async fn set() -> Self {
        let (postgres, rabbit) = tokio::join!(Postgres::start(), Rabbit::start());
        let database = postgres.create_database().await;
        let scene = Scene::on(database.url.clone(), rabbit.create_vhost().await).await;
        let to_database = Proxy::start(postgres.port()).await;
        let to_broker = Proxy::start(rabbit.port()).await;
        let settings = Settings::new(
            &through(&scene.database, &to_database),
            &through(&scene.vhost.url, &to_broker),
        );
        let settings = settings
            .with("OUTBOX_RELAY__RELAY__MAX_IN_FLIGHT", &IN_FLIGHT.to_string())
            .with("OUTBOX_RELAY__RELAY__LEASE", "2s")
            .with("OUTBOX_RELAY__RETRY__INITIAL", "100ms")
            .with("OUTBOX_RELAY__RETRY__MAX_DELAY", "1s")
            .with("OUTBOX_RELAY__BROKER__CONFIRM_TIMEOUT", "5s");
        let mut stage = Self {
            postgres,
            rabbit,
            to_database,
            to_broker,
            scene,
            settings,
            relays: Vec::new(),
            unfit: 0,
        };
        stage.scene.queues.quorum(QUORUM).await;
        stage.declare().await;
        stage.rabbit.remember_queues().await;
        stage.fill_up();
        stage
    }

    async fn declare(&self) {
        self.scene.queues.exchange(EXCHANGE).await;
        self.scene.queues.bind(QUORUM, EXCHANGE, KEY).await;
    }

    fn fill_up(&mut self) {
        while self.relays.len() < RELAYS {
            self.relays.push(Relay::start(&self.settings));
        }
    }

    /// Our own connections broke as well.
    async fn connect_again(&mut self) {
        self.scene.client = connect(&self.scene.database).await;
        self.scene.queues = Queues::connect(&self.scene.vhost.url).await;
    }

    async fn suffer(&mut self, ill: Ill, dice: &mut Dice) {
        let no = dice.below(self.relays.len());
        match ill {
            Ill::RelayKilled => self.relays.remove(no).kill(),
            Ill::RelayStopped => self.stop(no).await,
            Ill::RelayStoodStill => self.stand_still(no).await,
            Ill::RelayKilledAtAPoint | Ill::RelayStoppedAtAPoint | Ill::RelayStoodStillAtAPoint => {
                self.strike_at_a_point(ill, no, dice).await;
            }
            Ill::BrokerKilled => self.kill_the_broker(dice).await,
            Ill::BrokerOutOfMemory => self.take_memory(dice).await,
            Ill::BrokerClosedConnections => self.close_connections().await,
            Ill::BrokerSlow => {
                let late = Fault::Delay(Duration::from_millis(300));
                for_a_while(&self.to_broker, late, dice).await;
            }
            Ill::BrokerSilent => for_a_while(&self.to_broker, Fault::Stall, dice).await,
            Ill::BrokerConnectionsReset => self.to_broker.reset_all(),
            Ill::QueueFull => self.fill_the_queue(dice).await,
            Ill::BindingRemoved => self.remove_the_binding(dice).await,
            Ill::ExchangeDeleted => self.delete_the_exchange(dice).await,
            Ill::DatabaseKilled => self.kill_the_database(dice).await,
            Ill::DatabaseReadOnly => self.forbid_writing(dice).await,
            Ill::DatabaseSilent => for_a_while(&self.to_database, Fault::Stall, dice).await,
            Ill::DatabaseConnectionsReset => self.to_database.reset_all(),
            Ill::SessionsTerminated => self.scene.run(TERMINATE).await,
            Ill::RowsLocked => self.hold(LOCK, dice).await,
            Ill::TableLocked => self.hold(LOCK_TABLE, dice).await,
            Ill::SnapshotPinned => self.hold(PIN, dice).await,
            Ill::RowsUnfit => {
                self.scene.run(INSERT_UNFIT).await;
                self.unfit += 3;
            }
        }
        self.fill_up();
    }

    /// Faults that come faster than anybody could recover would only make a backlog. Where the machine
    /// is too slow for the load, writers rest until it is gone.
    async fn catch_up(&self, writers: &Writers) {
        let backlog = |rows: u32| {
            format!(
                "SELECT count(*) < {rows} FROM \
                 (SELECT FROM outbox.message WHERE sent_at IS NULL LIMIT {rows}) AS pending"
            )
        };
        if !self.scene.ask::<bool>(&backlog(3_000)).await {
            let under_load = timeout(PATIENCE / 2, self.scene.until(&backlog(300))).await;
            if under_load.is_err() {
                writers.rest(true);
                self.scene.until(&backlog(300)).await;
                writers.rest(false);
            }
        }
    }

    /// A relay is struck at a known point of a row's way: what it waits for there is held up first.
    async fn strike_at_a_point(&mut self, ill: Ill, no: usize, dice: &mut Dice) {
        let (proxy, way) = match dice.below(4) {
            // Read, not published.
            0 => (&self.to_broker, Way::ToServer),
            // Published, no confirm heard.
            1 => (&self.to_broker, Way::ToClient),
            // Confirmed, not marked.
            2 => (&self.to_database, Way::ToServer),
            // Marked, not heard of.
            _ => (&self.to_database, Way::ToClient),
        };
        proxy.set_way(way, Fault::Stall);
        dice.a_moment().await;
        if ill == Ill::RelayStoodStillAtAPoint {
            self.relays[no].pause();
            proxy.set_way(way, Fault::None);
            self.stand_still(no).await;
            return;
        }
        let mut relay = self.relays.remove(no);
        if ill == Ill::RelayKilledAtAPoint {
            relay.kill();
            proxy.set_way(way, Fault::None);
        } else {
            relay.terminate();
            dice.a_moment().await;
            proxy.set_way(way, Fault::None);
            well_ended(relay).await;
        }
    }

    async fn stop(&mut self, no: usize) {
        let relay = self.relays.remove(no);
        relay.terminate();
        well_ended(relay).await;
    }

    async fn stand_still(&self, no: usize) {
        self.relays[no].pause();
        // Past its lease.
        sleep(Duration::from_secs(3)).await;
        self.relays[no].resume();
    }

    async fn kill_the_broker(&mut self, dice: &mut Dice) {
        self.rabbit.kill();
        dice.a_while().await;
        self.rabbit.start_again().await;
        self.connect_again().await;
        // A binding made just before the kill may not have been written down.
        self.declare().await;
    }

    async fn take_memory(&self, dice: &mut Dice) {
        self.rabbit.raise_memory_alarm().await;
        dice.a_while().await;
        self.rabbit.clear_memory_alarm().await;
    }

    async fn close_connections(&mut self) {
        self.rabbit.close_all_connections().await;
        self.connect_again().await;
    }

    async fn fill_the_queue(&self, dice: &mut Dice) {
        let vhost = &self.scene.vhost.name;
        self.rabbit.limit(vhost, QUORUM, 1).await;
        dice.a_while().await;
        self.rabbit.limit(vhost, QUORUM, 1_000_000_000).await;
    }

    async fn remove_the_binding(&self, dice: &mut Dice) {
        self.scene.queues.unbind(QUORUM, EXCHANGE, KEY).await;
        dice.a_while().await;
        self.declare().await;
    }

    async fn delete_the_exchange(&self, dice: &mut Dice) {
        self.scene.queues.delete_exchange(EXCHANGE).await;
        dice.a_while().await;
        self.declare().await;
    }

    async fn kill_the_database(&mut self, dice: &mut Dice) {
        self.postgres.kill();
        dice.a_while().await;
        self.postgres.start_again().await;
        self.connect_again().await;
    }

    /// An application keeps a transaction open.
    async fn hold(&self, sql: &str, dice: &mut Dice) {
        let client = connect(&self.scene.database).await;
        client.batch_execute(sql).await.expect(sql);
        dice.a_while().await;
        client.batch_execute("ROLLBACK").await.expect("its end");
    }

    async fn forbid_writing(&self, dice: &mut Dice) {
        self.set_read_only(true).await;
        dice.a_while().await;
        self.set_read_only(false).await;
    }

    /// Changes the server's default, as a fail-over does.
    async fn set_read_only(&self, read_only: bool) {
        let client = connect(&self.scene.database).await;
        for sql in [
            "SET default_transaction_read_only = off",
            &format!("ALTER SYSTEM SET default_transaction_read_only = {read_only}"),
            "SELECT pg_reload_conf()",
        ] {
            client.simple_query(sql).await.expect(sql);
        }
    }
}

/// Told to stop, it has ended.
async fn well_ended(relay: Relay) {
    let status = relay.ended().await;
    // One that had only just been started may not have been listening yet.
    assert!(status.code().is_none_or(|code| code == 0), "{status}");
}

async fn for_a_while(proxy: &Proxy, fault: Fault, dice: &mut Dice) {
    proxy.set(fault);
    dice.a_while().await;
    proxy.set(Fault::None);
}

fn duration() -> Duration {
    let seconds = std::env::var("OUTBOX_RELAY_CHAOS_SECONDS").ok();
    let seconds = seconds.and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(25))
}

fn writers(scene: &Scene) -> Writers {
    scene.writers(&Load {
        writers: 4,
        rows: 4,
        pause: Duration::from_millis(20),
        keys: 50,
        exchange: EXCHANGE.to_owned(),
        routing_key: KEY.to_owned(),
        ..Load::to(QUORUM)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn under_everything_at_once_the_promises_hold() {
    let (mut dice, mut stage) = (Dice::new(), Stage::set().await);
    let mut writers = writers(&stage.scene);
    writers.write(100).await;
    let mut suffered: BTreeMap<Ill, usize> = BTreeMap::new();
    let end = Instant::now() + duration();
    while Instant::now() < end {
        let ills = Ill::value_variants();
        let ill = ills[dice.below(ills.len())];
        stage.suffer(ill, &mut dice).await;
        *suffered.entry(ill).or_default() += 1;
        if dice.below(3) > 0 {
            writers.write(20).await;
        }
        stage.catch_up(&writers).await;
    }
    writers.stop().await;
    stage.scene.drained().await;
    stage.scene.collect(QUORUM).await;
    let report = stage.scene.ledger.report();
    let bound: usize = suffered
        .iter()
        .map(|(ill, times)| ill.doubts() * times)
        .sum();
    println!("| fault | times |\n|---|---|");
    for (ill, times) in &suffered {
        println!("| {ill:?} | {times} |");
    }
    println!("{report}; at most {} duplicates", bound * REPEATED);
    report.assert_clean();
    assert!(report.duplicates <= bound * REPEATED, "{report}");
    let quarantined = stage.scene.quarantined().await;
    assert_eq!(quarantined, i64::try_from(stage.unfit).expect("few"));
    for relay in stage.relays {
        relay.stop().await;
    }
}
