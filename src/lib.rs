//! A transactional outbox relay from PostgreSQL to RabbitMQ.
//!
//! The application writes its business rows and an outbox row in one PostgreSQL
//! transaction. The relay reads committed outbox rows, publishes each to RabbitMQ with
//! publisher confirms, and marks a row sent only after the broker has routed and
//! confirmed it.
//!
//! Modules depend on each other in one direction only:
//! `message` ← `relay` rules ← `store`, `broker` ← `relay` engine ← `ops` ← `commands`.

pub mod broker;
pub mod commands;
pub mod config;
pub mod message;
pub mod ops;
pub mod relay;
pub mod runtime;
pub mod store;
