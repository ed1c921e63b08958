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
