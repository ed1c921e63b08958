//! A transactional outbox relay from PostgreSQL to RabbitMQ.
//!
//! The application writes its business rows and an outbox row in one PostgreSQL
//! transaction. The relay reads committed outbox rows, publishes each to RabbitMQ with
//! publisher confirms, and marks a row sent only after the broker has routed and
//! confirmed it.
//!
//! Writers in Rust have [`outbox`]: a message as a value, written in their own transaction.
//!
//! The consumer half is [`inbox`]: one result for each message, however often it is delivered.
//! A consumer needs `default-features = false`; the feature `daemon` brings what the program needs
//! beyond that, and `metrics` the consumer's counters.
//!
//! Modules depend on each other in one direction only:
//! `message` ← `relay` rules ← `store`, `broker` ← `relay` engine ← `ops` ← `commands`.
//! `inbox` stands on `store` and `broker` alone, `outbox` on `store`.

pub mod broker;
#[cfg(feature = "daemon")]
pub mod commands;
pub mod config;
pub mod inbox;
pub mod message;
#[cfg(feature = "daemon")]
pub mod ops;
pub mod outbox;
pub mod relay;
pub mod runtime;
pub mod store;
