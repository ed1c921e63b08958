//! The shape of the sources: which module may know which, what stays pure, how long a file
//! gets. Reads the sources as text; what a macro generates is not seen.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Lines of a file at the most, its inline tests not counted.
const LONGEST: usize = 400;

/// Each part of the crate and the parts it may name. A part is the longest name here that a
/// module's path begins with, so that a new module has to be given its place.
const MAY_NAME: [(&str, &[&str]); 18] = [
    ("lib", &[]),
    ("main", &["commands", "ops"]),
    ("runtime", &[]),
    ("message", &[]),
    ("config", &["runtime"]),
    ("broker::outcome", &["message"]),
    ("broker::memory", &["broker", "broker::outcome", "message"]),
    (
        "broker",
        &["broker::outcome", "broker::memory", "message", "config"],
    ),
    ("relay::rules", &["message", "broker::outcome", "runtime"]),
    ("store::memory", &["store", "message", "relay::rules"]),
    (
        "store::postgres",
        &["store", "message", "relay::rules", "config", "runtime"],
    ),
    (
        "store",
        &[
            "store::memory",
            "store::postgres",
            "message",
            "relay::rules",
        ],
    ),
    (
        "relay::engine",
        &[
            "relay::rules",
            "broker",
            "broker::outcome",
            "store",
            "message",
            "runtime",
        ],
    ),
    ("relay", &["relay::rules", "relay::engine"]),
    ("outbox", &["store", "store::postgres"]),
    (
        "inbox",
        &[
            "broker",
            "broker::outcome",
            "store",
            "store::postgres",
            "config",
            "runtime",
        ],
    ),
    (
        "ops",
        &[
            "relay",
            "relay::rules",
            "relay::engine",
            "store",
            "message",
            "runtime",
            "config",
        ],
    ),
    (
        "commands",
        &[
            "ops",
            "relay",
            "relay::rules",
            "relay::engine",
            "broker",
            "broker::outcome",
            "store",
            "store::postgres",
            "message",
            "config",
            "runtime",
        ],
    ),
];

/// What `crate::broker` re-exports from `broker::outcome`.
const OUTCOMES: [&str; 6] = [
    "BrokerError",
    "ChannelLost",
    "Confirmed",
    "LinkState",
    "LossCause",
    "Outcome",
];

/// Parts that decide and do nothing else.
const PURE: [&str; 2] = ["message", "relay::rules"];

/// Words that pure code has no use for.
const IMPURE: [&str; 17] = [
    "async",
    "await",
    "tokio",
    "tokio_util",
    "lapin",
    "tokio_postgres",
    "tracing",
    "rustix",
    "socket2",
    "Clock",
    "fs",
    "net",
    "io",
    "env",
    "thread",
    "process",
    "println",
];

/// A source file without its inline tests.
struct Source {
    path: PathBuf,
    /// Module path without `crate`, such as `relay::rules::gate`.
    module: String,
    text: String,
}

/// Every file that is part of the program, test modules left out.
fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&root, &mut files);
    let all: Vec<(String, PathBuf, String)> = files
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).expect("a readable source");
            (
                module_of(path.strip_prefix(&root).expect("below src")),
                path,
                text,
            )
        })
        .collect();
    let tests: BTreeSet<String> = all
        .iter()
        .flat_map(|(module, _, text)| test_modules(module, text))
        .collect();
    let only_tests = |module: &str| {
        tests
            .iter()
            .any(|test| module == test || module.starts_with(&format!("{test}::")))
    };
    all.into_iter()
        .filter(|(module, ..)| !only_tests(module))
        .map(|(module, path, text)| Source {
            path,
            module,
            text: without_inline_tests(&text),
        })
        .collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn module_of(relative: &Path) -> String {
    let path = relative.with_extension("");
    let mut names: Vec<_> = path
        .iter()
        .map(|name| name.to_str().expect("UTF-8").to_owned())
        .collect();
    if names.last().is_some_and(|name| name == "mod") {
        names.pop();
    }
    names.join("::")
}

