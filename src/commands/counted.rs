//! Numbers of things, in words for people: `1 row`, `2 rows`. Says nothing of estimates.

/// The number with its noun, in the plural by an `s` unless there is exactly one.
pub(super) fn counted(number: u64, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_told_in_the_singular() {
        let told = [0, 1, 2].map(|number| counted(number, "row"));
        assert_eq!(told, ["0 rows", "1 row", "2 rows"]);
    }
}
