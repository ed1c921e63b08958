//! The consumer half on real servers: the SQL functions, then the Rust consumer.

#[path = "../support/mod.rs"]
mod support;

mod claims;
mod entries;
mod order;
mod races;
mod schema;
