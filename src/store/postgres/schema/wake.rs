//! Names of the wake-up gate, two advisory-lock keys and a notification channel, and the key that
//! keeps migrations apart.
//!
//! All follow from the names of schema and relation alone, never from an OID, so that gate
//! and relay still agree after a dump and restore. The gate holds them as constants: hashing
//! at each insert would be a tax on the application.

/// Key of the advisory lock that a sleeping relay holds exclusively and that a row tries
/// shared. Advisory locks are local to a database.
///
/// FNV-1a with 64 bits over `outbox-relay wake`, U+0000, schema, U+0000, relation (UTF-8), read as a
/// signed integer. A contract: relays of different versions share one gate.
#[must_use]
pub fn wake_key(schema: &str, relation: &str) -> i64 {
    fnv1a(&["outbox-relay wake", schema, relation])
}

/// Key of the advisory lock that a relay holds shared while it sleeps beside another one. Made
/// like [`wake_key`] of `outbox-relay beside`.
#[must_use]
pub fn beside_key(schema: &str, relation: &str) -> i64 {
    fnv1a(&["outbox-relay beside", schema, relation])
}

/// Key of the advisory lock under which the schema is changed by one process at a time. Made
/// like [`wake_key`] of `outbox-relay migrate` and the schema.
#[must_use]
pub fn migrate_key(schema: &str) -> i64 {
    fnv1a(&["outbox-relay migrate", schema])
}

fn fnv1a(parts: &[&str]) -> i64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(PRIME);
    parts
        .join("\0")
        .bytes()
        .fold(OFFSET_BASIS, step)
        .cast_signed()
}

/// Channel that a sleeping relay listens on: an identifier that needs no quotes.
#[must_use]
pub fn wake_channel(schema: &str, relation: &str) -> String {
    format!("outbox_wake_{:016x}", wake_key(schema, relation))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed independently of this program.
    const WAKE_OUTBOX_MESSAGE: i64 = 8_782_946_471_908_019_418;

    #[test]
    fn key_and_channel_never_change_between_versions() {
        assert_eq!(wake_key("outbox", "message"), WAKE_OUTBOX_MESSAGE);
        assert_eq!(
            wake_channel("outbox", "message"),
            format!("outbox_wake_{WAKE_OUTBOX_MESSAGE:016x}")
        );
    }

    #[test]
    fn names_that_look_alike_when_joined_have_different_keys() {
        assert_ne!(wake_key("a.b", "c"), wake_key("a", "b.c"));
        assert_ne!(wake_key("ab", "c"), wake_key("a", "bc"));
    }

    #[test]
    fn a_channel_fits_an_identifier_whatever_the_names() {
        assert_eq!(wake_channel(&"x".repeat(63), "we\"ird").len(), 28);
    }
}
