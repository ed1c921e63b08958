//! Text from rows, on its way to a terminal.

/// What a message says of itself must not move the terminal's cursor, nor begin a line of its own.
pub(super) fn plain(text: &str) -> String {
    // Among them those that turn the direction of what follows (Unicode Standard Annex 9).
    let turns = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let one = |c: char| {
        if c.is_control() || turns(c) {
            '\u{fffd}'
        } else {
            c
        }
    };
    text.chars().map(one).collect()
}

/// The same, and of something long its beginning.
pub(super) fn short(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        Some((end, _)) => format!("{}…", plain(&text[..end])),
        None => plain(text),
    }
}

/// One word of a command line for a POSIX shell, whatever it holds.
pub(super) fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_moves_the_cursor_and_long_text_is_cut() {
        assert_eq!(
            plain("a\u{1b}[2J\nb é\u{202e}"),
            "a\u{fffd}[2J\u{fffd}b é\u{fffd}"
        );
        assert_eq!(
            (short("éa\nb", 3), short("éa", 2)),
            ("éa\u{fffd}…".to_owned(), "éa".to_owned())
        );
    }

    #[test]
    fn a_shell_takes_it_for_one_word() {
        for text in ["orders", "it's", "x'$(touch pwned)'", "a b\\", ""] {
            let line = format!("printf %s {}", shell_word(text));
            let said = std::process::Command::new("sh")
                .args(["-c", &line])
                .output();
            assert_eq!(said.expect("a shell").stdout, text.as_bytes(), "{line}");
        }
    }
}
