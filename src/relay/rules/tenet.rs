//! Rules that everything rests on, each of which a test may break on purpose, to see that the
//! simulation notices. Outside of tests all of them hold, and asking costs nothing.

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tenet {
    /// Nothing is published after the lease may be over.
    Fence,
    /// Rows of a read are taken in by id, not by transaction id.
    OrderById,
    /// A settled row is remembered until a read that began later has come.
    RememberSettled,
    /// What changes hands is drained first.
    DrainFirst,
    /// Rows of new partitions wait for a walk over them from the beginning.
    WalkFirst,
}

#[cfg(test)]
thread_local! {
    static BROKEN: std::cell::Cell<Option<Tenet>> = const { std::cell::Cell::new(None) };
}

/// Does it hold?
#[cfg(test)]
pub(crate) fn holds(tenet: Tenet) -> bool {
    BROKEN.get() != Some(tenet)
}

/// Does it hold?
#[cfg(not(test))]
pub(crate) const fn holds(_: Tenet) -> bool {
    true
}

/// Breaks a rule, on this thread, as long as the work takes.
#[cfg(test)]
pub(super) fn without<R>(tenet: Tenet, work: impl FnOnce() -> R) -> R {
    BROKEN.set(Some(tenet));
    let mended = Mended;
    let result = work();
    drop(mended);
    result
}

/// Mends the rule even if the work panics.
#[cfg(test)]
struct Mended;

#[cfg(test)]
impl Drop for Mended {
    fn drop(&mut self) {
        BROKEN.set(None);
    }
}
