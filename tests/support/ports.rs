//! TCP ports that belong to one holder at a time, across all test processes of this user.
//!
//! Asking the kernel for a free port and giving it back is a race, also against the source
//! ports of outgoing connections. These lie below the ephemeral range and are locked by file.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below Linux's default ephemeral range (32768 and up), above the well-known services.
const RANGE: Range<u16> = 20_000..32_000;

/// A port on 127.0.0.1, free when it was taken and ours until dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _lock: File,
}

impl Port {
    /// Takes a port that nobody listens on.
    ///
    /// # Panics
    /// If the whole range is in use.
    pub fn take() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let user = rustix::process::getuid().as_raw();
        let folder = std::env::temp_dir().join(format!("outbox-relay-ports-{user}"));
        fs::create_dir_all(&folder)
            .unwrap_or_else(|error| panic!("cannot create {}: {error}", folder.display()));
        // Processes start at different places, so that they rarely meet.
        let start = std::process::id().wrapping_mul(131);
        for _ in RANGE {
            let step = NEXT.fetch_add(1, Ordering::Relaxed);
            let offset = start.wrapping_add(step) % u32::from(RANGE.end - RANGE.start);
            let number = RANGE.start + u16::try_from(offset).expect("within the range");
            let Ok(lock) = File::create(folder.join(number.to_string())) else {
                continue;
            };
            if lock.try_lock().is_ok() && TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Self {
                    number,
                    _lock: lock,
                };
            }
        }
        panic!("all ports of {RANGE:?} are in use");
    }

    /// The port's number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// 127.0.0.1 with this port.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}
