//! Tests against real servers, one file for each subject.

#[path = "../support/mod.rs"]
mod support;

mod bench;
mod browser;
mod check;
mod database_tls;
mod delivery;
mod enqueue;
mod explain;
mod flat_reads;
mod grants;
mod guest;
mod hostile_names;
mod identity;
mod least_rights;
mod logs;
mod manners;
mod metrics;
mod migrate;
mod migrate_check;
mod migrate_in_use;
mod migrate_upgrade;
mod operator;
mod order;
mod outbox;
mod own_table;
mod page;
mod pause;
mod quarantine;
mod queue;
mod reload;
mod resend;
mod retention;
mod session;
mod standby;
mod status;
mod supervisor;
mod wake;
mod writer;