/// Modules in files of their own that exist for tests only.
fn test_modules(module: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines
        .windows(2)
        .filter(|pair| pair[0] == "#[cfg(test)]")
        .filter_map(|pair| {
            let name = pair[1].rsplit_once("mod ")?.1.strip_suffix(';')?;
            Some(child(module, name))
        })
        .collect()
}

fn child(module: &str, name: &str) -> String {
    match module {
        "" | "lib" | "main" => name.to_owned(),
        _ => format!("{module}::{name}"),
    }
}

/// Inline tests stand at the end of their file.
fn without_inline_tests(text: &str) -> String {
    let end = text.find("\n#[cfg(test)]\nmod ").filter(|start| {
        let rest = &text[start + "\n#[cfg(test)]\n".len()..];
        rest.lines().next().is_some_and(|line| line.ends_with('{'))
    });
    text[..end.unwrap_or(text.len())].to_owned()
}

/// The code without comments and without what stands in quotation marks.
fn code(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(next) = rest.find(['/', '"', '\'']) {
        code.push_str(&rest[..next]);
        rest = &rest[next..];
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with('"') {
            string_length(rest)
        } else if rest.starts_with("'\"'") || rest.starts_with("'/'") {
            3
        } else {
            let one = rest.chars().next().map_or(0, char::len_utf8);
            code.push_str(&rest[..one]);
            one
        };
        rest = &rest[skipped..];
    }
    code.push_str(rest);
    code
}

fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (place, c) in text.char_indices().skip(1) {
        match c {
            '"' if !escaped => return place + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

/// Absolute module paths that the code names, without `crate`.
fn named(source: &Source) -> BTreeSet<String> {
    let code = code(&source.text);
    let mut found = BTreeSet::new();
    for start in ["crate::", "super::"] {
        for (place, _) in code.match_indices(start) {
            let before = code[..place].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            // Not a path: `pub(in crate::broker)` says who may see, not who is seen.
            if code[..place].ends_with("pub(in ") {
                continue;
            }
            expand("", &code[place..], &mut |path| {
                found.insert(absolute(&source.module, path));
            });
        }
    }
    found
}

/// Calls `see` with each path of a possibly braced one, such as `crate::{a, b::{c, d}}`.
/// Returns how far it read.
fn expand(prefix: &str, text: &str, see: &mut impl FnMut(&str)) -> usize {
    let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let end = text.find(|c| !is_name(c)).unwrap_or(text.len());
    let path = format!("{prefix}{}", &text[..end]);
    if !text[end..].starts_with('{') || !path.ends_with("::") {
        see(path.trim_end_matches(':'));
        return end;
    }
    let mut place = end + 1;
    loop {
        let rest = &text[place..];
        let skipped = rest.find(|c: char| !c.is_whitespace() && c != ',');
        place += skipped.unwrap_or(rest.len());
        if text[place..].is_empty() || text[place..].starts_with('}') {
            return place + 1;
        }
        let read = expand(&path, &text[place..], see);
        // `*` and `as` name nothing further.
        place += read.max(1);
    }
}

fn absolute(module: &str, path: &str) -> String {
    let mut names: Vec<&str> = match module {
        "lib" | "main" => Vec::new(),
        _ => module.split("::").collect(),
    };
    for name in path.split("::") {
        match name {
            "crate" => names.clear(),
            "super" => {
                names.pop();
            }
            _ => names.push(name),
        }
    }
    names.join("::")
}

fn part_of(path: &str) -> Option<&'static str> {
    let parts = MAY_NAME.iter().map(|(part, _)| *part);
    parts
        .filter(|part| path == *part || path.starts_with(&format!("{part}::")))
        .max_by_key(|part| part.len())
}

/// The part that a path leads to, re-exports followed.
fn target_of(path: &str) -> Option<&'static str> {
    match path.strip_prefix("broker::") {
        Some(name) if OUTCOMES.contains(&name) => Some("broker::outcome"),
        Some(_) | None => part_of(path),
    }
}

