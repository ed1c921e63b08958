//! The relay: how a committed row becomes a routed and confirmed message.
//!
//! ```text
//!   PostgreSQL                        one relay process                        RabbitMQ
//!   message ──▶ reader ──▶ ┌────────────────────────────┐ ──▶ channel × n ──▶ exchange
//!      ▲                   │ engine: rules::Flow decides│ ◀── confirm, return ────┘
//!      └────── settler ◀── └────────────────────────────┘
//! ```
//!
//! [`rules`] are pure and decide everything; [`engine`] is the thin shell of tasks around them.
//! Each task owns its connection or channel and reconnects by itself; they talk to the engine by
//! messages only. The database is the authority: whatever a task forgets is found there again.

pub mod engine;
pub mod rules;

pub use engine::{
    Adjuster, Ended, Fate, HEARTBEAT, Identity, Landing, Mode, Observer, Relay, Server, Settings,
};
