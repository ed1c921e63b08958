//! What goes wrong during the demo, when, and for how long.

use std::time::Duration;

use tokio::time::sleep;

use crate::Stage;
use crate::shop::{ORDERS, Shop};
use crate::support::postgres::connect;
use crate::support::relay::Relay;

/// As a service supervisor would wait before it starts the relay again.
const RESTART_DELAY: Duration = Duration::from_secs(1);

/// What was done, and when, by the database's clock in seconds.
#[derive(Default)]
pub struct Mischief {
    /// How often the relay was killed.
    pub relay_kills: usize,
    /// How often the broker was killed.
    pub broker_kills: usize,
    /// From each kill to the moment when nothing was waiting any more.
    pub outages: Vec<(f64, f64)>,
}

impl Mischief {
    /// Kills the relay, then the broker, then the relay again while it catches up.
    pub async fn do_all(stage: &mut Stage, shop: &Shop) -> Self {
        let mut done = Self::default();
        shop.reaches(ORDERS / 5).await;
        let from = now(stage).await;
        something_is_on_its_way(stage).await;
        done.kill_relay(stage, "in the middle of its work").await;
        caught_up(stage).await;
        done.outages.push((from, now(stage).await));

        shop.reaches(ORDERS * 2 / 5).await;
        let from = now(stage).await;
        done.kill_broker(stage).await;
        let before = stage.ledger.deliveries();
        while stage.ledger.deliveries() < before + 20 {
            // The consumer counts by itself, and wakes nobody while it is measured.
            sleep(Duration::from_millis(1)).await;
        }
        stage
            .screen
            .done("the relay has found it by itself: messages flow again");
        done.kill_relay(stage, "while it catches up").await;
        caught_up(stage).await;
        done.outages.push((from, now(stage).await));
        done
    }

    async fn kill_relay(&mut self, stage: &mut Stage, when: &str) {
        let pid = stage.relay.pid().as_raw_nonzero();
        stage.relay.kill();
        self.relay_kills += 1;
        stage
            .screen
            .broken(&format!("kill -9 of the relay (process {pid}) {when}"));
        // So long it is away: nothing is waited for.
        sleep(RESTART_DELAY).await;
        stage.relay = Relay::start(&stage.settings);
        let pid = stage.relay.pid().as_raw_nonzero();
        stage
            .screen
            .done(&format!("the relay is started again (process {pid})"));
    }

    async fn kill_broker(&mut self, stage: &mut Stage) {
        stage.rabbit.kill();
        self.broker_kills += 1;
        stage
            .screen
            .broken("kill -9 of the broker; the shop goes on selling");
        // So long it is away: nothing is waited for.
        sleep(RESTART_DELAY).await;
        stage.rabbit.start_again().await;
        stage.screen.done("the broker is started again");
    }
}

/// Waits for a moment in which orders are committed and not delivered yet.
async fn something_is_on_its_way(stage: &Stage) {
    let waiting = async {
        while stage.ledger.commits() < stage.ledger.arrived() + 3 {
            // The same: what is counted is not slowed down by a signal.
            sleep(Duration::from_millis(1)).await;
        }
    };
    // A relay that is always faster is killed at any moment.
    let _ = tokio::time::timeout(Duration::from_secs(2), waiting).await;
}

/// The database's clock, in seconds.
async fn now(stage: &Stage) -> f64 {
    let client = connect(&stage.database).await;
    let now = "SELECT extract(epoch FROM clock_timestamp())::float8";
    client
        .query_one(now, &[])
        .await
        .expect("PostgreSQL is up")
        .get(0)
}

/// Waits until nothing older than a second is waiting to be sent, at most half a minute: the
/// demo goes on and tells at its end what became of a relay that never catches up.
async fn caught_up(stage: &Stage) {
    let client = connect(&stage.database).await;
    let late = "SELECT count(*) FROM outbox.message
                WHERE sent_at IS NULL AND created_at < clock_timestamp() - interval '250 ms'";
    let watching = async {
        loop {
            let row = client.query_one(late, &[]).await.expect("PostgreSQL is up");
            if row.get::<_, i64>(0) == 0 {
                return;
            }
            // The database is asked: nobody signals a mark.
            sleep(Duration::from_millis(50)).await;
        }
    };
    if tokio::time::timeout(Duration::from_secs(30), watching)
        .await
        .is_err()
    {
        stage
            .screen
            .broken("the relay has not caught up within 30 s");
    }
}
