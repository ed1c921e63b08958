//! Sees to it that each session of the relay has a server process of its own.
//!
//! Through a pooler in transaction mode a relay would lose the gate's lock and hear no notification:
//! it would oversleep rows. It does not begin before it has looked. Looking
//! takes two sessions of its own for a moment, before the usual two are opened, and is done once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OnceCell;

use super::facts::{Pooling, pooler, pooling};
use super::store::PgStore;
use crate::store::StoreError;
use crate::store::error::Fault;

/// How long a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// Whether it is known that nothing stands between.
#[derive(Clone, Debug, Default)]
pub struct Direct(Arc<OnceCell<()>>);

impl Direct {
    /// Looks, unless that was done. Cancel safe: it is done again then.
    ///
    /// # Errors
    /// [`StoreError::Settings`] says what stands between and what to do. Others as for any
    /// session.
    pub(super) async fn ascertain(&self, store: &PgStore) -> Result<(), StoreError> {
        self.0.get_or_try_init(|| look(store)).await.copied()
    }
}

async fn look(store: &PgStore) -> Result<(), StoreError> {
    let one = store.session("check").await?;
    let other = store.session("check").await?;
    let seen = pooling(&one, &other).await;
    one.close(GOODBYE).await;
    other.close(GOODBYE).await;
    match seen? {
        Pooling::None => Ok(()),
        Pooling::Shared(seen) => {
            let reason = format!("{}; {}", pooler::in_the_way(&seen), pooler::REMEDY);
            Err(StoreError::Settings(Fault::new("use the database", reason)))
        }
    }
}
