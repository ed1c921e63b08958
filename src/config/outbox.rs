//! `[outbox]`: which relation is read, and what becomes of sent rows.

use std::time::Duration;

use super::reader::{Reader, accept, not_empty, within};
use super::setting::Choice;

/// What is done to a row once it is confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnSent {
    /// `sent_at` is set; the row is removed after `retention`.
    Mark,
    /// The row is removed at once.
    Delete,
}

/// The keys of `[outbox]`.
#[derive(Clone, Debug)]
pub struct OutboxSection {
    /// `schema`.
    pub schema: String,
    /// `relation`: a table or an updatable view.
    pub relation: String,
    /// `on_sent`.
    pub on_sent: OnSent,
    /// `retention`: how long sent rows are kept.
    pub retention: Duration,
}

impl Default for OutboxSection {
    fn default() -> Self {
        Self {
            schema: "outbox".to_owned(),
            relation: "message".to_owned(),
            on_sent: OnSent::Mark,
            retention: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

impl Choice for OnSent {
    const WORDS: &'static [(&'static str, Self)] =
        &[("mark", Self::Mark), ("delete", Self::Delete)];
}

impl OutboxSection {
    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        let defaults = Self::default();
        let day = Duration::from_secs(24 * 3600);
        Self {
            schema: reader.value("outbox.schema", defaults.schema, identifier),
            relation: reader.value("outbox.relation", defaults.relation, |name| {
                identifier(name)
            }),
            on_sent: reader.value("outbox.on_sent", defaults.on_sent, accept),
            retention: reader.value("outbox.retention", defaults.retention, |given| {
                if given.is_zero() {
                    Err("to keep nothing, write on_sent = \"delete\"".to_owned())
                } else {
                    within(Duration::from_secs(60), day * 3650)(given)
                }
            }),
        }
    }
}

/// A name as PostgreSQL stores it. It is quoted wherever it is used, so any characters will do;
/// PostgreSQL would silently cut it after 63 bytes (manual, 4.1.1).
fn identifier(name: &impl AsRef<str>) -> Result<(), String> {
    let name = name.as_ref();
    not_empty(&name)?;
    if name.len() > 63 {
        return Err("must not be longer than 63 bytes".to_owned());
    }
    if name.contains('\0') {
        return Err("must not hold a zero byte".to_owned());
    }
    Ok(())
}
