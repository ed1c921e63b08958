//! Tests of the configuration as a whole: every mistake with the whole text that people see, and
//! which source wins.

mod addresses;
mod anything;
mod example;
mod mistakes;
mod sources;
mod strength;

use std::ffi::OsString;
use std::path::PathBuf;

use crate::config::{Assignment, Faults, Loaded, Needs, Sources};

/// A file, variables and flags; the file's path is replaced by FILE in what is reported.
pub(super) struct Given {
    dir: tempfile::TempDir,
    sources: Sources,
}

pub(super) fn given(file: &str, variables: &[(&str, &str)]) -> Given {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("relay.toml");
    std::fs::write(&path, file).unwrap();
    let variables = variables
        .iter()
        .map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let sources = Sources {
        flags: Vec::new(),
        environment: variables.collect(),
        file: Some(path),
        default_file: PathBuf::from("/nonexistent/outbox-relay.toml"),
    };
    Given { dir, sources }
}

impl Given {
    fn flag(mut self, key: &str, value: &str) -> Self {
        self.sources.flags.push(Assignment {
            flag: format!("--set {key}"),
            key: key.to_owned(),
            value: value.to_owned(),
        });
        self
    }

    pub fn load(&self, needs: Needs) -> Result<Loaded, Faults> {
        self.sources.load(needs)
    }

    fn report(&self) -> String {
        let text = self.load(Needs::default()).unwrap_err().to_string();
        self.anonymous(&text)
    }

    fn anonymous(&self, text: &str) -> String {
        let dir = format!("{}/", self.dir.path().display());
        text.replace(&format!("{dir}relay.toml"), "FILE")
            .replace(&dir, "DIR/")
    }
}

/// Each file, and the report without its beginning "configuration: FILE:".
fn assert_reports(cases: &[(&str, &str)]) {
    for (file, report) in cases {
        let intro = match report.lines().count() {
            1 => "configuration: ".to_owned(),
            faults => format!("configuration: {faults} faults\n  "),
        };
        assert_eq!(
            given(file, &[]).report(),
            format!("{intro}FILE:{report}"),
            "\n{file}"
        );
    }
}
