//! Mistakes in keys and values.

use super::assert_reports;

#[test]
fn an_unknown_key_is_named_with_its_line_and_what_was_meant() {
    assert_reports(&[
        (
            "[relay]\n\nbatchh_size = 5",
            "3: relay.batchh_size: unknown key; did you mean relay.batch_size?",
        ),
        (
            "relay.batch-size = 5",
            "1: relay.batch-size: unknown key; did you mean relay.batch_size?",
        ),
        (
            "[relay]\nBatch_Size = 5",
            "2: relay.Batch_Size: unknown key; did you mean relay.batch_size?",
        ),
        (
            "[relay]\nretention = '5s'",
            "2: relay.retention: unknown key; did you mean outbox.retention?",
        ),
        (
            "[log]\nfrobnicate = 1",
            "2: log.frobnicate: unknown key; [log] has format, level",
        ),
        (
            "relay = { frobnicate = { a = 1 } }\n[log]\nlevels = 'info'",
            "1: relay.frobnicate: unknown key; [relay] has allowed_exchanges, batch_size, channels, \
             lease, mandatory, max_buffered_bytes, max_in_flight, max_message_size, \
             optional_exchanges, ordering, poll_interval, shutdown_grace\n  FILE:3: log.levels: \
             unknown key; did you mean log.level?",
        ),
    ]);
}

#[test]
fn an_unknown_section_is_reported_once() {
    assert_reports(&[
        (
            "[databse]\nurl = 'x'\nuser = 'y'",
            "2: databse.url: unknown section; did you mean [database]?",
        ),
        (
            "[general]\nretention = '5s'",
            "2: general.retention: unknown section; did you mean outbox.retention?",
        ),
        (
            "[foo]\nbar = 1",
            "2: foo.bar: unknown section; there are broker, database, http, log, outbox, \
             quarantine, relay, retry",
        ),
    ]);
}

#[test]
fn a_key_outside_its_section_is_sent_there() {
    assert_reports(&[
        (
            "batch_size = 5",
            "1: batch_size: unknown key; batch_size belongs into the section [relay]",
        ),
        (
            "foo = 5",
            "1: foo: unknown key; every key belongs into a section",
        ),
        (
            "relay = 5",
            "1: relay: is a section: write [relay] and its keys below",
        ),
        (
            "[[relay]]\nbatch_size = 5",
            "1: relay: is a section: write [relay] and its keys below",
        ),
    ]);
}

#[test]
fn a_wrong_type_is_told_what_is_right() {
    assert_reports(&[
        (
            "[relay]\nbatch_size = '5'",
            "2: relay.batch_size: \"5\": must be a whole number, without quotes",
        ),
        (
            "[relay]\nbatch_size = 1.5",
            "2: relay.batch_size: 1.5: must be a whole number",
        ),
        (
            "[relay]\nbatch_size = [5]",
            "2: relay.batch_size: must be a whole number",
        ),
        (
            "[retry]\njitter = '0.5'",
            "2: retry.jitter: \"0.5\": must be a number, without quotes",
        ),
        (
            "[relay]\nmandatory = 'yes'",
            "2: relay.mandatory: \"yes\": must be true or false, without quotes",
        ),
        (
            "[database]\nuser = 123",
            "2: database.user: 123: must be text, in quotes: write \"123\"",
        ),
        (
            "[database]\npassword = 123",
            "2: database.password: must be text, in quotes",
        ),
        (
            "[relay]\nallowed_exchanges = [5]",
            "2: relay.allowed_exchanges: in the list: must be text, in quotes: write \"5\"",
        ),
        (
            "[http]\nlisten = 9845",
            "2: http.listen: 9845: must be an IP address and a port, such as \"127.0.0.1:9845\" \
             or \"[::]:9845\"",
        ),
        (
            "[relay]\nlease = 1979-05-27",
            "2: relay.lease: must be a duration, such as \"5s\"",
        ),
    ]);
}

#[test]
fn a_value_without_its_unit_is_told_which() {
    assert_reports(&[
        (
            "[relay]\nlease = 5",
            "2: relay.lease: 5: a duration needs a unit: write \"5s\"",
        ),
        (
            "[relay]\nlease = '5'",
            "2: relay.lease: \"5\": a duration needs a unit: write 5s",
        ),
        (
            "[relay]\nlease = 'soon'",
            "2: relay.lease: \"soon\": not a duration: write a number and ms, s, m, h or d, such \
             as 5s",
        ),
        (
            "[relay]\nmax_message_size = 5",
            "2: relay.max_message_size: 5: a size needs a unit: write \"5B\", \"5KiB\" or \
             \"5MiB\"",
        ),
        (
            "[relay]\nmax_message_size = '5M'",
            "2: relay.max_message_size: \"5M\": not a size: write a whole number and B, KiB, MiB \
             or GiB, such as 64MiB",
        ),
    ]);
}

