//! Stopping: the first signal asks for a drain, the second ends the process.
//!
//! Does not know what a drain is; tasks watch the token. The grace period is the command's.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// The wish to stop, shared by every task.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    drain: CancellationToken,
}

impl Shutdown {
    /// Listens for SIGTERM and SIGINT from now on: the first cancels the drain token, the second
    /// exits at once with 128 plus its number, as a shell reports a process that died of it.
    ///
    /// # Errors
    /// When the handlers cannot be installed. Must be called within a Tokio runtime.
    pub fn listen() -> io::Result<Self> {
        let mut signals = Signals::install()?;
        let shutdown = Self::default();
        let drain = shutdown.drain.clone();
        tokio::spawn(async move {
            let (name, _) = signals.next().await;
            info!(signal = name, "draining; a second signal exits at once");
            drain.cancel();
            let (name, number) = signals.next().await;
            warn!(
                signal = name,
                "exiting at once; unconfirmed rows stay pending"
            );
            std::process::exit(128 + number);
        });
        Ok(shutdown)
    }

    /// Cancelled when the process should finish what it has begun and begin nothing new.
    #[must_use]
    pub fn drain(&self) -> &CancellationToken {
        &self.drain
    }

    /// Asks for the drain from within, as the first signal would.
    pub fn request(&self) {
        self.drain.cancel();
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn install() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> (&'static str, i32) {
        tokio::select! {
            _ = self.terminate.recv() => ("SIGTERM", SignalKind::terminate().as_raw_value()),
            _ = self.interrupt.recv() => ("SIGINT", SignalKind::interrupt().as_raw_value()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    const ROLE: &str = "OUTBOX_RELAY_TEST_STOPPED_PROCESS";
    const NAME: &str =
        "runtime::shutdown::tests::the_first_signal_drains_and_the_second_exits_at_once";

    /// Signals reach whole processes, so the one that is stopped is this test run once more.
    #[test]
    fn the_first_signal_drains_and_the_second_exits_at_once() {
        if std::env::var_os(ROLE).is_some() {
            be_stopped();
        }
        for (first, second, code) in [
            ("TERM", "TERM", 143),
            ("INT", "TERM", 143),
            ("TERM", "INT", 130),
        ] {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", NAME, "--nocapture"])
                .env(ROLE, "1")
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let mut said = |word: &str| lines.any(|line| line.unwrap().contains(word));
            assert!(said("listening"));
            send(first, child.id());
            assert!(said("draining"));
            send(second, child.id());
            assert_eq!(child.wait().unwrap().code(), Some(code));
        }
    }

    fn send(signal: &str, process: u32) {
        let kill = format!("kill -{signal} {process}");
        let sent = Command::new("sh").args(["-c", &kill]).status().unwrap();
        assert!(sent.success());
    }

    fn be_stopped() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let shutdown = Shutdown::listen().unwrap();
            println!("listening");
            shutdown.drain().cancelled().await;
            println!("draining");
            std::future::pending::<()>().await;
        });
    }
}
