//! The examples of the documentation, run as they stand.

#[path = "../../docs/examples/emails.rs"]
mod emails;
#[path = "../../docs/examples/payments.rs"]
mod payments;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapin::BasicProperties;
use outbox_relay::inbox::{Ended, Settings};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::entries::{ask, entry, number};
use crate::support::PATIENCE;
use crate::support::leash::{Leashed, Program};
use crate::support::scratch::Scratch;
use crate::world::World;

async fn publish(world: &World, id: &str, body: &str) {
    let properties = BasicProperties::default().with_message_id(id.into());
    world.publish_with(properties, body.as_bytes()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn payments_are_debited_once_each() {
    let world = World::new().await;
    let accounts = "CREATE TABLE account (id bigint PRIMARY KEY, balance bigint); \
                    INSERT INTO account VALUES (1, 100), (2, 100)";
    world
        .client
        .batch_execute(accounts)
        .await
        .expect("accounts");
    for _ in 0..3 {
        for number in 0..10 {
            let body = json!({"account": number % 2 + 1, "amount": 1}).to_string();
            publish(&world, &format!("p{number}"), &body).await;
        }
    }
    publish(&world, "nonsense", "<payment/>").await;
    publish(&world, "nobody", r#"{"account": 7, "amount": 1}"#).await;
    let stop = CancellationToken::new();
    let (url, amqp) = (world.database.url.clone(), world.amqp.clone());
    let settings = world.settings();
    let running = tokio::spawn(payments::consume(settings, url, amqp, stop.clone()));
    world.are("done", 10).await;
    world.are("dead", 2).await;
    stop.cancel();
    let ended = running.await.expect("no panic").expect("settings");
    assert_eq!(ended, Ended::Drained);
    let balances = "SELECT sum(balance)::int8 FROM account";
    assert_eq!(number(&world.client, balances).await, 190);
    assert_eq!(entry(&world.client, "nonsense").await["attempt"], 1);
    assert_eq!(entry(&world.client, "nobody").await["attempt"], 3);
}

/// A mail service that is flaky, and honours `Idempotency-Key`.
#[derive(Clone, Default)]
struct MailService(Arc<Mail>);

struct Mail {
    requests: Mutex<HashMap<String, u32>>,
    sent: Mutex<Vec<String>>,
    /// One permit for each request that is left without an answer.
    hanging: Semaphore,
}

impl Default for Mail {
    fn default() -> Self {
        Self {
            requests: Mutex::default(),
            sent: Mutex::default(),
            hanging: Semaphore::new(0),
        }
    }
}

impl MailService {
    async fn start(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let service = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move { service.answer(stream).await });
            }
        });
        address
    }

    async fn answer(&self, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        let key = read_request(&mut stream).await;
        let request = {
            let mut requests = self.0.requests.lock().expect("no panic");
            let count = requests.entry(key.clone()).or_default();
            *count += 1;
            *count
        };
        let status = match (key.as_str(), request) {
            ("limited", 1) => "429 Too Many Requests\r\nRetry-After: 2",
            ("flaky", 1) => "500 Internal Server Error",
            ("refused", _) => "422 Unprocessable Content",
            _ => "200 OK",
        };
        if status.starts_with("200") {
            let mut sent = self.0.sent.lock().expect("no panic");
            // Its own memory of keys: a repeated request is answered, and not acted upon.
            if !sent.contains(&key) {
                sent.push(key.clone());
            }
        }
        if key == "crash" && request == 1 {
            self.0.hanging.add_permits(1);
            std::future::pending::<()>().await;
        }
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        // Whoever asked may be gone.
        let _ = stream.write_all(answer.as_bytes()).await;
    }

    fn sent(&self) -> Vec<String> {
        let mut sent = self.0.sent.lock().expect("no panic").clone();
        sent.sort();
        sent
    }
}

