//! Times for people and scripts, whatever PostgreSQL holds: also `infinity`.

use std::time::{SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The time in UTC, or the word for one that no calendar of ours reaches: beyond the year 9999, as
/// PostgreSQL's `infinity` is, or before the year 0.
fn utc(at: SystemTime) -> Result<OffsetDateTime, &'static str> {
    let (nanoseconds, beyond) = match at.duration_since(UNIX_EPOCH) {
        Ok(after) => (i128::try_from(after.as_nanos()), "infinity"),
        Err(before) => (
            i128::try_from(before.duration().as_nanos()).map(|nanoseconds| -nanoseconds),
            "-infinity",
        ),
    };
    let time = OffsetDateTime::from_unix_timestamp_nanos(nanoseconds.unwrap_or(i128::MAX));
    time.ok().filter(|time| time.year() >= 0).ok_or(beyond)
}

/// Day and time, in UTC: `2026-11-29 15:20:07`.
pub(super) fn clock(at: SystemTime) -> String {
    match utc(at) {
        Ok(at) => {
            let (hour, minute, second) = at.to_hms();
            format!("{} {hour:02}:{minute:02}:{second:02}", at.date())
        }
        Err(beyond) => beyond.to_owned(),
    }
}

/// RFC 3339, in UTC.
pub(super) fn time_of(at: SystemTime) -> String {
    match utc(at) {
        Ok(at) => at.format(&Rfc3339).unwrap_or_default(),
        Err(beyond) => beyond.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_time_that_a_row_can_hold_is_told() {
        let day = Duration::from_secs(86_400);
        assert_eq!(clock(UNIX_EPOCH + day), "1970-01-02 00:00:00");
        assert_eq!(time_of(UNIX_EPOCH - day), "1969-12-31T00:00:00Z");
        for (at, told) in [
            (UNIX_EPOCH + day * 365 * 290_000, "infinity"),
            (UNIX_EPOCH - day * 365 * 6_000, "-infinity"),
        ] {
            assert_eq!((clock(at), time_of(at)), (told.to_owned(), told.to_owned()));
        }
    }
}
