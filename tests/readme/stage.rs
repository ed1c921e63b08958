//! Private servers on which the blocks of one page are played.

use std::path::Path;
use std::time::Duration;

use lapin::options::{BasicGetOptions, QueueDeclareOptions, QueuePurgeOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};
use tokio::time::{sleep, timeout};

use crate::page::{Block, Mark};
use crate::support::PATIENCE;
use crate::support::leash::{Leashed, Program};
use crate::support::places::Places;
use crate::support::ports::Port;
use crate::support::postgres::{self, Database};
use crate::support::rabbit::{self, Vhost};
use crate::support::relay::{Relay, Settings};
use crate::support::scratch::Scratch;

/// The queue that the pages speak of.
const QUEUE: &str = "hello";

/// Two servers, a folder, a queue, and the relay once a block has started it.
pub struct Stage {
    database: Database,
    vhost: Vhost,
    folder: Scratch,
    http: Port,
    relay: Option<Relay>,
    /// Of the last script.
    output: Vec<String>,
}

impl Stage {
    /// With the queue that the reader is told to declare.
    pub async fn set() -> Self {
        let stage = Self {
            database: postgres::database().await,
            vhost: rabbit::vhost().await,
            folder: Scratch::new("readme"),
            http: Port::take(),
            relay: None,
            output: Vec::new(),
        };
        let channel = stage.channel().await;
        let durable = QueueDeclareOptions::durable();
        channel
            .queue_declare(QUEUE.into(), durable, FieldTable::default())
            .await
            .expect("a queue");
        channel
            .queue_purge(QUEUE.into(), QueuePurgeOptions::default())
            .await
            .expect("an empty queue");
        stage
    }

    /// Does what a block's mark says.
    ///
    /// # Panics
    /// With the block's place, if the documentation is wrong.
    pub async fn play(&mut self, block: &Block) {
        match block.mark {
            Mark::Script => self.script(block).await,
            Mark::Statements => self.statements(block).await,
            Mark::Daemon => self.daemon(block).await,
            Mark::Output => self.compare(block),
            Mark::Unmarked => {}
        }
    }

    async fn script(&mut self, block: &Block) {
        let script = format!("set -eu\n{}", block.text);
        let script = Leashed::start(&Program {
            name: &block.place,
            folder: self.folder.path(),
            unprivileged: false,
            command: &["sh".as_ref(), "-c".as_ref(), script.as_ref()],
            env: &self.env(),
        });
        let status = script.ended(PATIENCE).await;
        script.all_printed(PATIENCE).await;
        self.output = script.output().lines();
        let told = self.output.join("\n");
        assert!(status.success(), "{}: {status}\n{told}", block.place);
    }

    async fn statements(&mut self, block: &Block) {
        let client = self.database.connect().await;
        let done = client.batch_execute(&block.text).await;
        done.unwrap_or_else(|error| panic!("{}: {error:?}", block.place));
    }

    async fn daemon(&mut self, block: &Block) {
        let (program, arguments) = match block.text.split_whitespace().collect::<Vec<_>>() {
            words if words.is_empty() => panic!("{}: empty", block.place),
            words => (words[0], words[1..].to_vec()),
        };
        assert_eq!(program, "outbox-relay", "{}", block.place);
        let settings = Settings::new(&self.database.url, &self.vhost.url);
        let relay = Relay::start_with(&settings, &arguments);
        relay.ready().await;
        self.relay = Some(relay);
    }

    /// Columns may be as wide as they are on the page.
    fn compare(&self, block: &Block) {
        let plain = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let printed: Vec<String> = self.output.iter().map(|line| plain(line)).collect();
        for line in block.text.lines().map(plain) {
            assert!(
                printed.contains(&line),
                "{}: {line:?} is not among\n{}",
                block.place,
                self.output.join("\n")
            );
        }
    }

    /// What the reader has exported, and programs on the search path.
    fn env(&self) -> Vec<(&'static str, String)> {
        let http = self
            .relay
            .as_ref()
            .map_or(self.http.number(), Relay::http_port);
        let places = Places::known();
        let program = Path::new(env!("CARGO_BIN_EXE_outbox-relay"));
        let mut path = vec![program.parent().expect("a folder").to_owned()];
        path.extend(std::env::split_paths(
            &std::env::var_os("PATH").unwrap_or_default(),
        ));
        path.push(places.postgres_bin.clone());
        let path = std::env::join_paths(path).expect("no colon in a folder's name");
        vec![
            ("DATABASE_URL", self.database.url.clone()),
            ("AMQP_URL", self.vhost.url.clone()),
            ("OUTBOX_RELAY__HTTP__LISTEN", format!("127.0.0.1:{http}")),
            ("PATH", path.to_str().expect("UTF-8").to_owned()),
        ]
    }

    /// Waits until nothing is pending; the bodies in the queue, in order.
    ///
    /// # Panics
    /// If something stays pending.
    pub async fn arrived(&self) -> Vec<String> {
        let client = self.database.connect().await;
        let sql = "SELECT count(*) FROM outbox.message WHERE sent_at IS NULL";
        let empty = async {
            while client
                .query_one(sql, &[])
                .await
                .expect("an outbox")
                .get::<_, i64>(0)
                > 0
            {
                // The database is asked: nobody signals a mark.
                sleep(Duration::from_millis(50)).await;
            }
        };
        let relay = self.relay.as_ref().map(Relay::output).unwrap_or_default();
        timeout(PATIENCE, empty)
            .await
            .unwrap_or_else(|_| panic!("rows stay pending\n{}", relay.join("\n")));
        let channel = self.channel().await;
        let mut bodies = Vec::new();
        let acked = BasicGetOptions { no_ack: true };
        while let Some(message) = channel
            .basic_get(QUEUE.into(), acked)
            .await
            .expect("a queue")
        {
            bodies.push(String::from_utf8(message.delivery.data).expect("UTF-8"));
        }
        bodies
    }

    /// Rows that are marked as sent to the queue.
    pub async fn sent(&self) -> usize {
        let client = self.database.connect().await;
        let sql = "SELECT count(*) FROM outbox.message \
                   WHERE sent_at IS NOT NULL AND routing_key = $1";
        let row = client.query_one(sql, &[&QUEUE]).await.expect("an outbox");
        usize::try_from(row.get::<_, i64>(0)).expect("a count")
    }

    /// Stops the relay, which must end well.
    pub async fn end(mut self) {
        self.stop().await;
    }

    /// The same, before another page.
    pub async fn stop(&mut self) {
        if let Some(relay) = self.relay.take() {
            relay.stop().await;
        }
    }

    async fn channel(&self) -> Channel {
        let connection = Connection::connect(&self.vhost.url, ConnectionProperties::default());
        let connection = connection.await.expect("the broker is up");
        connection.create_channel().await.expect("a channel")
    }
}
