//! The systemd unit, the Dockerfile and the Compose file.

use std::path::Path;
use std::process::Command;

use crate::manifest::{documents, mebibytes, read, text};
use crate::support::relay::program;
use crate::support::scratch::Scratch;
use crate::{GRACE, LEAST_MEMORY, assert_command, assert_known};

const UNIT: &str = "systemd/outbox-relay.service";
const PROGRAM: &str = "/usr/local/bin/outbox-relay";
const DOCKERFILE: &str = "docker/Dockerfile";

/// All values of a key of the unit.
fn unit(key: &str) -> Vec<String> {
    let unit = read(UNIT);
    let values = unit.lines().filter_map(|line| line.split_once('='));
    let values = values.filter(|(name, _)| *name == key);
    values.map(|(_, value)| value.to_owned()).collect()
}

fn one(key: &str) -> String {
    let [value] = unit(key)
        .try_into()
        .unwrap_or_else(|all| panic!("{key}: {all:?}"));
    value
}

fn seconds(key: &str) -> i64 {
    let value = one(key);
    let digits = value.strip_suffix('s').expect("seconds");
    digits.parse().expect("a number")
}

#[test]
fn the_unit_starts_and_stops_as_the_program_does() {
    assert_eq!(one("Type"), "notify");
    let start = one("ExecStart");
    let arguments = start.strip_prefix(PROGRAM).expect("our program");
    let arguments: Vec<_> = arguments.split_whitespace().collect();
    assert_eq!(arguments, ["run"]);
    assert!(seconds("TimeoutStopSec") > GRACE);
    // The engine comes round every five seconds; the feeding looks four times in a period.
    assert!(seconds("WatchdogSec") >= 10);
    assert_eq!(one("RestartPreventExitStatus"), "2 78");
    assert!(mebibytes(&one("MemoryMax")) >= LEAST_MEMORY);
}

#[test]
fn the_unit_sets_what_exists_from_credentials_that_are_loaded() {
    let environment: Vec<_> = unit("Environment")
        .iter()
        .map(|pair| pair.split_once('=').expect("name=value"))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    assert_known(UNIT, &environment);
    let loaded = unit("LoadCredential");
    let loaded: Vec<_> = loaded
        .iter()
        .filter_map(|one| one.split(':').next())
        .collect();
    for (name, value) in &environment {
        let credential = value.strip_prefix("%d/").expect("a credential");
        assert!(loaded.contains(&credential), "{name}");
    }
}

#[test]
fn the_unit_gives_no_rights() {
    for key in ["CapabilityBoundingSet", "AmbientCapabilities"] {
        assert_eq!(one(key), "", "{key}");
    }
    assert_eq!(one("ProtectSystem"), "strict");
    assert_eq!(one("LimitCORE"), "0");
    for key in [
        "DynamicUser",
        "NoNewPrivileges",
        "PrivateDevices",
        "MemoryDenyWriteExecute",
    ] {
        assert_eq!(one(key), "yes", "{key}");
    }
}

/// Where systemd is installed; elsewhere there is nobody to ask.
#[test]
fn systemd_takes_the_unit() {
    let Ok(version) = Command::new("systemd-analyze").arg("--version").output() else {
        println!("systemd-analyze is not installed: the unit was not verified by it");
        return;
    };
    assert!(version.status.success());
    let folder = Scratch::new("unit");
    let file = folder.join("outbox-relay.service");
    let own = program().display().to_string();
    std::fs::write(&file, read(UNIT).replace(PROGRAM, &own)).expect("own folder");
    let output = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&file)
        .output();
    let output = output.expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

/// Instructions with what follows, continued lines joined, of the last stage only.
fn last_stage() -> Vec<(String, String)> {
    let joined = read(DOCKERFILE).replace("\\\n", "");
    let lines = joined.lines().filter(|line| !line.starts_with('#'));
    let mut stage = Vec::new();
    for (instruction, rest) in lines.filter_map(|line| line.split_once(' ')) {
        if instruction == "FROM" {
            stage.clear();
        }
        stage.push((instruction.to_owned(), rest.trim().to_owned()));
    }
    stage
}

/// The words of `["a", "b"]`, which needs no shell.
fn exec_form(rest: &str) -> Vec<String> {
    let start = rest
        .find('[')
        .unwrap_or_else(|| panic!("needs a shell: {rest}"));
    serde_json::from_str(&rest[start..]).expect("a list of words")
}

#[test]
fn the_image_holds_a_program_and_no_shell_and_is_not_root() {
    let stage = last_stage();
    let rest = |name: &str| {
        let found = stage.iter().find(|(instruction, _)| instruction == name);
        found.unwrap_or_else(|| panic!("no {name}")).1.as_str()
    };
    assert_eq!(rest("FROM"), "scratch");
    let user: u32 = rest("USER")
        .split(':')
        .next()
        .and_then(|u| u.parse().ok())
        .expect("a number");
    assert!(user > 0);
    let entry = exec_form(rest("ENTRYPOINT"));
    assert_eq!(entry, [PROGRAM]);
    let health = exec_form(rest("HEALTHCHECK"));
    assert_eq!(health[0], PROGRAM);
    for words in [&health[1..], &exec_form(rest("CMD"))] {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert_command(DOCKERFILE, &words);
    }
}

#[test]
fn the_image_is_built_from_files_that_are_sent_to_the_builder() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sent = std::fs::read_to_string(root.join(".dockerignore")).expect("a file");
    let dockerfile = read(DOCKERFILE);
    let copied = dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("COPY "));
    let copied: Vec<_> = copied.filter(|rest| !rest.starts_with("--from")).collect();
    assert!(copied.len() > 2, "{copied:?}");
    for rest in copied {
        let words: Vec<_> = rest.split_whitespace().collect();
        for source in &words[..words.len() - 1] {
            assert!(root.join(source).exists(), "{source}");
            assert!(
                sent.lines().any(|line| line == format!("!{source}")),
                "{source}"
            );
        }
    }
}

#[test]
fn the_compose_file_sets_what_exists_and_gives_time_to_stop() {
    let [file] = documents("compose.yaml").try_into().expect("one document");
    let environment = file["x-relay"]["environment"].as_hash().expect("variables");
    let environment: Vec<_> = environment
        .iter()
        .map(|(name, value)| (text(name).to_owned(), text(value).to_owned()))
        .collect();
    assert_known("compose.yaml", &environment);
    let services = &file["services"];
    assert_command("compose.yaml", &[text(&services["migrate"]["command"][0])]);
    let relay = &services["relay"];
    let grace = text(&relay["stop_grace_period"]);
    let grace: i64 = grace.trim_end_matches('s').parse().expect("seconds");
    assert!(grace > GRACE);
    assert!(mebibytes(text(&relay["mem_limit"])) >= LEAST_MEMORY);
    assert_eq!(file["x-relay"]["read_only"].as_bool(), Some(true));
}
