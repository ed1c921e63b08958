//! When a run ends, and how.

/// When the engine ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Never: only when it is told to drain.
    Forever,
    /// When nothing that is due is left.
    UntilEmpty,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything that was under way was confirmed and marked.
    Drained,
    /// The grace period was over first: so many rows stay pending and may be sent once more.
    GraceOver(usize),
}
