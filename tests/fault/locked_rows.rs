//! The application locks, changes or deletes rows that the relay is working on.

use std::time::Duration;

use tokio::time::Instant;

use crate::support::queues::Letter;
use crate::support::scene::{Draft, QUEUE, Scene};

/// F33.
#[tokio::test]
async fn a_row_that_the_application_locks_is_published_once_and_stops_nobody() {
    let scene = Scene::new().await;
    let rows = scene.write_many(300, 300).await;
    let locker = scene.second_client().await;
    let lock = format!(
        "BEGIN; SELECT FROM outbox.message WHERE id IN ({}, {}) FOR UPDATE",
        rows[0], rows[150]
    );
    locker.batch_execute(&lock).await.expect("locked");
    let relay = scene.ready_relay().await;
    let others = format!(
        "SELECT NOT EXISTS (SELECT FROM outbox.message WHERE sent_at IS NULL AND id NOT IN ({}, {}))",
        rows[0], rows[150]
    );
    scene.until(&others).await;
    // More rows are sent meanwhile, of the locked rows' keys too.
    scene.write_many(300, 300).await;
    scene.until(&others).await;
    scene.queues.reaches(QUEUE, 600).await;
    assert_eq!(scene.count("sent_at IS NULL").await, 2);
    locker.batch_execute("COMMIT").await.expect("unlocked");
    scene.drained().await;
    relay.stop().await;
    assert_eq!(scene.judge().await.duplicates, 0);
}

/// P6: more rows are locked than may be under way.
#[tokio::test]
async fn more_locked_rows_than_a_window_holds_stop_nobody() {
    let mut scene = Scene::new().await;
    scene.set("RELAY__MAX_IN_FLIGHT", "100");
    scene.set("RELAY__BATCH_SIZE", "100");
    scene.write_many(250, 250).await;
    let locker = scene.second_client().await;
    let lock = "BEGIN; SELECT FROM outbox.message FOR UPDATE";
    locker.batch_execute(lock).await.expect("locked");
    let relay = scene.ready_relay().await;
    scene.queues.reaches(QUEUE, 250).await;
    scene.write_many(50, 50).await;
    scene
        .until("SELECT count(*) = 50 FROM outbox.message WHERE sent_at IS NOT NULL")
        .await;
    locker.batch_execute("COMMIT").await.expect("unlocked");
    scene.drained().await;
    relay.stop().await;
    assert_eq!(scene.judge().await.duplicates, 0);
}

/// P6: the database refuses to mark more rows than may be under way. Each is tried again and again,
/// with an error in its log, so that few are tried at a time; once one is written all are.
#[tokio::test]
async fn rows_that_the_database_refuses_to_mark_stop_nobody_and_are_marked_once_it_does_not() {
    let mut scene = Scene::new().await;
    scene.set("RELAY__MAX_IN_FLIGHT", "100");
    scene.set("RELAY__BATCH_SIZE", "100");
    let refused = scene.write_many(250, 250).await;
    let veto = format!(
        "CREATE FUNCTION outbox.veto() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN RAISE EXCEPTION 'no'; END $$;
         CREATE TRIGGER veto BEFORE UPDATE ON outbox.message FOR EACH ROW
         WHEN (OLD.id <= {}) EXECUTE FUNCTION outbox.veto()",
        refused[249]
    );
    scene.run(&veto).await;
    let relay = scene.ready_relay().await;
    scene.queues.reaches(QUEUE, 250).await;
    scene.write_many(50, 50).await;
    scene
        .until("SELECT count(*) = 50 FROM outbox.message WHERE sent_at IS NOT NULL")
        .await;
    scene.run("DROP TRIGGER veto ON outbox.message").await;
    scene.drained().await;
    relay.stop().await;
    assert_eq!(scene.judge().await.duplicates, 0);
}

/// A trigger may answer what usually means a lost session, a missing right or table: that is about the
/// row, and its words, which may hold the payload, are nobody's to log.
#[tokio::test]
async fn whatever_a_trigger_answers_is_about_its_row_and_nobody_repeats_its_words() {
    const CODES: [&str; 8] = [
        "42501", "25006", "57P01", "08006", "42P01", "42703", "28000", "23514",
    ];
    let scene = Scene::new().await;
    scene
        .run(
            "CREATE FUNCTION outbox.veto() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'not %', NEW.payload USING ERRCODE = NEW.type; END $$;
             CREATE TRIGGER veto BEFORE UPDATE ON outbox.message FOR EACH ROW
             WHEN (OLD.type IS NOT NULL) EXECUTE FUNCTION outbox.veto()",
        )
        .await;
    for code in CODES {
        let row = format!(
            "INSERT INTO outbox.message (routing_key, type, payload)
             VALUES ('{QUEUE}', '{code}', '\"a secret\"')"
        );
        scene.run(&row).await;
    }
    let relay = scene.ready_relay().await;
    scene.write_many(20, 20).await;
    scene
        .until("SELECT count(*) = 20 FROM outbox.message WHERE sent_at IS NOT NULL")
        .await;
    let told = CODES.map(|code| format!("held_back::text LIKE '%{code}%'"));
    let told = format!(
        "SELECT EXISTS (SELECT FROM outbox.instance WHERE {})",
        told.join(" AND ")
    );
    scene.until(&told).await;
    let (_, ready) = relay.get("/readyz").await.expect("an answer");
    let known = scene
        .ask::<String>("SELECT string_agg(to_jsonb(i)::text, ' ') FROM outbox.instance AS i")
        .await;
    let output = relay.output().join("\n");
    for words in [ready, known, output] {
        assert!(!words.contains("secret"), "{words}");
    }
    scene.run("DROP TRIGGER veto ON outbox.message").await;
    scene.drained().await;
    relay.stop().await;
    let letters = scene.queues.take_all(QUEUE).await;
    assert_eq!(letters.len(), CODES.len() + 20);
}

