//! Fenced blocks of a Markdown page, and what is to be done with each.

use std::path::Path;

/// What a test does with a block, said by the words after its opening fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// `sh run`: a shell script that must succeed.
    Script,
    /// `sql run`: statements that must succeed.
    Statements,
    /// `sh daemon`: the relay, which goes on until the end of the page.
    Daemon,
    /// `text output`: lines that the script before must have printed.
    Output,
    /// Anything else is for the reader alone.
    Unmarked,
}

/// A fenced block.
#[derive(Debug)]
pub struct Block {
    pub mark: Mark,
    /// Its language is `sh`, marked or not.
    pub shell: bool,
    /// `README.md:42`, for failure messages.
    pub place: String,
    pub text: String,
}

/// Reads a page of this repository.
///
/// # Panics
/// If it is not there, a fence is not closed, or a mark is misspelt.
pub fn blocks(page: &str) -> Vec<Block> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{page}: {error}"));
    parse(page, &text)
}

fn parse(page: &str, text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let place = format!("{page}:{number}");
        match (line.strip_prefix("```"), open.take()) {
            (Some(_), Some(block)) => blocks.push(block),
            (Some(words), None) => {
                open = Some(Block {
                    mark: mark(words, &place),
                    shell: words.split(' ').next() == Some("sh"),
                    place,
                    text: String::new(),
                });
            }
            (None, Some(mut block)) => {
                block.text.push_str(line);
                block.text.push('\n');
                open = Some(block);
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{page}: the last block is not closed");
    blocks
}

fn mark(words: &str, place: &str) -> Mark {
    match words.trim() {
        "sh run" => Mark::Script,
        "sql run" => Mark::Statements,
        "sh daemon" => Mark::Daemon,
        "text output" => Mark::Output,
        other => {
            assert!(!other.contains(' '), "{place}: unknown mark {other:?}");
            Mark::Unmarked
        }
    }
}

#[test]
fn blocks_are_found_with_their_marks_and_places() {
    let text = "a\n```sh run\nb\nc\n```\n```sql\nd\n```\n";
    let [first, second] = parse("p", text).try_into().expect("two blocks");
    assert_eq!((first.mark, first.place.as_str()), (Mark::Script, "p:2"));
    assert_eq!((first.shell, second.shell), (true, false));
    assert_eq!(first.text, "b\nc\n");
    assert_eq!((second.mark, second.text.as_str()), (Mark::Unmarked, "d\n"));
}

#[test]
#[should_panic(expected = "unknown mark")]
fn a_misspelt_mark_is_seen() {
    parse("p", "```sh rum\n```\n");
}

#[test]
#[should_panic(expected = "not closed")]
fn an_open_block_is_seen() {
    parse("p", "```sh run\n");
}
