//! The result: what the ledger says, how fast it was, and what it means.

use crate::Stage;
use crate::books::Books;
use crate::consumer::Consumer;
use crate::mischief::Mischief;
use crate::screen::{Screen, thousands};
use crate::shop::CUSTOMERS;
use crate::support::checker::Report;
use crate::support::postgres::connect;

/// Whether the promises held.
pub struct Verdict(bool);

impl Verdict {
    /// Nothing lost, no ghost, order kept.
    pub fn is_good(&self) -> bool {
        self.0
    }
}

/// Median and 99th percentile, in milliseconds.
struct Latency {
    p50: f64,
    p99: f64,
}

/// Judges and prints.
pub async fn judge(stage: &Stage, consumer: &Consumer, mischief: &Mischief) -> Verdict {
    let report = stage.ledger.report();
    let screen = &stage.screen;
    screen.heading("Result");
    show_promises(screen, &report);
    show_duplicates(screen, &report, consumer.repeated_by_broker(), mischief);
    let billed_once = show_bills(stage, &report).await;
    show_latency(stage, mischief).await;
    for broken in [&report.lost, &report.ghosts] {
        if !broken.is_empty() {
            println!("  for instance {:?}", &broken[..broken.len().min(3)]);
        }
    }
    for disorder in report.disordered.iter().take(3) {
        println!("  for instance {disorder:?}");
    }
    let good = report.is_clean() && billed_once;
    screen.heading(if good {
        "Every committed order arrived, no other did, and every customer's in order."
    } else {
        "A promise was broken: this is a bug in outbox-relay."
    });
    Verdict(good)
}

fn show_promises(screen: &Screen, report: &Report) {
    let count = |number: usize| thousands(number);
    screen.result("orders committed", &count(report.committed), None, "");
    screen.result("orders rolled back", &count(report.rolled_back), None, "");
    screen.result(
        "messages delivered",
        &count(report.delivered),
        None,
        "different ones, by a durable quorum queue",
    );
    let zero = |number: usize| Some(number == 0);
    let lost = report.lost.len();
    screen.result(
        "lost",
        &count(lost),
        zero(lost),
        "committed, but never arrived",
    );
    let ghosts = report.ghosts.len();
    screen.result(
        "ghosts",
        &count(ghosts),
        zero(ghosts),
        "arrived, but never committed",
    );
    let disorder = report.disordered.len();
    let note = format!("first deliveries, for each of {CUSTOMERS} customers");
    screen.result("order violations", &count(disorder), zero(disorder), &note);
}

fn show_duplicates(screen: &Screen, report: &Report, by_broker: usize, mischief: &Mischief) {
    let kills = mischief.relay_kills + mischief.broker_kills;
    let value = thousands(report.duplicates);
    if report.duplicates == 0 {
        let note = format!("the {kills} kills happened to hit nothing in flight");
        screen.result("duplicates", &value, None, &note);
        return;
    }
    screen.result(
        "duplicates",
        &value,
        None,
        "same message_id again, so that consumers can drop them:",
    );
    let by_relay = report.duplicates.saturating_sub(by_broker);
    let line = |number: usize, why: &str| {
        if number > 0 {
            screen.result("", "", None, &format!("{} {why}", thousands(number)));
        }
    };
    line(
        by_relay,
        "published again: killed before the row was marked",
    );
    line(
        by_broker,
        "delivered again by the broker: killed before it stored the ack",
    );
}

/// What the billing department made of it, with the inbox between queue and books.
async fn show_bills(stage: &Stage, report: &Report) -> bool {
    let (bills, twice) = Books::count(&stage.database).await;
    let once = twice == 0 && bills == report.delivered;
    let note = format!(
        "one for each message: the inbox suppressed {} duplicates",
        thousands(report.duplicates)
    );
    stage
        .screen
        .result("bills", &thousands(bills), Some(once), &note);
    once
}

/// From `created_at` to `sent_at`, both by the database's clock: it includes the rest of the
/// writer's transaction and the marking, so it is a little more than commit to confirm.
async fn show_latency(stage: &Stage, mischief: &Mischief) {
    let quiet = latency(stage, &mischief.outages).await;
    let whole = latency(stage, &[]).await;
    let value = |latency: &Option<Latency>| match latency {
        Some(latency) => format!("{} / {}", time(latency.p50), time(latency.p99)),
        None => "none".to_owned(),
    };
    println!();
    let note = "p50 / p99, INSERT to sent_at, database clock";
    let screen = &stage.screen;
    screen.latency("all is well", &value(&quiet), note);
    let outages = mischief.outages.len();
    let note = format!("the same with the {outages} outages in it");
    screen.latency("whole run", &value(&whole), &note);
}

fn time(milliseconds: f64) -> String {
    if milliseconds < 1_000.0 {
        format!("{milliseconds:.1} ms")
    } else {
        format!("{:.1} s", milliseconds / 1_000.0)
    }
}

async fn latency(stage: &Stage, outages: &[(f64, f64)]) -> Option<Latency> {
    let query = "
        SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY took),
               percentile_cont(0.99) WITHIN GROUP (ORDER BY took)
        FROM (SELECT extract(epoch FROM sent_at - created_at)::float8 * 1000 AS took,
                     extract(epoch FROM created_at)::float8 AS born
              FROM outbox.message WHERE sent_at IS NOT NULL) AS message
        WHERE NOT EXISTS (SELECT FROM unnest($1::float8[], $2::float8[]) AS outage (a, b)
                          WHERE born BETWEEN a - 0.25 AND b)";
    let (from, to): (Vec<f64>, Vec<f64>) = outages.iter().copied().unzip();
    let client = connect(&stage.database).await;
    let row = client
        .query_one(query, &[&from, &to])
        .await
        .expect("the outbox can be read");
    Some(Latency {
        p50: row.get::<_, Option<f64>>(0)?,
        p99: row.get::<_, Option<f64>>(1)?,
    })
}
