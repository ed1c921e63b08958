//! Durations as people write them: `5s`, `2m30s`, `7d`. A unit is required.

use std::time::Duration;

use humantime_serde::re::humantime;

const UNITS: [(u128, &str); 5] = [
    (86_400_000, "d"),
    (3_600_000, "h"),
    (60_000, "m"),
    (1_000, "s"),
    (1, "ms"),
];

/// Reads a duration.
///
/// # Errors
/// A sentence that says what to write.
pub fn parse(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    match text.parse::<f64>() {
        // Nothing is nothing in any unit; whether it is allowed, its key knows.
        Ok(0.0) => return Ok(Duration::ZERO),
        Ok(number) if number > 0.0 => {
            return Err(format!("a duration needs a unit: write {text}s"));
        }
        Ok(_) | Err(_) => {}
    }
    // humantime reads `M` as months, one keystroke away from minutes.
    if let Some(number) = text.strip_suffix('M') {
        return Err(format!(
            "the unit M is ambiguous: write {number}m for minutes"
        ));
    }
    humantime::parse_duration(text)
        .map_err(|_| "not a duration: write a number and ms, s, m, h or d, such as 5s".to_owned())
}

/// The way it would be written, to the millisecond: `2m30s`.
pub(super) fn shown(duration: Duration) -> String {
    let mut rest = duration.as_millis();
    let mut text = String::new();
    for (size, unit) in UNITS {
        if rest >= size {
            text.push_str(&format!("{}{unit}", rest / size));
            rest %= size;
        }
    }
    if text.is_empty() {
        text.push_str("0s");
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_carry_units() {
        for (text, millis) in [
            ("5s", 5_000),
            (" 250ms ", 250),
            ("2m30s", 150_000),
            ("7d", 604_800_000),
            ("1h 30min", 5_400_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn whatever_is_no_duration_is_told_what_to_write() {
        let parsed = |text| parse(text).unwrap_err();
        assert_eq!(parsed("5"), "a duration needs a unit: write 5s");
        assert_eq!(parse("0"), Ok(Duration::ZERO));
        assert!(parsed("-5").starts_with("not a duration"));
        assert_eq!(parsed("0.5"), "a duration needs a unit: write 0.5s");
        assert_eq!(
            parsed("5M"),
            "the unit M is ambiguous: write 5m for minutes"
        );
        for text in ["", "soon", "5 parsecs", "-5s", "s", "99999999999999999999d"] {
            assert_eq!(
                parsed(text),
                "not a duration: write a number and ms, s, m, h or d, such as 5s",
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back_as_the_same(millis in 0_u64..10_000_000_000_000) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(parse(&shown(duration)), Ok(duration));
        }
    }
}
