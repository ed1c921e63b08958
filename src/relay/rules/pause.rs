//! What an operator does not want to be published for now.

/// A pause in force. Every read brings all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// This exchange, the default one if empty; `None` for everything.
    pub exchange: Option<String>,
    /// Who paused it.
    pub by: String,
    /// Why.
    pub reason: String,
}
