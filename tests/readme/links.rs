//! Links from a page to files and headings of this repository lead somewhere.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The Markdown pages at the root, in `docs` and in `deploy`.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = Vec::new();
    for folder in [root.to_owned(), root.join("docs"), root.join("deploy")] {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Text outside fenced blocks.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let mut kept = String::new();
    for line in text.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// As GitHub and GitLab make them: lower case, punctuation dropped, a dash for a space.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title
                .chars()
                .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

fn targets(text: &str) -> impl Iterator<Item = &str> {
    let ends = text.split("](").skip(1);
    ends.filter_map(|end| end.split_once(')').map(|(target, _)| target))
}

#[test]
fn links_lead_to_files_and_headings_that_exist() {
    let (mut seen, mut dead) = (0, Vec::new());
    for page in pages() {
        let text = prose(&read(&page));
        for target in targets(&text).filter(|target| !target.contains("://")) {
            seen += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = match file {
                "" => page.clone(),
                file => page.parent().expect("a folder").join(file),
            };
            let leads = path.exists()
                && (anchor.is_empty() || anchors(&prose(&read(&path))).contains(anchor));
            if !leads {
                dead.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(seen > 10, "only {seen} links were found");
    assert!(dead.is_empty(), "{dead:#?}");
}
