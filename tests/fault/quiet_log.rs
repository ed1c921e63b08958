//! Whatever is away, however long and however often: fewer than 20 lines a minute (P10, F10).

use std::time::Duration;

use tokio::time::sleep;

use crate::soak;
use crate::support::proxy::{Fault, Proxy};
use crate::support::relay::Relay;
use crate::support::scene::{Draft, QUEUE, Scene, port, through};

const LINES: usize = 20;

/// What a relay has with its two servers, each behind a proxy, and rows to send.
struct Stage {
    name: &'static str,
    scene: Scene,
    database: Proxy,
    broker: Proxy,
    relay: Relay,
}

impl Stage {
    async fn set(name: &'static str) -> Self {
        let mut scene = Scene::new().await;
        let database = Proxy::start(port(&scene.database)).await;
        let broker = Proxy::start(port(&scene.vhost.url)).await;
        let urls = [
            through(&scene.database, &database),
            through(&scene.vhost.url, &broker),
        ];
        scene.set("DATABASE__URL", &urls[0]);
        scene.set("BROKER__URL", &urls[1]);
        let relay = scene.ready_relay().await;
        scene.write_many(200, 200).await;
        scene.drained().await;
        Self {
            name,
            scene,
            database,
            broker,
            relay,
        }
    }
}

/// Connections come and go every second.
async fn flap(proxy: &Proxy) {
    loop {
        // The fault itself: so long a connection lives.
        sleep(Duration::from_secs(1)).await;
        proxy.reset_all();
    }
}

/// Rows of all kinds that nobody takes, faster than anybody could read of them.
async fn bad_rows(scene: &Scene) {
    loop {
        let refused = |n: usize| match n % 3 {
            0 => Draft::by("no-such-exchange", "x"),
            1 => Draft::to(&format!("no-such-queue-{n}")),
            _ => Draft::to(&"x".repeat(300)),
        };
        scene
            .write(&(0..300).map(refused).collect::<Vec<_>>())
            .await;
        // The load itself: 1,500 rows a second.
        sleep(Duration::from_millis(200)).await;
    }
}

/// The database refuses to write down what became of rows, of each by itself.
async fn no_marks(scene: &Scene) {
    let trigger = "CREATE FUNCTION outbox.no_mark() RETURNS trigger LANGUAGE plpgsql AS \
           $$ BEGIN RAISE EXCEPTION 'no marks'; END $$; \
         CREATE TRIGGER no_mark BEFORE UPDATE ON outbox.message \
           FOR EACH ROW EXECUTE FUNCTION outbox.no_mark()";
    scene.run(trigger).await;
    scene.write_many(300, 300).await;
}

/// Somebody locks rows before they are due, and keeps them.
async fn locked_rows(scene: &Scene) {
    let later = format!(
        "INSERT INTO outbox.message (routing_key, payload, available_at) \
         SELECT '{QUEUE}', '1', clock_timestamp() + interval '2 s' FROM generate_series(1, 300)"
    );
    scene.run(&later).await;
    let locker = scene.second_client().await;
    let lock = "BEGIN; SELECT FROM outbox.message WHERE sent_at IS NULL FOR UPDATE";
    locker.batch_execute(lock).await.expect("locked");
    std::future::pending::<()>().await;
}

/// Breaks something for as long as lines are counted.
async fn broken(stage: &Stage) {
    match stage.name {
        "the broker refuses" => stage.broker.refuse(true),
        "both refuse" => {
            stage.broker.refuse(true);
            stage.database.refuse(true);
        }
        "the database is silent" => stage.database.set(Fault::Swallow),
        "the broker comes and goes" => flap(&stage.broker).await,
        "the database comes and goes" => flap(&stage.database).await,
        "rows are refused" => bad_rows(&stage.scene).await,
        "no row may be marked" => no_marks(&stage.scene).await,
        "rows are held locked" => locked_rows(&stage.scene).await,
        other => panic!("{other} is no fault"),
    }
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn no_fault_fills_the_log() {
    let mut stages = Vec::new();
    for name in [
        "the broker refuses",
        "both refuse",
        "the database is silent",
        "the broker comes and goes",
        "the database comes and goes",
        "rows are refused",
        "no row may be marked",
        "rows are held locked",
    ] {
        stages.push(Stage::set(name).await);
    }
    let minutes = soak(1, 10);
    let before: Vec<usize> = stages.iter().map(|s| s.relay.output().len()).collect();
    for stage in &stages {
        if stage.name.contains("refuse") {
            stage.broker.reset_all();
        }
    }
    // A span of time in which lines are counted, not a wait for something.
    let counting = sleep(Duration::from_secs(60 * minutes));
    let breaking = futures_util::future::join_all(stages.iter().map(broken));
    tokio::select! {
        () = counting => {}
        _ = breaking => {}
    }
    for (stage, before) in stages.iter().zip(before) {
        let output = stage.relay.output();
        let lines = &output[before..];
        let most = LINES * usize::try_from(minutes).expect("few");
        eprintln!("{}: {} lines in {minutes} min", stage.name, lines.len());
        assert!(lines.len() < most, "{}:\n{}", stage.name, lines.join("\n"));
        assert!(!lines.is_empty(), "{}: nothing was said", stage.name);
    }
    for mut stage in stages {
        stage.relay.kill();
    }
}
