//! Compares a column with what it must be like. Pure, like what calls it.

use super::catalog::{Column, Relation};
use super::expected::ExpectedColumn;
use super::pending::{Pending, Remedy};
use crate::store::postgres::ident::quoted;

pub(super) fn compare_column(
    table: &str,
    quoted_table: &str,
    expected: &ExpectedColumn,
    found: &Relation,
    list: &mut Vec<Pending>,
) {
    let name = expected.name;
    let quoted_name = quoted(name);
    let (problem, change) = match found.columns.get(name) {
        None => {
            let (sql_type, default) = (expected.sql_type, expected.default.unwrap_or_default());
            let not_null = if expected.not_null { "NOT NULL" } else { "" };
            let change = format!("ADD COLUMN {quoted_name} {sql_type} {not_null} {default}");
            ("missing".to_owned(), change)
        }
        Some(column) if !type_fits(expected, column) => (
            format!("{}, {} expected", column.sql_type, expected.sql_type),
            format!("ALTER COLUMN {quoted_name} TYPE {}", expected.sql_type),
        ),
        Some(column) if expected.not_null && !column.not_null => (
            "may be NULL".to_owned(),
            format!("ALTER COLUMN {quoted_name} SET NOT NULL"),
        ),
        Some(column) if expected.default.is_some() && !column.has_default => {
            let default = expected.default.unwrap_or_default();
            let change = if default.starts_with("DEFAULT") {
                "SET"
            } else {
                "ADD"
            };
            (
                "has no default".to_owned(),
                format!("ALTER COLUMN {quoted_name} {change} {default}"),
            )
        }
        Some(_) => return,
    };
    let change = change.split_whitespace().collect::<Vec<_>>().join(" ");
    list.push(Pending {
        problem: format!("column {table}.{name}: {problem}"),
        remedy: Remedy::ByHand(format!("ALTER TABLE {quoted_table} {change}")),
    });
}

/// Other tools write `varchar` where we write `text`; the relay reads both.
fn type_fits(expected: &ExpectedColumn, found: &Column) -> bool {
    found.sql_type == expected.sql_type
        || (expected.sql_type == "text" && found.sql_type.starts_with("character varying"))
}