#[test]
fn a_zero_is_told_what_is_allowed_and_never_to_write_another_zero() {
    assert_reports(&[
        (
            "[database]\nstatement_timeout = 0",
            "2: database.statement_timeout: 0: must be from 100ms to 10m",
        ),
        (
            "[database]\nstatement_timeout = '0'",
            "2: database.statement_timeout: \"0\": must be from 100ms to 10m",
        ),
        (
            "[database]\nurl = 'postgres://u:canary@h/db?statement_timeout=0'",
            "2: database.url: parameter statement_timeout is not supported: set \
             database.statement_timeout",
        ),
    ]);
}

#[test]
fn a_value_out_of_bounds_is_told_the_bounds() {
    assert_reports(&[
        (
            "[relay]\npoll_interval = '0s'",
            "2: relay.poll_interval: \"0s\": must be from 10ms to 10m",
        ),
        (
            "[database]\nconnect_timeout = '0s'",
            "2: database.connect_timeout: \"0s\": must be from 100ms to 5m",
        ),
        (
            "[broker]\nconfirm_timeout = '0s'",
            "2: broker.confirm_timeout: \"0s\": must be from 100ms to 1h",
        ),
        (
            "[relay]\nshutdown_grace = '0s'",
            "2: relay.shutdown_grace: \"0s\": must be from 1s to 1h",
        ),
        (
            "[relay]\nbatch_size = 0",
            "2: relay.batch_size: 0: must be from 1 to 10000",
        ),
        (
            "[relay]\nbatch_size = -1",
            "2: relay.batch_size: -1: must not be negative",
        ),
        (
            "[relay]\nbatch_size = 99999999999999999999",
            "2: relay.batch_size: 99999999999999999999 is out of range",
        ),
        (
            "[retry]\njitter = 1.5\nmultiplier = nan",
            "2: retry.jitter: 1.5: must be from 0 to 1\n  FILE:3: retry.multiplier: NaN: must be \
             from 1 to 100",
        ),
        (
            "[outbox]\nretention = '0s'",
            "2: outbox.retention: \"0s\": to keep nothing, write on_sent = \"delete\"",
        ),
        (
            "[broker]\nheartbeat = '1500ms'",
            "2: broker.heartbeat: \"1500ms\": must be whole seconds: AMQP counts heartbeats so",
        ),
        (
            "[outbox]\nschema = ' '",
            "2: outbox.schema: \" \": must not be empty",
        ),
    ]);
}

#[test]
fn a_word_that_is_no_choice_is_told_the_choices() {
    assert_reports(&[
        (
            "[relay]\nordering = 'keys'",
            "2: relay.ordering: \"keys\": must be \"key\" or \"none\"; did you mean \"key\"?",
        ),
        (
            "[outbox]\non_sent = 'archive'",
            "2: outbox.on_sent: \"archive\": must be \"mark\" or \"delete\"",
        ),
        (
            "[database]\nsslmode = 'verify'",
            "2: database.sslmode: \"verify\": must be \"disable\", \"allow\", \"prefer\", \
             \"require\", \"verify-ca\" or \"verify-full\"; did you mean \"verify-ca\"?",
        ),
        (
            "[log]\nlevel = 'inf'",
            "2: log.level: \"inf\": must be one of off, error, warn, info, debug, trace, or such \
             with exceptions, as in \"info,lapin=warn\"; did you mean \"info\"?",
        ),
        (
            "[log]\nformat = 5",
            "2: log.format: 5: must be \"text\" or \"json\"",
        ),
    ]);
}

#[test]
fn values_that_contradict_each_other_are_both_named() {
    assert_reports(&[
        (
            "[relay]\nmax_in_flight = 2",
            "2: relay.max_in_flight: max_in_flight (2) must not be smaller than channels (4): each \
             channel needs room for one message",
        ),
        (
            "[relay]\nchannels = 200\nmax_in_flight = 100",
            "3: relay.max_in_flight: max_in_flight (100) must not be smaller than channels (200): \
             each channel needs room for one message",
        ),
        (
            "[relay]\nmax_buffered_bytes = '8MiB'",
            "2: relay.max_buffered_bytes: max_message_size (16MiB) must not be larger than \
             max_buffered_bytes (8MiB): such a message could never be read",
        ),
        (
            "[retry]\ninitial = '10m'",
            "2: retry.initial: initial (10m) must not be longer than max_delay (5m)",
        ),
        (
            "[relay]\nallowed_exchanges = []",
            "2: relay.allowed_exchanges: must not be empty, or nothing could be sent; \"*\" allows \
             every exchange",
        ),
    ]);
}
