//! Tests of the tests' own equipment: a harness that lies would prove anything.

#[path = "../support/mod.rs"]
mod support;

mod ledger;
mod network;
mod program;
mod servers;
