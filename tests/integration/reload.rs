//! SIGHUP: what a running relay takes up, and what it says of the rest.

use std::path::PathBuf;

use rustix::process::Signal;

use crate::outbox::{number, outbox, until};
use crate::support::PATIENCE;
use crate::support::rabbit::{Rabbit, vhost};
use crate::support::relay::{Relay, Settings};
use crate::support::scratch::Scratch;

/// A configuration file and a relay that reads it.
struct Configured {
    file: PathBuf,
    base: String,
    relay: Relay,
    _folder: Scratch,
}

impl Configured {
    async fn start(base: String, more: &str) -> Self {
        let folder = Scratch::new("reload");
        let file = folder.join("relay.toml");
        std::fs::write(&file, format!("{base}{more}")).expect("own folder");
        let name = file.display().to_string();
        let settings = Settings::default().with("OUTBOX_RELAY_CONFIG", &name);
        let relay = Relay::start(&settings);
        relay.ready().await;
        Self {
            file,
            base,
            relay,
            _folder: folder,
        }
    }

    /// Writes the file anew and sends the signal; returns when the relay has said `word`.
    async fn reload(&self, more: &str, word: &str) {
        self.write(&format!("{}{more}", self.base), word).await;
    }

    async fn write(&self, content: &str, word: &str) {
        std::fs::write(&self.file, content).expect("own folder");
        self.relay.signal(Signal::HUP);
        self.relay.printed(word).await;
    }
}

fn servers(database: &str, broker: &str) -> String {
    format!("[database]\nurl = '{database}'\n[broker]\nurl = '{broker}'\n")
}

#[tokio::test]
async fn what_can_change_changes_and_what_needs_a_restart_is_named() {
    let (database, _admin) = outbox().await;
    let base = servers(&database.url, &vhost().await.url);
    let run = Configured::start(base, "").await;
    let changed = "[log]\nlevel = 'debug'\n[relay]\nbatch_size = 7\nchannels = 2\n";
    run.reload(changed, "in effect after a restart only").await;
    let output = run.relay.output().join("\n");
    assert!(
        output.contains("reloaded changed=\"log.level\""),
        "{output}"
    );
    let keys = "keys=\"relay.batch_size, relay.channels\"";
    assert!(output.contains(keys), "{output}");
    run.reload("[log]\nlvel = 'info'\n", "was not reloaded")
        .await;
    let output = run.relay.output().join("\n");
    assert!(output.contains("did you mean log.level?"), "{output}");
    let warn = "[log]\nlevel = 'debug'\n";
    run.reload(warn, "no setting has changed").await;
    run.relay.stop().await;
}

#[tokio::test]
async fn retries_follow_the_new_rules() {
    let (database, admin) = outbox().await;
    let base = servers(&database.url, &vhost().await.url);
    let slow = "[retry]\ninitial = '1h'\nmax_delay = '1h'\njitter = 0\n";
    let run = Configured::start(base, slow).await;
    let insert = |queue: &str| {
        format!("INSERT INTO outbox.message (routing_key, payload) VALUES ('{queue}', '1')")
    };
    let waits = |queue: &str| {
        format!(
            "SELECT EXISTS (SELECT FROM outbox.message WHERE routing_key = '{queue}' AND retry_at IS NOT NULL)"
        )
    };
    admin
        .batch_execute(&insert("nowhere"))
        .await
        .expect("a row");
    until(&admin, &waits("nowhere")).await;
    let quick = "[retry]\ninitial = '60s'\nmax_delay = '1h'\njitter = 0\n";
    run.reload(quick, "reloaded changed=\"retry.initial\"")
        .await;
    admin
        .batch_execute(&insert("elsewhere"))
        .await
        .expect("a row");
    until(&admin, &waits("elsewhere")).await;
    let minutes = |queue: &str| {
        format!(
            "SELECT ceil(EXTRACT(epoch FROM retry_at - clock_timestamp()) / 60)::int8 \
             FROM outbox.message WHERE routing_key = '{queue}'"
        )
    };
    assert_eq!(number(&admin, &minutes("nowhere")).await, 60);
    assert_eq!(number(&admin, &minutes("elsewhere")).await, 1);
    run.relay.stop().await;
}

#[tokio::test]
async fn a_new_password_counts_at_the_next_connect() {
    let (database, _admin) = outbox().await;
    let rabbit = Rabbit::start().await;
    rabbit.add_user("shop", "old").await;
    rabbit
        .set_permissions("shop", "/", [".*", ".*", ".*"])
        .await;
    let base = servers(
        &database.url,
        &rabbit.url().replace("guest:guest", "shop:old"),
    );
    let run = Configured::start(base.clone(), "").await;
    rabbit.change_password("shop", "new").await;
    let new = base.replace("shop:old", "shop:new");
    run.write(&new, "reloaded changed=\"broker.url\"").await;
    rabbit.close_all_connections().await;
    run.relay.printed("no connection to the broker").await;
    run.relay.ready().await;
    let connected = async {
        while rabbit.connections().await == 0 {
            // The broker is asked: it signals no connection of others.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, connected)
        .await
        .expect("in time");
    let output = run.relay.output().join("\n");
    assert!(!output.contains("ACCESS_REFUSED"), "{output}");
    run.relay.stop().await;
}
