//! Faults that users of such systems have met, on real servers with the real program.
//!
//! Each runs in a short form; `OUTBOX_RELAY_TEST_SOAK=1` (`make soak`) runs the whole.

#[path = "../support/mod.rs"]
mod support;

mod broker_outage;
mod changes;
mod chaos;
mod clock;
mod costly;
mod crash;
mod database_outage;
mod destinations;
mod late_commits;
mod locked_rows;
mod memory;
mod poison;
mod pooler;
mod quiet_log;
mod readiness;
mod recreated_queue;
mod replicas;
mod retention;
mod rotated_secrets;
mod silent_queue;
mod slow_broker;
mod start;
mod successors;
mod unfit;
mod unroutable;
mod wake_up;

/// `short` usually, `long` in a soak.
fn soak<T>(short: T, long: T) -> T {
    let soaking = std::env::var_os("OUTBOX_RELAY_TEST_SOAK").is_some_and(|value| value == "1");
    if soaking { long } else { short }
}
