//! The consumer half on real servers: the SQL functions, then the Rust consumer.

#[path = "../support/mod.rs"]
mod support;

mod claims;
mod consuming;
mod entries;
mod examples;
mod faults;
mod malformed;
mod operating;
mod order;
mod poison;
mod races;
mod scaling;
mod schema;
mod topology;
mod world;
