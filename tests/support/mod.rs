//! What tests and the demo share: private throw-away servers, a faulty network, the relay as
//! a real process, and the ledger that says whether anything was lost.
//!
//! Nothing here touches a server that is already running, and nothing started here outlives
//! the process that started it. Linux only (`/proc`, pidfd).

#![allow(dead_code, reason = "every test binary uses its own part of this")]

pub mod checker;
pub mod leash;
pub mod pgbouncer;
pub mod places;
pub mod ports;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod publication;
pub mod queues;
pub mod rabbit;
pub mod relay;
pub mod scene;
pub mod scratch;
pub mod scripted_broker;
pub mod writers;

use std::time::Duration;

/// How long a server may take for any one step before a test fails; generous, because tests
/// share few cores. Reaching it is always a failure, never a wait that a test relies on.
pub const PATIENCE: Duration = Duration::from_secs(90);