/// Reads a whole request and returns its key.
async fn read_request(stream: &mut BufReader<TcpStream>) -> String {
    let (mut key, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.expect("a request");
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            if line.trim_end().is_empty() {
                break;
            }
            continue;
        };
        match name {
            "Idempotency-Key" => key = value.to_owned(),
            "Content-Length" => length = value.parse().expect("a length"),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.expect("the body");
    key
}

#[tokio::test(flavor = "multi_thread")]
async fn emails_go_out_once_each_through_a_flaky_service_that_asks_for_patience() {
    let world = World::new().await;
    let service = MailService::default();
    let address = service.start().await;
    for id in ["plain", "plain", "limited", "flaky", "refused"] {
        publish(&world, id, "hello").await;
    }
    let stop = CancellationToken::new();
    let (url, amqp) = (world.database.url.clone(), world.amqp.clone());
    let sending = emails::consume(world.settings(), url, amqp, address, stop.clone());
    let sending = tokio::spawn(sending);
    world.are("done", 3).await;
    world.are("dead", 1).await;
    stop.cancel();
    assert_eq!(
        sending.await.expect("no panic").expect("settings"),
        Ended::Drained
    );
    assert_eq!(service.sent(), ["flaky", "limited", "plain"]);
    let waited = "SELECT extract(epoch FROM done_at - first_failed_at)::float8 FROM inbox.message \
                  WHERE message_id = 'limited'";
    let waited: f64 = ask(&world.client, waited, &[]).await[0].get(0);
    assert!(waited >= 2.0, "Retry-After was 2 s, not {waited}");
    world.invariants(4).await;
}

const ROLE: &str = "OUTBOX_RELAY_TEST_MAIL_PROCESS";

/// This test binary once more, as a mail sender that can be killed. Alone it does nothing.
#[tokio::test]
async fn as_the_mail_process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let [url, amqp, queue, address]: [&str; 4] = {
        let parts: Vec<_> = role.split('|').collect();
        parts.try_into().expect("four parts")
    };
    let settings = settings(queue);
    let (url, amqp, address) = (url.to_owned(), amqp.to_owned(), address.to_owned());
    let ended = emails::consume(settings, url, amqp, address, CancellationToken::new()).await;
    panic!("{ended:?}");
}

fn settings(queue: &str) -> Settings {
    Settings {
        lease: Duration::from_secs(2),
        ..Settings::new("payments", queue)
    }
}

fn mail_process(world: &World, address: &str, folder: &Path) -> Leashed {
    let program = std::env::current_exe().expect("own path");
    let role = [&world.database.url, &world.amqp, &world.queue, address].join("|");
    let command: [&OsStr; 4] = [
        program.as_ref(),
        "--exact".as_ref(),
        "examples::as_the_mail_process".as_ref(),
        "--nocapture".as_ref(),
    ];
    Leashed::start(&Program {
        name: "mail sender",
        folder,
        unprivileged: false,
        command: &command,
        env: &[(ROLE, role)],
    })
}

/// F61: killed after the effect, before `complete`.
#[tokio::test(flavor = "multi_thread")]
async fn a_sender_killed_after_its_request_is_taken_over_after_its_lease_and_one_mail_goes_out() {
    let world = World::new().await;
    let service = MailService::default();
    let address = service.start().await;
    publish(&world, "crash", "hello").await;
    let folder = Scratch::new("mail");
    let mut first = mail_process(&world, &address, folder.path());
    let hanging = timeout(PATIENCE, service.0.hanging.acquire()).await;
    hanging.expect("in time").expect("open").forget();
    first.kill();
    let lease = "SELECT extract(epoch FROM lease_until)::float8 FROM inbox.message";
    let lease: f64 = ask(&world.client, lease, &[]).await[0].get(0);
    let second = mail_process(&world, &address, folder.path());
    world.are("done", 1).await;
    drop(second);
    let done = "SELECT extract(epoch FROM done_at)::float8 FROM inbox.message";
    let done: f64 = ask(&world.client, done, &[]).await[0].get(0);
    assert!(done >= lease, "not before the lease was over");
    let entry = entry(&world.client, "crash").await;
    assert_eq!(entry["result"], json!({"status": 200, "taken_over": true}));
    assert_eq!(entry["attempt"], 2);
    assert_eq!(service.sent(), ["crash"]);
    world.invariants(1).await;
}

/// Exit code of `install.sh` where a language is missing.
const MISSING: i32 = 3;

/// Installs a language's packages from its registry; `None`, which is said, where this machine
/// does not have the language.
pub async fn installed(language: &'static str) -> Option<PathBuf> {
    let folder = std::env::var_os("OUTBOX_RELAY_TEST_LANGUAGES").map_or_else(
        || Path::new(env!("CARGO_TARGET_TMPDIR")).join("languages"),
        Into::into,
    );
    let install = examples().join("install.sh");
    let into = folder.clone();
    let done =
        tokio::task::spawn_blocking(move || Command::new(install).arg(into).arg(language).output());
    let done = done.await.expect("no panic").expect("a shell");
    let said = String::from_utf8_lossy(&done.stderr);
    if done.status.code() == Some(MISSING) {
        println!("left out: {said}");
        return None;
    }
    assert!(done.status.success(), "{}: {said}", done.status);
    Some(folder)
}

