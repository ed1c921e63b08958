//! `make demo`: a small shop, a relay and a consumer on private servers, while the relay is
//! killed twice and the broker once. Ends with what was lost (nothing), seen twice and why.
//!
//! Everything is real: PostgreSQL, RabbitMQ, the release build of `outbox-relay`, SIGKILL.
//! Exits 1 if a message was lost, a ghost was seen or order broke.

mod books;
mod consumer;
mod mischief;
mod screen;
mod shop;
mod summary;
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use books::Books;
use consumer::Consumer;
use mischief::Mischief;
use screen::Screen;
use shop::Shop;
use support::checker::Ledger;
use support::postgres::Postgres;
use support::rabbit::Rabbit;
use support::relay::{self, Relay, Settings};

/// How long the last rows may take to be marked before the demo judges without them.
const CATCH_UP: Duration = Duration::from_secs(120);

/// The servers, the relay and everything known about the messages so far.
struct Stage {
    postgres: Postgres,
    rabbit: Rabbit,
    relay: Relay,
    settings: Settings,
    database: String,
    ledger: Arc<Ledger>,
    screen: Arc<Screen>,
}

#[tokio::main]
async fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("\n\n  The demo failed. {panic}");
    }));
    let screen = Arc::new(Screen::new());
    screen.title();
    let start = Instant::now();
    let mut stage = set(screen).await;
    let verdict = play(&mut stage).await;
    let Stage {
        postgres,
        rabbit,
        mut relay,
        screen,
        ..
    } = stage;
    if verdict.is_good() {
        relay.stop().await;
    } else {
        screen.relay_says(&relay.output());
        relay.kill();
    }
    drop((postgres, rabbit));
    screen.end(start.elapsed());
    if verdict.is_good() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Starts the servers, creates the tables and the queue, starts the relay.
async fn set(screen: Arc<Screen>) -> Stage {
    screen.event("starting a private PostgreSQL and a private RabbitMQ");
    let (postgres, rabbit) = tokio::join!(Postgres::start(), Rabbit::start());
    let database = postgres.create_database().await.url.clone();
    screen.done(&format!(
        "PostgreSQL on port {}, RabbitMQ on port {}",
        postgres.port(),
        rabbit.port()
    ));
    relay::migrate(&database).await;
    Shop::open(&database).await;
    screen.done("outbox-relay migrate: schema outbox; the shop: tables customer and orders");
    Books::create(&database).await;
    screen.done("outbox-relay migrate --inbox: schema inbox for the billing department");
    consumer::declare(&rabbit.url()).await;
    screen.done("exchange shop, durable quorum queue billing");
    let settings = Settings::new(&database, &rabbit.url());
    let relay = Relay::start(&settings);
    relay.ready().await;
    screen.done(&format!(
        "outbox-relay run: ready, process {}",
        relay.pid().as_raw_nonzero()
    ));
    Stage {
        postgres,
        rabbit,
        relay,
        settings,
        database,
        ledger: Arc::default(),
        screen,
    }
}

/// Takes the orders, breaks things meanwhile, waits for the last message, judges.
async fn play(stage: &mut Stage) -> summary::Verdict {
    let consumer = Consumer::start(
        stage.rabbit.url(),
        stage.database.clone(),
        Arc::clone(&stage.ledger),
    );
    let shop = Shop::start(&stage.database, &stage.ledger);
    let drawing = tokio::spawn(draw(
        Arc::clone(&stage.screen),
        Arc::clone(&shop),
        Arc::clone(&stage.ledger),
    ));
    let mischief = Mischief::do_all(stage, &shop).await;
    shop.closed().await;
    stage
        .screen
        .event("the shop has closed; waiting for the last messages");
    let settled = timeout(CATCH_UP, settled(stage)).await.is_ok();
    if settled {
        // What has not arrived when the queue is empty never will.
        consumer.drain().await;
    }
    drawing.abort();
    stage.screen.progress_ends();
    summary::judge(stage, &consumer, &mischief).await
}

/// Waits until every row of the outbox is marked.
async fn settled(stage: &Stage) {
    let client = support::postgres::connect(&stage.database).await;
    let pending = "SELECT count(*) FROM outbox.message WHERE sent_at IS NULL";
    loop {
        let row = client.query_one(pending, &[]).await;
        let pending: i64 = row.expect("the outbox can be read").get(0);
        if pending == 0 {
            return;
        }
        // The database is asked: nobody signals a mark.
        sleep(Duration::from_millis(50)).await;
    }
}

/// Shows how far everything is, a few times a second.
async fn draw(screen: Arc<Screen>, shop: Arc<Shop>, ledger: Arc<Ledger>) {
    loop {
        screen.progress(
            shop.placed(),
            shop::ORDERS,
            ledger.commits(),
            ledger.arrived(),
        );
        // The screen is drawn so often.
        sleep(Duration::from_millis(200)).await;
    }
}
