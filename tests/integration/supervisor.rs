//! What the daemon tells systemd (`sd_notify(3)`): a socket of the test's stands in for it.
//!
//! That the watchdog is not fed for an engine that stands still is tested with the rule itself, in
//! `ops::supervisor`.

use std::collections::VecDeque;
use std::os::unix::net::UnixDatagram as StdDatagram;

use rustix::process::Signal;
use tokio::net::UnixDatagram;
use tokio::time::timeout;

use crate::support::PATIENCE;
use crate::support::ports::Port;
use crate::support::relay::{Relay, Settings};
use crate::support::scratch::Scratch;

/// The end of `NOTIFY_SOCKET` that systemd holds.
struct Systemd {
    socket: UnixDatagram,
    heard: VecDeque<String>,
    folder: Scratch,
}

impl Systemd {
    fn new() -> Self {
        let folder = Scratch::new("notify");
        let socket = StdDatagram::bind(folder.join("notify")).expect("a short path");
        socket.set_nonblocking(true).expect("a socket");
        Self {
            socket: UnixDatagram::from_std(socket).expect("a socket"),
            heard: VecDeque::new(),
            folder,
        }
    }

    /// A relay that is told of it, and whose servers are not there.
    fn start(&self, database: &Port, broker: &Port) -> Relay {
        let database = format!("postgres://relay:none@127.0.0.1:{}/shop", database.number());
        let broker = format!("amqp://relay:none@127.0.0.1:{}", broker.number());
        let path = self.folder.join("notify").display().to_string();
        let settings = Settings::new(&database, &broker)
            .with("NOTIFY_SOCKET", &path)
            .with("WATCHDOG_USEC", "2000000");
        Relay::start(&settings)
    }

    /// Waits for a line that begins so; those before it are forgotten.
    async fn hears(&mut self, beginning: &str) -> String {
        let listening = async {
            loop {
                while let Some(line) = self.heard.pop_front() {
                    if line.starts_with(beginning) {
                        return line;
                    }
                }
                let mut datagram = [0; 4096];
                let length = self.socket.recv(&mut datagram).await.expect("a datagram");
                let lines = String::from_utf8_lossy(&datagram[..length]).into_owned();
                self.heard.extend(lines.lines().map(str::to_owned));
            }
        };
        let heard = timeout(PATIENCE, listening).await;
        heard.unwrap_or_else(|_| panic!("nothing begins with {beginning:?}"))
    }
}

#[tokio::test]
async fn it_has_started_without_its_servers_and_feeds_the_watchdog_all_the_same() {
    let (database, broker) = (Port::take(), Port::take());
    let mut systemd = Systemd::new();
    let relay = systemd.start(&database, &broker);
    systemd.hears("READY=1").await;
    let status = systemd.hears("STATUS=PostgreSQL disconnected: ").await;
    assert!(status.contains("RabbitMQ disconnected: "), "{status}");
    // The engine comes round all the time, whatever its servers do.
    for _ in 0..3 {
        systemd.hears("WATCHDOG=1").await;
    }
    assert_eq!(relay.get("/readyz").await.map(|(code, _)| code), Some(503));
    relay.terminate();
    systemd.hears("STOPPING=1").await;
    assert!(relay.ended().await.success());
}

#[tokio::test]
async fn a_reload_is_announced_and_ended() {
    let (database, broker) = (Port::take(), Port::take());
    let mut systemd = Systemd::new();
    let relay = systemd.start(&database, &broker);
    systemd.hears("READY=1").await;
    relay.signal(Signal::HUP);
    systemd.hears("RELOADING=1").await;
    systemd.hears("MONOTONIC_USEC=").await;
    systemd.hears("READY=1").await;
    relay.stop().await;
}
