//! The consumer half: one result for each message, whatever is delivered twice.
//!
//! A message is done when its result is durable, not when a handler started. What is known of it
//! lives in the consumer's own PostgreSQL, in `inbox.message`, made by `outbox-relay migrate
//! --inbox`; the functions there are the contract for every language, and this module calls
//! nothing else.
//!
//! ```text
//! received ─▶ processing (owner, lease) ─▶ done
//!                │            │ lease over: another may take over
//!                ├─▶ retry (at a time) ─▶ processing …    bounded attempts
//!                ├─▶ waiting (an earlier entry of its key is unfinished) ─▶ processing …
//!                └─▶ dead (reason) ─▶ replay, audited
//! ```
//!
//! ```text
//!            ┌────────────── Consumer ──────────────────────────────────┐
//! RabbitMQ ─▶│ feed ─▶ dispatch ─claim▶ transactional │ leased ─▶ settle │─▶ ack
//!            │            ▲ due, at least every second                   │
//!            │          keeper: the session with PostgreSQL              │
//!            └───────────────────────────────────────────────────────────┘
//! ```
//!
//! * The claim commits before the handler starts; it counts the attempt.
//! * A delivery is acknowledged only when the database has said what became of it. While the
//!   database is away nothing is claimed, nothing acknowledged and nothing given back to the
//!   queue: a quorum queue drops what is given back too often.
//! * A [`TransactionalHandler`] gets a transaction: entry, effect and result commit together. It
//!   holds the entry's lock, so nobody takes it over while it runs.
//! * A [`LeasedHandler`] acts outside the database: its lease is renewed while it runs; when the
//!   lease is lost it is dropped. [`Message::taken_over`] says that an earlier one may have acted.

mod consumer;
mod desk;
mod dispatch;
mod envelope;
mod feed;
mod functions;
mod handler;
mod job;
mod keeper;
mod leased;
mod message;
#[cfg(feature = "metrics")]
mod metrics;
mod observer;
mod rate;
mod settings;
mod transactional;
mod verdicts;

pub use consumer::{Consumer, Ended};
pub use handler::{Failure, HandlerResult, LeasedHandler, TransactionalHandler};
pub use message::Message;
#[cfg(feature = "metrics")]
pub use metrics::Metrics;
pub use observer::{DeadEntries, Observer, RetryReason, Unobserved};
pub use settings::{Settings, SettingsError};
