//! What a program pulls in that uses the consumer half as a library. Asks cargo; builds nothing
//! (`make lint` does, without default features).

use std::collections::BTreeSet;
use std::process::Command;

/// The crates that normal dependencies come to.
fn crates(features: &str) -> BTreeSet<String> {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--edges", "normal", "--prefix", "none"])
        .args(["--format", "{p}", "--no-default-features"])
        .args(["--features", features])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo");
    let said = String::from_utf8_lossy(&tree.stderr);
    assert!(tree.status.success(), "{said}");
    let lines = String::from_utf8(tree.stdout).expect("UTF-8");
    let name = |line: &str| line.split(' ').next().map(str::to_owned);
    lines.lines().filter_map(name).collect()
}

/// The daemon's command line, HTTP and metrics.
const DAEMONS: [&str; 13] = [
    "axum",
    "clap",
    "clap_complete",
    "comfy-table",
    "hdrhistogram",
    "http",
    "http-body-util",
    "hyper",
    "hyper-util",
    "prometheus",
    "prometheus-client",
    "sd-notify",
    "tracing-subscriber",
];

fn of_the_daemon(crates: &BTreeSet<String>) -> Vec<&'static str> {
    let mut own = DAEMONS.to_vec();
    own.retain(|name| crates.contains(*name));
    own
}

#[test]
fn a_consumer_does_not_pull_in_the_daemons_crates() {
    let consumers = crates("");
    for needed in ["lapin", "tokio-postgres"] {
        assert!(consumers.contains(needed), "{consumers:?}");
    }
    assert_eq!(of_the_daemon(&consumers), Vec::<&str>::new());
    assert_eq!(of_the_daemon(&crates("metrics")), ["prometheus-client"]);
}

/// So that the test above cannot pass for want of names.
#[test]
fn the_daemon_does() {
    let daemons = crates("daemon");
    for used in ["clap", "hyper", "prometheus-client", "tracing-subscriber"] {
        assert!(daemons.contains(used), "{used}: {daemons:?}");
    }
}