/// The table is emptied while rows are confirmed and cannot be marked yet, and others get their ids.
/// A mark that went by the id alone would be theirs, and they would never be sent.
#[tokio::test]
async fn rows_that_are_given_the_ids_of_others_are_sent_as_well() {
    const ROWS: usize = 500;
    let scene = Scene::new().await;
    scene.write_many(ROWS, ROWS).await;
    let other = scene.second_client().await;
    // Reading goes on, marking is tried again and again.
    let lock = "BEGIN; SELECT FROM outbox.message FOR UPDATE";
    other.batch_execute(lock).await.expect("locked");
    let relay = scene.ready_relay().await;
    scene.queues.reaches(QUEUE, ROWS).await;
    let again = format!(
        "TRUNCATE outbox.message RESTART IDENTITY;
         INSERT INTO outbox.message (routing_key, payload)
         SELECT '{QUEUE}', '{{\"second\": true}}' FROM generate_series(1, {ROWS});
         COMMIT"
    );
    other.batch_execute(&again).await.expect("emptied");
    scene.drained().await;
    relay.stop().await;
    let letters = scene.queues.take_all(QUEUE).await;
    let second = |letter: &&Letter| letter.body == b"{\"second\": true}";
    assert_eq!(letters.iter().filter(second).count(), ROWS);
}

/// P6: the row that tries a destination is locked, so that it cannot be written down that it waits:
/// another one tries.
#[tokio::test]
async fn a_locked_row_that_tries_a_destination_holds_nobody_back() {
    let mut scene = Scene::new().await;
    scene.set("RETRY__INITIAL", "500ms");
    scene.set("RETRY__MAX_DELAY", "1s");
    scene.queues.exchange("later").await;
    let first = scene.write(&[Draft::by("later", "k")]).await;
    let locker = scene.second_client().await;
    let lock = "BEGIN; SELECT FROM outbox.message FOR UPDATE";
    locker.batch_execute(lock).await.expect("locked");
    let relay = scene.ready_relay().await;
    let told = "SELECT EXISTS (SELECT FROM outbox.instance WHERE held_back::text LIKE '%waits%')";
    scene.until(told).await;
    let behind = scene
        .write(&[Draft::by("later", "k"), Draft::by("later", "k").of("a key")])
        .await;
    scene.queues.bind(QUEUE, "later", "k").await;
    let sent = format!(
        "SELECT bool_and(sent_at IS NOT NULL) FROM outbox.message WHERE id <> {}",
        first[0]
    );
    scene.until(&sent).await;
    locker.batch_execute("COMMIT").await.expect("unlocked");
    scene.drained().await;
    relay.stop().await;
    assert_eq!(scene.collect(QUEUE).await.len(), 1 + behind.len());
}

/// F33: a row in flight is deleted, another one is changed; neither is sent twice.
#[tokio::test]
async fn rows_changed_or_deleted_in_flight_stop_nobody() {
    let scene = Scene::new().await;
    let rows = scene.write_many(200, 200).await;
    let changer = scene.second_client().await;
    let change = format!(
        "BEGIN; DELETE FROM outbox.message WHERE id = {};
         UPDATE outbox.message SET type = 'changed' WHERE id = {};
         UPDATE outbox.message SET sent_at = now() WHERE id = {}",
        rows[3], rows[4], rows[5]
    );
    changer.batch_execute(&change).await.expect("changed");
    let relay = scene.ready_relay().await;
    scene.queues.reaches(QUEUE, 200).await;
    changer.batch_execute("COMMIT").await.expect("committed");
    scene.drained().await;
    let more = scene
        .write(&[Draft::to(QUEUE).of("key-3"), Draft::to(QUEUE).of("key-4")])
        .await;
    scene.drained().await;
    assert_eq!(more.len(), 2);
    relay.stop().await;
    assert_eq!(scene.judge().await.duplicates, 0);
}

/// F33: the lock is held while the relay is told to stop, which it does within its grace.
#[tokio::test]
async fn a_locked_row_stops_no_shutdown() {
    let mut scene = Scene::new().await;
    scene.set("RELAY__SHUTDOWN_GRACE", "5s");
    let rows = scene.write_many(10, 10).await;
    let locker = scene.second_client().await;
    let lock = format!(
        "BEGIN; SELECT FROM outbox.message WHERE id = {} FOR UPDATE",
        rows[0]
    );
    locker.batch_execute(&lock).await.expect("locked");
    let relay = scene.ready_relay().await;
    scene.queues.reaches(QUEUE, 10).await;
    let told = Instant::now();
    relay.terminate();
    let status = relay.ended().await;
    assert!(
        told.elapsed() < Duration::from_secs(5),
        "{:?}",
        told.elapsed()
    );
    // It was confirmed and could not be marked: in doubt, and told.
    let output = relay.output().join("\n");
    assert_eq!(status.code(), Some(0), "{output}");
    assert!(
        output.contains("stopped before all was confirmed") && output.contains("rows=1"),
        "{output}"
    );
    locker.batch_execute("COMMIT").await.expect("unlocked");
    let relay = scene.ready_relay().await;
    scene.drained().await;
    relay.stop().await;
    assert!(scene.judge().await.duplicates <= 1);
}
