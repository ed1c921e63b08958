//! What `deploy` offers fits the program: it is read, and what it names is asked of the real thing.
//! Needs no servers, no cluster and no container engine.

mod kubernetes;
mod manifest;
mod observe;
mod other;
#[path = "../support/mod.rs"]
mod support;

use std::process::{Command, Output};

/// What a relay may hold in memory by default, with 40 MiB for all but bodies.
const LEAST_MEMORY: u64 = 64 + 40;
/// `relay.shutdown_grace` by default, in seconds.
const GRACE: i64 = 25;

/// Runs the program in an environment of its own.
fn program(arguments: &[&str], environment: &[(String, String)]) -> Output {
    let mut command = Command::new(support::relay::program());
    command.args(arguments).env_clear();
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.output().expect("the program runs")
}

/// Every variable of ours sets something, by the program's own word.
fn assert_known(place: &str, environment: &[(String, String)]) {
    assert!(!environment.is_empty(), "{place}: nothing is set");
    let output = program(&["config"], environment);
    let told = String::from_utf8_lossy(&output.stdout);
    let faults = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{place}: {faults}");
    for (name, _) in environment {
        assert!(told.contains(name), "{place}: {name} sets nothing\n{told}");
    }
}

/// The program takes these arguments.
fn assert_command(place: &str, arguments: &[&str]) {
    let mut asked = arguments.to_vec();
    asked.push("--help");
    let output = program(&asked, &[]);
    assert!(output.status.success(), "{place}: {arguments:?}");
}

#[test]
fn a_variable_that_is_not_known_would_be_seen() {
    let unknown = [("OUTBOX_RELAY__HTTP__LISTN".to_owned(), "[::]:1".to_owned())];
    assert!(!program(&["config"], &unknown).status.success());
    assert!(
        !program(&["no-such-command", "--help"], &[])
            .status
            .success()
    );
}
