//! A number of bytes with a unit: `64MiB`.

use std::fmt;

/// A size in bytes; written with a unit, such as `64MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(u64);

impl ByteSize {
    /// So many bytes.
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// So many times 1,048,576 bytes.
    #[must_use]
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib.saturating_mul(1 << 20))
    }

    /// The number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Reads a size; the unit's case does not matter.
    ///
    /// # Errors
    /// A sentence that says what to write.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = text[digits.len()..].trim().to_ascii_lowercase();
        let number: u64 = digits.parse().map_err(|_| not_a_size())?;
        let factor: u64 = match unit.as_str() {
            // Whether it is allowed, its key knows.
            "" if number == 0 => 1,
            "" => {
                return Err(format!(
                    "a size needs a unit: write {number}B, {number}KiB or {number}MiB"
                ));
            }
            "b" => 1,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "kib" => 1 << 10,
            "mib" => 1 << 20,
            "gib" => 1 << 30,
            _ => return Err(not_a_size()),
        };
        number
            .checked_mul(factor)
            .map(Self)
            .ok_or_else(|| "larger than any memory".to_owned())
    }
}

fn not_a_size() -> String {
    "not a size: write a whole number and B, KiB, MiB or GiB, such as 64MiB".to_owned()
}

/// The largest binary unit that divides it: `64MiB`, `1536B`.
impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        let fitting = units
            .into_iter()
            .find(|(shift, _)| self.0 > 0 && self.0.trailing_zeros() >= *shift);
        match fitting {
            Some((shift, unit)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_carry_units() {
        for (text, bytes) in [
            ("64MiB", 67_108_864),
            ("16 mib", 16_777_216),
            ("2MB", 2_000_000),
            ("10kB", 10_000),
            ("1GiB", 1_073_741_824),
            ("7B", 7),
        ] {
            assert_eq!(ByteSize::parse(text).map(ByteSize::bytes), Ok(bytes));
        }
    }

    #[test]
    fn whatever_is_no_size_is_told_what_to_write() {
        let parsed = |text| ByteSize::parse(text).unwrap_err();
        assert_eq!(
            parsed("64"),
            "a size needs a unit: write 64B, 64KiB or 64MiB"
        );
        assert_eq!(parsed("99999999999GiB"), "larger than any memory");
        for text in ["", "MiB", "64M", "-1MiB", "1.5MiB", "64 miles", "64é"] {
            assert_eq!(
                parsed(text),
                "not a size: write a whole number and B, KiB, MiB or GiB, such as 64MiB",
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back_as_the_same(bytes in any::<u64>()) {
            let size = ByteSize::from_bytes(bytes);
            prop_assert_eq!(ByteSize::parse(&size.to_string()), Ok(size));
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = ByteSize::parse(&text);
        }
    }
}
