//! Quoting of names and texts that become part of SQL, and the pair of names that says which
//! outbox is meant.
//!
//! Values travel as parameters; this is for what cannot be one: identifiers, and the literals
//! of SQL that is printed for other tools. PostgreSQL manual, "Lexical Structure".

use std::fmt;

/// Bytes of an identifier that PostgreSQL keeps (NAMEDATALEN - 1).
const LONGEST: usize = 63;

/// Why a name cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// `""` is no identifier.
    #[error("a name is empty")]
    Empty,
    /// PostgreSQL would cut it silently, and it would name something else.
    #[error("the name {0:?} has {1} bytes, PostgreSQL keeps 63")]
    TooLong(String, usize),
    /// U+0000 cannot be stored by PostgreSQL.
    #[error("the name {0:?} contains the character U+0000")]
    Nul(String),
}

/// Quotes an identifier, always: `we"ird` becomes `"we""ird"`.
///
/// # Errors
/// [`NameError`] if PostgreSQL could not take the name as it is.
pub fn quote_ident(name: &str) -> Result<String, NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name.contains('\0') {
        return Err(NameError::Nul(name.to_owned()));
    }
    if name.len() > LONGEST {
        return Err(NameError::TooLong(name.to_owned(), name.len()));
    }
    Ok(format!("\"{}\"", name.replace('"', "\"\"")))
}

/// Quotes a text as an SQL literal that means the same whatever `standard_conforming_strings`
/// says. U+0000, which no literal can hold, is dropped.
#[must_use]
pub fn quote_literal(text: &str) -> String {
    let text = text.replace('\0', "");
    if text.contains('\\') {
        let text = text.replace('\\', "\\\\").replace('\'', "''");
        format!("E'{text}'")
    } else {
        format!("'{}'", text.replace('\'', "''"))
    }
}

/// The outbox: a relation in a schema, both as the user wrote them, both checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outbox {
    schema: String,
    relation: String,
}

impl Outbox {
    /// Checks both names.
    ///
    /// # Errors
    /// [`NameError`] if PostgreSQL could not take one of them as it is.
    pub fn new(schema: impl Into<String>, relation: impl Into<String>) -> Result<Self, NameError> {
        let (schema, relation) = (schema.into(), relation.into());
        quote_ident(&schema)?;
        quote_ident(&relation)?;
        Ok(Self { schema, relation })
    }

    /// The schema's name, unquoted.
    #[must_use]
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// The relation's name, unquoted.
    #[must_use]
    pub fn relation(&self) -> &str {
        &self.relation
    }

    /// `"schema"`.
    #[must_use]
    pub fn quoted_schema(&self) -> String {
        quoted(&self.schema)
    }

    /// `"schema"."relation"`.
    #[must_use]
    pub fn quoted(&self) -> String {
        format!("{}.{}", quoted(&self.schema), quoted(&self.relation))
    }

    /// `"schema"."name"`, for the other objects of the schema.
    #[must_use]
    pub fn sibling(&self, name: &str) -> String {
        format!("{}.{}", quoted(&self.schema), quoted(name))
    }
}

impl fmt::Display for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.relation)
    }
}

/// `relation_suffix`, the relation cut between characters where the whole would be too long.
#[must_use]
pub fn derived(relation: &str, suffix: &str) -> String {
    let room = LONGEST - suffix.len() - 1;
    let end = (0..=room.min(relation.len())).rfind(|&at| relation.is_char_boundary(at));
    format!("{}_{suffix}", &relation[..end.unwrap_or(0)])
}

/// Quotes a name that was checked already.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn identifiers_are_always_quoted_and_their_quotes_doubled() {
        for (name, expected) in [
            ("outbox", r#""outbox""#),
            (r#"we"ird; drop"#, r#""we""ird; drop""#),
            ("Ünïcode Größe", r#""Ünïcode Größe""#),
            ("a.b", r#""a.b""#),
            ("select", r#""select""#),
        ] {
            assert_eq!(quote_ident(name).expect("valid"), expected);
        }
    }

    #[test]
    fn names_that_postgresql_would_change_are_refused() {
        assert_eq!(quote_ident(""), Err(NameError::Empty));
        assert_eq!(quote_ident("a\0b"), Err(NameError::Nul("a\0b".into())));
        let long = "é".repeat(32);
        assert_eq!(quote_ident(&long), Err(NameError::TooLong(long, 64)));
        assert!(quote_ident(&"a".repeat(63)).is_ok());
        assert!(Outbox::new("outbox", "").is_err());
    }

    #[test]
    fn literals_hold_quotes_and_backslashes() {
        assert_eq!(quote_literal("it's"), "'it''s'");
        assert_eq!(quote_literal(r"a\'b"), r"E'a\\''b'");
    }

    #[test]
    fn derived_names_fit() {
        assert_eq!(derived("message", "xid"), "message_xid");
        let long = derived(&"é".repeat(31), "available");
        assert!(
            long.len() <= LONGEST && long.ends_with("é_available"),
            "{long}"
        );
    }

    proptest! {
        #[test]
        fn no_identifier_ends_before_its_closing_quote(name in "[^\0]{1,15}") {
            let quoted = quote_ident(&name).expect("valid");
            let inner = &quoted[1..quoted.len() - 1];
            prop_assert_eq!(inner.replace("\"\"", ""), name.replace('"', ""));
            prop_assert_eq!(inner.replace("\"\"", "\""), name);
        }
    }
}