#[test]
fn modules_name_only_what_lies_below_them() {
    let mut wrong = Vec::new();
    for source in sources() {
        let Some(part) = part_of(&source.module) else {
            wrong.push(format!("{}: a new part; give it its place", source.module));
            continue;
        };
        let (_, allowed) = MAY_NAME[MAY_NAME
            .iter()
            .position(|(name, _)| *name == part)
            .expect("a known part")];
        for path in named(&source) {
            let Some(target) = target_of(&path) else {
                continue;
            };
            if target != part && !allowed.contains(&target) {
                wrong.push(format!("{} names {path}", source.module));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_binary_names_only_commands_telemetry_and_what_runs_them() {
    let sources = sources();
    let main = sources.iter().find(|source| source.module == "main");
    let code = code(&main.expect("src/main.rs").text);
    let known = ["commands::", "ops::", "runtime::executor"];
    let foreign = code
        .split("outbox_relay::")
        .skip(1)
        .filter(|rest| !known.iter().any(|known| rest.starts_with(known)))
        .count();
    assert_eq!(foreign, 0);
    assert!(code.contains("outbox_relay::commands"), "it is read at all");
}

#[test]
fn rules_and_messages_are_pure() {
    let mut wrong = Vec::new();
    let mut looked_at = 0;
    for source in sources() {
        if !PURE.iter().any(|pure| source.module.starts_with(pure)) {
            continue;
        }
        looked_at += 1;
        let code = code(&source.text);
        let words: BTreeSet<&str> = code
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .collect();
        let impure = IMPURE.iter().filter(|word| words.contains(**word));
        wrong.extend(impure.map(|word| format!("{}: {word}", source.module)));
        for clock in ["Instant", "::now("] {
            if code.contains(clock) {
                wrong.push(format!("{}: {clock}", source.module));
            }
        }
    }
    assert!(looked_at > 10, "only {looked_at} files were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_file_is_too_long() {
    let long: Vec<String> = sources()
        .iter()
        .map(|source| (source, source.text.lines().count()))
        .filter(|(_, lines)| *lines > LONGEST)
        .map(|(source, lines)| format!("{}: {lines} lines", source.path.display()))
        .collect();
    assert!(
        long.is_empty(),
        "longer than {LONGEST}:\n{}",
        long.join("\n")
    );
}

#[test]
fn every_file_says_what_it_is() {
    let silent: Vec<String> = sources()
        .iter()
        .filter(|source| !source.text.starts_with("//!"))
        .map(|source| source.path.display().to_string())
        .collect();
    assert!(
        silent.is_empty(),
        "no //! at the top of:\n{}",
        silent.join("\n")
    );
}

#[test]
fn paths_are_read_as_they_are_written() {
    let source = |module: &str, text: &str| Source {
        path: PathBuf::new(),
        module: module.to_owned(),
        text: text.to_owned(),
    };
    let text = "use crate::{a, b::{c, d}};\n// use crate::comment;\nlet s = \"crate::text\";\n\
                pub(in crate::hidden) fn f(x: super::super::e::F) { crate::g::h() }\n";
    let named = named(&source("x::y::z", text));
    let expected = ["a", "b::c", "b::d", "g::h", "x::e::F"].map(str::to_owned);
    assert_eq!(named, BTreeSet::from(expected));
    assert_eq!(
        test_modules("x", "#[cfg(test)]\nmod sim;\nmod y;"),
        ["x::sim"]
    );
    assert_eq!(without_inline_tests("a\n#[cfg(test)]\nmod tests {\n}"), "a");
    assert_eq!(target_of("broker::Outcome"), Some("broker::outcome"));
    assert_eq!(target_of("broker::AmqpBroker"), Some("broker"));
}
