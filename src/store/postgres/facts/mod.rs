//! Facts about a database for `outbox-relay check`: gathered here, judged by the command.
//!
//! Looks only; each look is one short statement, bounded whatever the outbox holds.

pub mod destinations;
pub mod hindrances;
pub mod pooler;
pub mod rights;
pub mod server;

pub use destinations::{Destinations, destinations};
pub use hindrances::{Hindrances, hindrances, unread};
pub use pooler::{Pooling, pooling};
pub use rights::{Right, rights};
pub use server::{ServerFacts, server};

use std::time::Duration;

use super::session::Session;
use super::store::PgStore;
use crate::store::StoreError;

/// The longest that any look may take; a server with a statement timeout answers sooner.
const DEADLINE: Duration = Duration::from_secs(20);

/// Opens a session for looking; secrets are read anew.
///
/// # Errors
/// As for any session of the relay: a standby or a read-only server is refused, too.
pub async fn open(store: &PgStore) -> Result<Session, StoreError> {
    store.session("check").await
}
