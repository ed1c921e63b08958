//! Reads the YAML files below `deploy`, and finds what they say of our program.

use std::path::{Path, PathBuf};

use yaml_rust2::{Yaml, YamlLoader};

/// Ours is the image with this name, whatever its tag.
const IMAGE: &str = "outbox-relay:";

/// A container that runs our program, with what its pod says.
#[derive(Debug)]
pub struct Container {
    /// The file, for failure messages.
    pub place: String,
    pub yaml: Yaml,
    pub pod: Yaml,
}

impl Container {
    /// Its own security setting, else the pod's.
    pub fn security(&self, key: &str) -> &Yaml {
        let own = &self.yaml["securityContext"][key];
        if own.is_badvalue() {
            &self.pod["securityContext"][key]
        } else {
            own
        }
    }

    /// Names and values of its environment.
    pub fn environment(&self) -> Vec<(String, String)> {
        let Some(all) = self.yaml["env"].as_vec() else {
            return Vec::new();
        };
        let pair = |one: &Yaml| {
            let value = one["value"].as_str().expect("a value, as text");
            (text(&one["name"]).to_owned(), value.to_owned())
        };
        all.iter().map(pair).collect()
    }

    /// What follows the program's name.
    pub fn arguments(&self) -> Vec<&str> {
        let all = self.yaml["args"].as_vec().expect("args");
        all.iter().map(text).collect()
    }
}

/// Text that must be there.
pub fn text(yaml: &Yaml) -> &str {
    yaml.as_str().unwrap_or_else(|| panic!("no text: {yaml:?}"))
}

/// A file below `deploy`.
pub fn read(file: &str) -> String {
    let path = folder().join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The documents of a file below `deploy`.
pub fn documents(file: &str) -> Vec<Yaml> {
    YamlLoader::load_from_str(&read(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Every Kubernetes file.
pub fn kubernetes() -> Vec<String> {
    let entries = std::fs::read_dir(folder().join("kubernetes")).expect("a folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let names = names.map(|name| name.into_string().expect("UTF-8"));
    names
        .filter(|name| Path::new(name).extension().is_some_and(|e| e == "yaml"))
        .map(|name| format!("kubernetes/{name}"))
        .collect()
}

/// The containers of our image in a file.
///
/// # Panics
/// If there is none.
pub fn containers(file: &str) -> Vec<Container> {
    let mut found = Vec::new();
    for document in documents(file) {
        let pod = &document["spec"]["template"]["spec"];
        for kind in ["initContainers", "containers"] {
            let all = pod[kind].as_vec().map(Vec::as_slice).unwrap_or_default();
            let ours = all.iter().filter(|c| text(&c["image"]).starts_with(IMAGE));
            found.extend(ours.map(|yaml| Container {
                place: file.to_owned(),
                yaml: yaml.clone(),
                pod: pod.clone(),
            }));
        }
    }
    assert!(!found.is_empty(), "{file}: no container of ours");
    found
}

/// The number in `208Mi`, `208m` or `208M`.
pub fn mebibytes(size: &str) -> u64 {
    let digits = size.trim_end_matches(|c: char| c.is_alphabetic());
    digits.parse().unwrap_or_else(|_| panic!("no size: {size}"))
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}
