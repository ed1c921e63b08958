//! What a relay tells the others about itself through the database.

use std::time::Duration;

use uuid::Uuid;

use crate::relay::rules::HeldBack;

/// One sign of life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Token of the process.
    pub instance: Uuid,
    /// Host and process, for people.
    pub name: String,
    /// Of the program.
    pub version: String,
    /// Due rows make progress, or nothing is due.
    pub ready: bool,
    /// Why it is not ready.
    pub waits_for: Option<String>,
    /// How the connection to PostgreSQL is doing: one of a few words, and why.
    pub database: (String, String),
    /// How the connection to RabbitMQ is doing: one of a few words, and why.
    pub broker: (String, String),
    /// How long ago a row was last confirmed and settled; `None` if none was yet.
    pub last_confirm: Option<Duration>,
    /// How long others are to take this relay for alive from here on.
    pub lease: Duration,
    /// Partitions held.
    pub partitions: u16,
    /// What it holds back on purpose.
    pub held_back: Vec<HeldBack>,
}
