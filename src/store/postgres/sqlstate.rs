//! From the client crate's errors to [`StoreError`].
//!
//! Takes the SQLSTATE, the primary message and the hint. DETAIL and CONTEXT are left out on
//! purpose: PostgreSQL quotes row values there ("Failing row contains …"), and a payload may
//! never reach a log.

use std::error::Error as _;
use std::io;

use tokio_postgres::Error;
use tokio_postgres::error::DbError;

use crate::store::error::{Fault, StoreError};

/// Longest text taken over from the server, in characters: messages can quote a value.
const LONGEST: usize = 300;

/// Sorts a client error. `doing` says what was attempted, for people.
#[must_use]
pub fn store_error(doing: impl Into<String>, error: &Error) -> StoreError {
    if let Some(answer) = error.as_db_error() {
        return StoreError::from_sqlstate(answer.code().code(), doing, &said(answer));
    }
    let fault = Fault::new(doing, chain(error));
    if error.is_closed() || broke_on_the_way(error) {
        StoreError::Unreachable(fault)
    } else {
        StoreError::Other(fault)
    }
}

/// What is told in place of the server's words.
const UNTOLD: &str = "the server's words may quote a row and are in its own log";

/// The same of a statement over rows. What a function of the application raises (class P0, or with a
/// context), and what is said of a value that does not fit (class 22), may quote a row: of those only
/// the kind is told.
#[must_use]
pub fn rows_error(doing: impl Into<String>, error: &Error) -> StoreError {
    match error.as_db_error().filter(|answer| may_quote(answer)) {
        Some(answer) => StoreError::from_sqlstate(answer.code().code(), doing, UNTOLD),
        None => store_error(doing, error),
    }
}

fn may_quote(answer: &DbError) -> bool {
    const QUOTING: [&str; 2] = ["P0", "22"];
    /// The server's own words wherever it says them: cancelled, locked, a deadlock, not serializable.
    const ITS_OWN: [&str; 4] = ["57014", "55P03", "40P01", "40001"];
    let code = answer.code().code();
    // PL/pgSQL's RAISE; other languages add a context at least.
    let raised = answer.routine() == Some("exec_stmt_raise");
    let within_a_function = answer.where_().is_some() && !ITS_OWN.contains(&code);
    raised || within_a_function || QUOTING.iter().any(|class| code.starts_with(class))
}

/// An answer that usually means the session or the schema, of a statement that succeeds without any
/// rows: a trigger or a constraint has given it, over a row.
pub(super) fn about_a_row(error: &StoreError) -> StoreError {
    let fault = error.fault();
    StoreError::Other(Fault {
        reason: format!("a trigger or a constraint refuses a row; {UNTOLD}"),
        remedy: None,
        ..fault.clone()
    })
}

/// Did the server answer so of a statement that could be about the session, and about a row as well?
pub(super) fn is_ambiguous(error: &StoreError) -> bool {
    let answered = error.fault().sqlstate.is_some();
    match error {
        StoreError::Unreachable(_)
        | StoreError::ReadOnly(_)
        | StoreError::Schema(_)
        | StoreError::Denied(_)
        | StoreError::Settings(_) => answered,
        StoreError::Retryable(_) | StoreError::TimedOut(_) | StoreError::Other(_) => false,
    }
}

/// The server's primary message and hint, without row values.
fn said(answer: &DbError) -> String {
    let message = shortened(answer.message());
    match answer.hint() {
        Some(hint) => format!("{message}. {}", shortened(hint)),
        None => message,
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The message with those of all its causes: the crate's own `Display` hides them.
#[must_use]
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

fn broke_on_the_way(error: &Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if error.is::<io::Error>() {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error("inner")]
    struct Inner;

    #[test]
    fn the_whole_chain_of_causes_is_told() {
        assert_eq!(chain(&Outer(Inner)), "outer: inner");
    }

    #[test]
    fn long_server_text_is_cut_between_characters() {
        let cut = shortened(&"é".repeat(LONGEST + 1));
        assert_eq!(cut.chars().count(), LONGEST + 1);
        assert!(cut.ends_with('…'));
        assert_eq!(shortened("short"), "short");
    }
}
