//! Standbys and replication slots that hold vacuum back, named and ended as the runbook says.
//!
//! No second server is needed: what a standby with `hot_standby_feedback` sends is one message of
//! the streaming replication protocol (PostgreSQL manual, "Streaming Replication Protocol").

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_postgres::Client;

use crate::outbox::until;
use crate::support::PATIENCE;
use crate::support::postgres::{Database, Postgres};
use crate::support::relay::{Settings, migrate, run};

/// A connection that pretends to be a standby.
struct Standby(TcpStream);

impl Standby {
    /// Streams from here on, by way of a slot or of none.
    async fn connect(port: u16, slot: Option<&str>, from: &str) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).await;
        let mut standby = Self(stream.expect("the server listens"));
        let version = 196_608_i32.to_be_bytes();
        let settings = b"user\0postgres\0replication\0true\0application_name\0replica\0\0";
        standby.send(None, &[&version[..], settings].concat()).await;
        standby.told(b'Z').await;
        let slot = slot.map_or(String::new(), |slot| format!("SLOT {slot} "));
        let start = format!("START_REPLICATION {slot}PHYSICAL {from}\0");
        standby.send(Some(b'Q'), start.as_bytes()).await;
        standby.told(b'W').await;
        standby
    }

    /// Says that its oldest query still needs this transaction.
    async fn needs(&mut self, xmin: u32) {
        let (time, epoch, catalog) = ([0; 8], [0; 4], [0; 8]);
        let feedback = [&b"h"[..], &time, &xmin.to_be_bytes(), &epoch, &catalog].concat();
        self.send(Some(b'd'), &feedback).await;
    }

    async fn send(&mut self, kind: Option<u8>, body: &[u8]) {
        let length = i32::try_from(body.len() + 4).expect("short").to_be_bytes();
        let message = [kind.as_slice(), &length, body].concat();
        self.0.write_all(&message).await.expect("it reads");
    }

    /// Reads on until a message of this kind.
    async fn told(&mut self, kind: u8) {
        let reading = async {
            loop {
                let told = self.0.read_u8().await.expect("an answer");
                let length = self.0.read_i32().await.expect("its length");
                let mut body = vec![0; usize::try_from(length - 4).expect("a length")];
                self.0.read_exact(&mut body).await.expect("its body");
                assert_ne!(told, b'E', "{}", String::from_utf8_lossy(&body));
                if told == kind {
                    return;
                }
            }
        };
        tokio::time::timeout(PATIENCE, reading)
            .await
            .expect("in time");
    }
}

async fn held_back_by(database: &Database) -> Vec<Value> {
    let settings = Settings::new(&database.url, "amqp://localhost");
    let (status, lines) = run(&settings, &["status", "--json"]).await;
    assert!(status.success(), "{lines:?}");
    let status: Value = serde_json::from_str(&lines.join("\n")).expect("JSON");
    status["vacuum"]["held_back_by"]
        .as_array()
        .expect("a list")
        .clone()
}

/// Where the log ends, and the oldest transaction that is needed now.
async fn now(admin: &Client) -> (String, u32) {
    let sql = "SELECT pg_current_wal_lsn()::text, txid_snapshot_xmin(txid_current_snapshot())";
    let row = admin.query_one(sql, &[]).await.expect("an answer");
    (
        row.get(0),
        u32::try_from(row.get::<_, i64>(1)).expect("young"),
    )
}

fn names(pin: &Value) -> [&str; 3] {
    ["kind", "who", "state"].map(|field| pin[field].as_str().unwrap_or_default())
}

#[tokio::test]
async fn a_standby_and_the_slot_that_it_left_are_named_until_they_are_ended() {
    let postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    migrate(&database.url).await;
    let admin = database.connect().await;
    let slot = "SELECT pg_create_physical_replication_slot('left', true)";
    admin.batch_execute(slot).await.expect("a slot");
    let (from, xmin) = now(&admin).await;

    let mut standby = Standby::connect(postgres.port(), None, &from).await;
    standby.needs(xmin).await;
    until(
        &admin,
        "SELECT count(backend_xmin) = 1 FROM pg_stat_replication",
    )
    .await;
    let pins = held_back_by(&database).await;
    let [pin] = &pins[..] else { panic!("{pins:?}") };
    let [kind, who, _] = names(pin);
    assert_eq!(kind, "standby");
    assert!(who.starts_with("standby replica (pid "), "{who}");
    drop(standby);
    until(&admin, "SELECT count(*) = 0 FROM pg_stat_replication").await;

    let mut standby = Standby::connect(postgres.port(), Some("left"), &from).await;
    standby.needs(xmin).await;
    until(&admin, "SELECT count(xmin) = 1 FROM pg_replication_slots").await;
    let pins = held_back_by(&database).await;
    assert_eq!(names(&pins[0]), ["slot", "slot left", "active"], "{pins:?}");
    drop(standby);
    until(
        &admin,
        "SELECT NOT bool_or(active) FROM pg_replication_slots",
    )
    .await;
    let pins = held_back_by(&database).await;
    assert_eq!(
        names(&pins[0]),
        ["slot", "slot left", "nobody reads it"],
        "{pins:?}"
    );

    // As the runbook has it.
    admin
        .batch_execute("SELECT pg_drop_replication_slot('left')")
        .await
        .expect("a slot that nobody reads");
    assert_eq!(held_back_by(&database).await, Vec::<Value>::new());
}