pub fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/examples")
}

/// The examples in other languages use the SQL functions alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_in_python_keeps_the_same_contract() {
    if let Some(folder) = installed("python").await {
        one_language(&[
            folder.join("venv/bin/python"),
            examples().join("consumer.py"),
        ])
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_in_node_keeps_the_same_contract() {
    if let Some(folder) = installed("node").await {
        one_language(&["node".into(), folder.join("node/consumer.mjs")]).await;
    }
}

async fn one_language(command: &[PathBuf; 2]) {
    let world = World::new().await;
    let booking = "CREATE TABLE booking (message_id text, amount bigint)";
    world.client.batch_execute(booking).await.expect("a table");
    for _ in 0..2 {
        for number in 0..20 {
            publish(&world, &format!("m{number}"), r#"{"amount": 5}"#).await;
        }
    }
    publish(&world, "waits", r#"{"amount": 1, "wait": 2}"#).await;
    publish(&world, "nonsense", "<order/>").await;
    let none = BasicProperties::default();
    world.publish_with(none, b"no identity").await;
    with_program(&world, command, "5s", async || {
        world.are("done", 21).await;
        world.are("dead", 2).await;
    })
    .await;
    let booked = "SELECT sum(amount)::int8 FROM booking";
    assert_eq!(number(&world.client, booked).await, 101);
    let waited = "SELECT count(*) FROM inbox.message WHERE message_id = 'waits' AND attempt = 2 \
                  AND done_at >= first_failed_at + interval '2 s'";
    assert_eq!(number(&world.client, waited).await, 1);
    world.invariants(23).await;
}

/// Runs a consumer until that has been seen, and asks it to stop then.
pub async fn with_program(
    world: &World,
    command: &[PathBuf; 2],
    lease: &str,
    seen: impl AsyncFnOnce(),
) {
    let folder = Scratch::new("language");
    let running = language_process(world, command, lease, folder.path());
    seen().await;
    running.signal(rustix::process::Signal::TERM);
    let status = running.ended(PATIENCE).await;
    let said = running.output().lines();
    assert!(status.success() && said.is_empty(), "{status}: {said:?}");
}

fn language_process(world: &World, command: &[PathBuf; 2], lease: &str, folder: &Path) -> Leashed {
    let path = std::env::var("PATH").expect("PATH");
    let program: Vec<&OsStr> = command.iter().map(AsRef::as_ref).collect();
    Leashed::start(&Program {
        name: "consumer",
        folder,
        unprivileged: false,
        command: &program,
        env: &[
            ("PATH", path),
            ("DATABASE_URL", world.database.url.clone()),
            ("AMQP_URL", world.amqp.clone()),
            ("QUEUE", world.queue.clone()),
            ("CONSUMER", "payments".to_owned()),
            ("LEASE", lease.to_owned()),
        ],
    })
}

/// What was handed out, and waits for its turn within the program, keeps neither lease nor attempt.
async fn in_line(command: &[PathBuf; 2]) {
    let world = World::new().await;
    // Some wait in line while one is booked: for longer than a lease, if there are a few.
    let slow = "CREATE TABLE booking (message_id text, amount bigint);
                CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS
                -- The load itself: so long a booking takes.
                $$ BEGIN PERFORM pg_sleep(0.6); RETURN new; END $$;
                CREATE TRIGGER slow BEFORE INSERT ON booking
                FOR EACH ROW EXECUTE FUNCTION slowly()";
    world.client.batch_execute(slow).await.expect("a table");
    for number in 0..8 {
        let body = r#"{"amount": 1, "wait": 1}"#;
        publish(&world, &format!("m{number}"), body).await;
    }
    let folder = Scratch::new("language");
    let second = language_process(&world, command, "1s", folder.path());
    with_program(&world, command, "1s", async || world.are("done", 8).await).await;
    drop(second);
    let attempts = "SELECT count(*) FROM inbox.message WHERE attempt = 2";
    assert_eq!(number(&world.client, attempts).await, 8);
    world.invariants(8).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_waits_in_line_in_python_loses_no_attempt() {
    if let Some(folder) = installed("python").await {
        in_line(&[
            folder.join("venv/bin/python"),
            examples().join("consumer.py"),
        ])
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_waits_in_line_in_node_loses_no_attempt() {
    if let Some(folder) = installed("node").await {
        in_line(&["node".into(), folder.join("node/consumer.mjs")]).await;
    }
}
