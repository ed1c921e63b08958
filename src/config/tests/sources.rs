//! Mistakes told by their source: file, variable, flag.

use std::ffi::OsString;
use std::path::PathBuf;

use super::{assert_reports, given};

#[test]
fn toml_that_cannot_be_read_is_reported_by_line_without_its_text() {
    assert_reports(&[
        (
            "[database]\npassword = 'canary\n",
            "2: not valid TOML: invalid literal string, expected `'`",
        ),
        (
            "[relay]\nlease = '5s'\nlease = '6s'",
            "3: not valid TOML: duplicate key",
        ),
    ]);
    let report = given("a = 1\na = 2\n[b\n", &[]).report();
    assert_eq!(
        report,
        "configuration: 2 faults\n  FILE:2: not valid TOML: duplicate key\n  FILE:3: not valid \
         TOML: unclosed table, expected `]`"
    );
}

#[test]
fn a_file_that_cannot_be_read_is_named_with_who_named_it() {
    let mut missing = given("", &[("OUTBOX_RELAY_CONFIG", "/nonexistent/relay.toml")]);
    missing.sources.file = None;
    assert_eq!(
        missing.report(),
        "configuration: OUTBOX_RELAY_CONFIG: cannot read the configuration file \
         /nonexistent/relay.toml: No such file or directory (os error 2)"
    );
    missing.sources.file = Some(PathBuf::from("/nonexistent/other.toml"));
    assert_eq!(
        missing.report(),
        "configuration: --config: cannot read the configuration file /nonexistent/other.toml: No \
         such file or directory (os error 2)"
    );
}

#[test]
fn a_variable_is_named_as_it_was_written() {
    for (name, value, report) in [
        (
            "OUTBOX_RELAY__RELAY__BATCHSIZE",
            "5",
            "relay.batchsize: unknown key; did you mean relay.batch_size?",
        ),
        (
            "OUTBOX_RELAY__RELAY_BATCH_SIZE",
            "5",
            "relay_batch_size: unknown key; write OUTBOX_RELAY__RELAY__BATCH_SIZE",
        ),
        (
            "OUTBOX_RELAY_DATABASE_PASSWORD",
            "canary",
            "database.password: not read: section and key are set off by two underscores each; \
             write OUTBOX_RELAY__DATABASE__PASSWORD",
        ),
        (
            "OUTBOX_RELAY__RELAY__BATCH_SIZE",
            "many",
            "relay.batch_size: \"many\": must be a whole number",
        ),
        (
            "OUTBOX_RELAY__RELAY__BATCH_SIZE",
            "-5",
            "relay.batch_size: \"-5\": must not be negative",
        ),
        (
            "OUTBOX_RELAY__RELAY__LEASE",
            "5",
            "relay.lease: \"5\": a duration needs a unit: write 5s",
        ),
        (
            "OUTBOX_RELAY__RELAY__MANDATORY",
            "1",
            "relay.mandatory: \"1\": must be true or false",
        ),
        (
            "OUTBOX_RELAY__DATABASE__PASSWORD",
            "",
            "database.password: is empty",
        ),
    ] {
        let text = given("", &[(name, value)]).report();
        assert_eq!(text, format!("configuration: {name}: {report}"));
    }
}

#[test]
fn a_variable_that_is_not_utf8_is_named_without_its_value() {
    use std::os::unix::ffi::OsStringExt;
    let mut odd = given("", &[]);
    let name = OsString::from("OUTBOX_RELAY__DATABASE__PASSWORD");
    let value = OsString::from_vec(b"canary\xff".to_vec());
    odd.sources.environment.push((name, value));
    assert_eq!(
        odd.report(),
        "configuration: OUTBOX_RELAY__DATABASE__PASSWORD: database.password: not valid UTF-8"
    );
}

#[test]
fn a_secret_on_the_command_line_is_refused() {
    assert_eq!(
        given("", &[]).flag("broker.password", "canary").report(),
        "configuration: --set broker.password: broker.password: a command line is visible to every \
         user of the machine: use the environment, or the key's _file twin"
    );
}

#[test]
fn faults_of_all_sources_come_together() {
    let many = given(
        "[relay]\nlease = 5\nfoo = 1\n[retry]\njitter = 2",
        &[
            ("OUTBOX_RELAY__LOG__LEVEL", "loud"),
            ("AMQP_URL", "nats://x"),
        ],
    )
    .flag("relay.batch_size", "none")
    .report();
    assert_eq!(
        many.lines()
            .map(|line| line.split(": ").take(2).collect::<Vec<_>>().join(": "))
            .collect::<Vec<_>>(),
        [
            "configuration: 6 faults",
            "  FILE:2: relay.lease",
            "  FILE:3: relay.foo",
            "  FILE:5: retry.jitter",
            "  AMQP_URL: broker.url",
            "  OUTBOX_RELAY__LOG__LEVEL: log.level",
            "  --set relay.batch_size: relay.batch_size",
        ]
    );
}

#[test]
fn variables_that_kubernetes_makes_of_a_service_are_none_of_ours() {
    let service = given(
        "",
        &[
            ("OUTBOX_RELAY_SERVICE_HOST", "10.0.0.1"),
            ("OUTBOX_RELAY_SERVICE_PORT_HTTP", "9845"),
            ("OUTBOX_RELAY_PORT", "tcp://10.0.0.1:9845"),
            ("OUTBOX_RELAY_PORT_9845_TCP_ADDR", "10.0.0.1"),
            ("RELAY__BATCH_SIZE", "none"),
        ],
    );
    assert!(service.load(crate::config::Needs::default()).is_ok());
}
