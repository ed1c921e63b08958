//! What `migrate` can bring up to date: an outbox, or the inbox. Both by the same steps.

use std::fmt;

use tokio_postgres::Client;

use super::catalog::Catalog;
use super::definition::Definition;
use super::migration::{self, Migration};
use super::pending::{self, Pending, Refusal, Wanted};
use super::{inbox, migration::NEWEST};
use crate::store::error::StoreError;
use crate::store::postgres::ident::Outbox;

/// One of the two schemas.
#[derive(Clone, Debug)]
pub enum Subject {
    /// An outbox, with what the user wants of it.
    Outbox(Outbox, Wanted),
    /// The inbox. Its schema and table always have the same names.
    Inbox(Outbox),
}

impl Subject {
    /// An outbox.
    #[must_use]
    pub fn outbox(outbox: &Outbox, wanted: Wanted) -> Self {
        Self::Outbox(outbox.clone(), wanted)
    }

    /// The inbox.
    #[must_use]
    pub fn inbox() -> Self {
        Self::Inbox(inbox::names())
    }

    /// Schema and main table.
    #[must_use]
    pub fn names(&self) -> &Outbox {
        match self {
            Self::Outbox(names, _) | Self::Inbox(names) => names,
        }
    }

    /// The newest version that this program brings.
    pub(super) fn newest(&self) -> i32 {
        match self {
            Self::Outbox(..) => NEWEST,
            Self::Inbox(_) => inbox::NEWEST,
        }
    }

    /// Reads the catalog.
    pub(super) async fn look(&self, client: &Client) -> Result<Catalog, StoreError> {
        match self {
            Self::Outbox(names, _) => Catalog::read(client, names).await,
            Self::Inbox(names) => inbox::look(client, names).await,
        }
    }

    /// Fills the wishes up with what is there.
    pub(super) fn resolve(&self, found: &Catalog) -> Result<Definition, Refusal> {
        match self {
            Self::Outbox(names, wanted) => pending::resolve(names, *wanted, found),
            Self::Inbox(_) => Ok(inbox::definition()),
        }
    }

    /// What is not as it must be, in the order to make it right.
    pub(super) fn pending(&self, definition: &Definition, found: &Catalog) -> Vec<Pending> {
        match self {
            Self::Outbox(..) => pending::pending(definition, found),
            Self::Inbox(_) => inbox::pending(definition, found),
        }
    }

    /// All migrations, in order.
    pub(super) fn migrations(&self, definition: &Definition) -> Vec<Migration> {
        match self {
            Self::Outbox(..) => migration::all(definition.wake).to_vec(),
            Self::Inbox(_) => inbox::ALL.to_vec(),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Outbox(..) => "outbox",
            Self::Inbox(_) => "inbox",
        })
    }
}
