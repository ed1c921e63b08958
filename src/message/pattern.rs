//! Exchange patterns of `relay.allowed_exchanges` and `relay.optional_exchanges`.

/// Does the name match? `*` stands for any number of any characters, also none; everything
/// else stands for itself. The pattern `""` means the default exchange alone.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    // The usual one.
    if pattern == "*" {
        return true;
    }
    let mut parts = pattern.split('*');
    let Some(rest) = name.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    // Taking each part where it first occurs leaves the most for the parts after it.
    let mut rest = rest;
    for part in parts {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Is the exchange one of `relay.allowed_exchanges`?
#[must_use]
pub fn is_allowed(allowed: &[String], exchange: &str) -> bool {
    any_matches(allowed, exchange)
}

/// Does the name match any of the patterns?
pub(super) fn any_matches(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern, name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, name) in [
            ("*", ""),
            ("*", "orders"),
            ("", ""),
            ("orders", "orders"),
            ("orders.*", "orders."),
            ("orders.*", "orders.eu"),
            ("*.eu", "orders.eu"),
            ("a*b*c", "abc"),
            ("a*b*c", "a1b2b3c"),
            ("**", "x"),
            ("*é*", "caféx"),
        ] {
            assert!(matches(pattern, name), "{pattern} should match {name}");
        }
        for (pattern, name) in [
            ("", "orders"),
            ("orders", "Orders"),
            ("orders", "orders2"),
            ("orders.*", "orders"),
            ("a*a", "a"),
            ("a*bc*c", "abc"),
            ("or?ers", "orders"),
        ] {
            assert!(!matches(pattern, name), "{pattern} should not match {name}");
        }
    }

    /// The definition, written without thought for speed.
    fn by_definition(pattern: &[char], name: &[char]) -> bool {
        match pattern {
            [] => name.is_empty(),
            ['*', rest @ ..] => (0..=name.len()).any(|n| by_definition(rest, &name[n..])),
            [first, rest @ ..] => name.first() == Some(first) && by_definition(rest, &name[1..]),
        }
    }

    proptest! {
        #[test]
        fn matching_agrees_with_its_definition(pattern in "[ab*]{0,8}", name in "[ab]{0,10}") {
            let (p, n): (Vec<_>, Vec<_>) = (pattern.chars().collect(), name.chars().collect());
            prop_assert_eq!(matches(&pattern, &name), by_definition(&p, &n));
        }
    }
}
