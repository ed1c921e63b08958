//! Sees to it that each session of the relay has a server process of its own.
//!
//! Through a pooler in transaction mode a relay would lose the gate's lock and hear no notification:
//! it would oversleep rows. It does not begin before it has looked. The first two sessions, which
//! are opened at once, look; then they are what they were opened for.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::facts::{Pooling, pooler, pooling};
use super::one_server::Side;
use super::session::Session;
use super::store::PgStore;
use crate::store::StoreError;
use crate::store::error::Fault;

/// Whether it is known that nothing stands between.
#[derive(Clone, Debug, Default)]
pub struct Direct(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    direct: bool,
    /// The sessions that found out, until somebody asks for them.
    reading: Option<Session>,
    settling: Option<Session>,
}

impl Direct {
    /// A session for one side. Looks first, unless that was done. Cancel safe: it is done again
    /// then.
    ///
    /// # Errors
    /// [`StoreError::Settings`] says what stands between and what to do. Others as for any
    /// session.
    pub(super) async fn session(&self, store: &PgStore, side: Side) -> Result<Session, StoreError> {
        let mut known = self.0.lock().await;
        if !known.direct {
            let (reading, settling) = look(store).await?;
            *known = Known {
                direct: true,
                reading: Some(reading),
                settling: Some(settling),
            };
        }
        let kept = match side {
            Side::Reading => known.reading.take(),
            Side::Settling => known.settling.take(),
        };
        drop(known);
        match kept.filter(|session| !session.client.is_closed()) {
            Some(session) => Ok(session),
            None => store.session(side.role()).await,
        }
    }
}

/// Opens both sessions and looks.
async fn look(store: &PgStore) -> Result<(Session, Session), StoreError> {
    let (reading, settling) = tokio::try_join!(
        store.session(Side::Reading.role()),
        store.session(Side::Settling.role())
    )?;
    match pooling(&reading, &settling).await? {
        Pooling::None => Ok((reading, settling)),
        Pooling::Shared(seen) => {
            let reason = format!("{}; {}", pooler::in_the_way(&seen), pooler::REMEDY);
            Err(StoreError::Settings(Fault::new("use the database", reason)))
        }
    }
}
