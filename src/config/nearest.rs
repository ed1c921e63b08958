//! Did you mean …? The known word that resembles what was written.

/// The candidate most like `word`, if any is like it at all.
pub(crate) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let word = word.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(&word, candidate), candidate))
        .filter(|(likeness, candidate)| {
            let slips = if candidate.len() < 5 { 1 } else { 2 };
            *likeness > 0.85 || strsim::damerau_levenshtein(&word, candidate) <= slips
        })
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// `a, b or c`.
pub(super) fn any_of(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [only] => only.clone(),
        [many @ .., last] => format!("{} or {last}", many.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 6] = ["batch_size", "channels", "lease", "user", "url", "host"];

    #[test]
    fn a_slip_finds_its_word() {
        for (slip, word) in [
            ("batchsize", "batch_size"),
            ("batch_sizes", "batch_size"),
            ("chanels", "channels"),
            ("Lease", "lease"),
            ("username", "user"),
            ("hots", "host"),
        ] {
            assert_eq!(nearest(slip, KEYS), Some(word), "{slip}");
        }
    }

    #[test]
    fn a_strange_word_finds_nothing() {
        for word in ["frobnicate", "foo", "", "é"] {
            assert_eq!(nearest(word, KEYS), None, "{word}");
        }
    }

    #[test]
    fn choices_are_listed_as_in_a_sentence() {
        let words: Vec<String> = ["a", "b", "c"].map(str::to_owned).to_vec();
        assert_eq!(any_of(&words), "a, b or c");
        assert_eq!(any_of(&words[..2]), "a or b");
        assert_eq!(any_of(&words[..1]), "a");
    }
}
