//! Removal of sent rows, between settlements, by the relay that speaks for the outbox.

use tracing::{debug, warn};

use super::observer::Observer;
use super::ration::Ration;
use crate::relay::rules::{Stretch, Swept, Walk};
use crate::runtime::{Clock, Moment};
use crate::store::{Settler, StoreError};

/// Sweeps when it is time to.
pub(super) struct Upkeep {
    walk: Walk,
    /// Sweeping is refused; told once.
    refused: bool,
    /// Rows that cannot be removed.
    rows: Ration,
    /// Removal that takes long.
    slow: Ration,
}

impl Upkeep {
    pub(super) fn new(retention: std::time::Duration) -> Self {
        Self {
            walk: Walk::new(retention),
            refused: false,
            rows: Ration::new("more sent rows cannot be removed"),
            slow: Ration::new("removal took long again"),
        }
    }

    pub(super) fn due_at(&self) -> Moment {
        self.walk.due_at()
    }

    /// Sweeps one stretch, if it is time to. Takes a round trip and waits for no lock. That it
    /// is refused is no reason not to settle.
    pub(super) async fn go_on<T: Settler>(
        &mut self,
        settler: &mut T,
        observer: &dyn Observer,
    ) -> Result<(), StoreError> {
        let begun = Clock.now();
        if begun < self.walk.due_at() {
            return Ok(());
        }
        let stretch = self.walk.stretch(begun);
        let swept = settler.sweep(stretch, &self.walk.left_out(stretch)).await;
        let now = Clock.now();
        self.rows.count(now);
        self.slow.count(now);
        match swept {
            Ok(swept) => {
                self.refused = false;
                let Stretch { after, up_to, .. } = stretch;
                debug!(after, up_to, removed = swept.removed, "swept sent rows");
                observer.removed(swept.removed);
                self.walk.swept(stretch, &swept, now.since(begun), now);
                self.tell_of_kept(&swept, observer, now);
            }
            Err(error @ (StoreError::Unreachable(_) | StoreError::ReadOnly(_))) => {
                self.walk.failed(now);
                return Err(error);
            }
            Err(
                error @ (StoreError::Other(_) | StoreError::TimedOut(_) | StoreError::Retryable(_)),
            ) => {
                let named = error.fault().row;
                let passed = self.walk.refused(stretch, named, now.since(begun), now);
                if passed.is_some() {
                    observer.kept();
                }
                self.tell(passed, &error, now);
            }
            Err(error) => {
                self.walk.failed(now);
                if !self.refused {
                    self.refused = true;
                    warn!(%error, "sent rows cannot be removed; they are kept for longer than outbox.retention");
                }
            }
        }
        Ok(())
    }

    /// A trigger that returns NULL keeps a row and raises nothing.
    fn tell_of_kept(&mut self, swept: &Swept, observer: &dyn Observer, now: Moment) {
        let Some(row) = swept.kept.first() else {
            return;
        };
        for _ in &swept.kept {
            observer.kept();
        }
        if self.rows.may_speak(now) {
            warn!(
                row,
                rows = swept.kept.len(),
                "sent rows were not removed, and nothing says why: a trigger on the outbox keeps them"
            );
        }
    }

    /// Names the row, if one is left over. A foreign key or a trigger on the outbox refuses its
    /// removal, or makes it too slow to be waited for.
    fn tell(&mut self, row: Option<i64>, error: &StoreError, now: Moment) {
        let Some(row) = row else {
            debug!(%error, "sent rows cannot be removed together");
            if matches!(error, StoreError::TimedOut(_)) && self.slow.may_speak(now) {
                warn!(
                    %error,
                    "removing sent rows takes long, so that few are removed at a time: see who locks the outbox \
                     (pg_locks), what refers to it by a foreign key (is it indexed?) and which triggers it has"
                );
            }
            return;
        };
        if self.rows.may_speak(now) {
            warn!(
                row,
                %error,
                "a sent row cannot be removed; it is kept, and others are removed: see what refers to \
                 the outbox by a foreign key (is it indexed?) and which triggers it has"
            );
        }
    }
}
