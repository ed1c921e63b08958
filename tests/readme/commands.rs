//! Every command that is written down anywhere is one that the program takes: in blocks and in
//! the text of pages, in files to deploy, and in the examples of the help itself.
//!
//! It is only parsed here. Whether it does what the page says, the marked blocks show.

use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use outbox_relay::commands::Arguments;

use crate::page::blocks;

const PROGRAM: &str = "outbox-relay";
/// Folders and files in which commands are written down.
const PLACES: [&str; 6] = [
    "README.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "docs",
    "deploy",
    "config",
];

fn files(path: PathBuf, found: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(&path).expect("a folder") {
            files(entry.expect("an entry").path(), found);
        }
    } else if path
        .file_name()
        .is_some_and(|name| name != "package-lock.json")
    {
        found.push(path);
    }
}

/// A command line as it was written, and where.
struct Written {
    place: String,
    line: String,
}

/// Commands between backticks, which may go over the end of a line (and over a comment's `#`).
fn spans(place: &str, text: &str) -> Vec<Written> {
    let unmarked = text
        .lines()
        .map(|line| line.trim_start().trim_start_matches(['#', '*']));
    let text = unmarked.collect::<Vec<_>>().join(" ");
    let opening = format!("`{PROGRAM} ");
    let starts = text.match_indices(&opening).map(|(at, _)| at + 1);
    let ends = starts.filter_map(|at| text[at..].split_once('`'));
    let written = ends.map(|(line, _)| Written {
        place: place.to_owned(),
        line: line.to_owned(),
    });
    written.collect()
}

/// Commands of a script: one for each part of a pipe that runs the program.
fn script(place: &str, text: &str) -> Vec<Written> {
    let pieces = text.split("\\\n").map(str::trim);
    let joined = pieces.collect::<Vec<_>>().join(" ");
    // What a shell reads from a process is a command, too.
    let joined = joined.replace("<(", "| ").replace("bash)", "bash");
    let lines = joined.lines().filter(|line| line.contains(PROGRAM));
    let written = lines.map(|line| Written {
        place: place.to_owned(),
        line: line.to_owned(),
    });
    written.collect()
}

/// The arguments of each run of the program; none where it is only named, as in a path.
fn runs(line: &str) -> Vec<Vec<String>> {
    let words = shlex::split(line).unwrap_or_else(|| panic!("not closed: {line}"));
    let parts = words.split(|word| ["|", "&&", ";"].contains(&word.as_str()));
    let arguments = parts.filter_map(|part| {
        let to = part.iter().position(|word| word.starts_with('>'));
        let part = &part[..to.unwrap_or(part.len())];
        let set = |word: &&String| word.starts_with(|c: char| c.is_ascii_uppercase());
        let mut words: Vec<_> = part.iter().skip_while(set).cloned().collect();
        if words.first()? == "xargs" {
            words.remove(0);
            words.retain(|word| word != "-r");
            words.push("1".to_owned());
        }
        (words.first()? == PROGRAM).then_some(words)
    });
    arguments.collect()
}

/// One line for each word that `a\|b` and `[--a\|--b]` leave open.
fn alternatives(line: &str) -> Vec<String> {
    let line = line.replace("\\|", "|");
    let open = |word: &&str| word.len() > 1 && (word.starts_with('[') || word.contains('|'));
    let Some(word) = line.split(' ').find(open) else {
        return vec![line];
    };
    let choices = word.trim_matches(['[', ']']).split('|');
    choices
        .map(|choice| line.replacen(word, choice, 1))
        .collect()
}

/// What is wrong with it. In the text a command may be named without what it needs.
fn fault(arguments: &[String], whole: bool) -> Option<String> {
    let error = Arguments::try_parse_from(arguments).err()?;
    let told = [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion];
    let incomplete = [
        ErrorKind::MissingRequiredArgument,
        ErrorKind::MissingSubcommand,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
    ];
    let kind = error.kind();
    let fine = told.contains(&kind) || (!whole && incomplete.contains(&kind));
    (!fine).then(|| error.to_string())
}

fn refused(written: &[Written], whole: bool) -> Vec<String> {
    let mut faults = Vec::new();
    for Written { place, line } in written {
        let lines = if whole {
            vec![line.clone()]
        } else {
            alternatives(line)
        };
        for line in lines {
            // Something is left to the reader.
            let line = line.split(" …").next().unwrap_or_default();
            for arguments in runs(line) {
                let fault = fault(&arguments, whole);
                faults.extend(fault.map(|fault| format!("{place}: {line}\n{fault}")));
            }
        }
    }
    faults
}

fn written_in_blocks() -> Vec<Written> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut written = Vec::new();
    let mut pages = Vec::new();
    for place in PLACES {
        files(root.join(place), &mut pages);
    }
    for page in pages
        .iter()
        .filter(|page| page.extension().is_some_and(|end| end == "md"))
    {
        let page = page.strip_prefix(root).expect("of this repository");
        for block in blocks(page.to_str().expect("UTF-8")) {
            if block.shell {
                written.extend(script(&block.place, &block.text));
            }
        }
    }
    written
}

#[test]
fn every_command_in_a_block_is_taken() {
    let written = written_in_blocks();
    assert!(written.len() > 50, "only {} were found", written.len());
    let faults = refused(&written, true);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_command_in_a_text_is_taken() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut paths, mut written) = (Vec::new(), Vec::new());
    for place in PLACES {
        files(root.join(place), &mut paths);
    }
    for path in paths {
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        written.extend(spans(&path.display().to_string(), &text));
    }
    assert!(written.len() > 50, "only {} were found", written.len());
    let faults = refused(&written, false);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The examples under the help of the program and of each command.
fn examples(command: &clap::Command, found: &mut Vec<Written>) {
    let text = command.get_after_help().map(ToString::to_string);
    let text = text.unwrap_or_default();
    found.extend(script(command.get_name(), &text));
    for command in command.get_subcommands() {
        examples(command, found);
    }
}

#[test]
fn every_example_of_the_help_is_taken() {
    let mut written = Vec::new();
    examples(&Arguments::command(), &mut written);
    assert!(written.len() > 30, "only {} were found", written.len());
    // Two descriptions stand beside their examples, behind more than one blank.
    let examples = written.iter_mut().filter(|one| one.line.starts_with("  "));
    let bare: Vec<_> = examples
        .map(|one| Written {
            place: one.place.clone(),
            line: one
                .line
                .trim_start()
                .split("   ")
                .next()
                .unwrap_or_default()
                .to_owned(),
        })
        .collect();
    let faults = refused(&bare, true);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_command_that_there_is_not_is_found_wherever_it_stands() {
    let place = "page";
    let all = |written: Vec<Written>, whole| refused(&written, whole).len();
    let text = "in `outbox-relay\nstatsu` and `outbox-relay quarantine list\\|shwo`, `outbox-relay status`";
    assert_eq!(all(spans(place, text), false), 2);
    let text = "DATABASE_URL='a b' outbox-relay status --jsn > file # words\n\
                psql -c 'x' | xargs outbox-relay explian && outbox-relay status\n";
    assert_eq!(all(script(place, text), true), 2);
}
