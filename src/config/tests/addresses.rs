//! Mistakes in the address of a server.

use super::{assert_reports, given};
use crate::config::Needs;

#[test]
fn an_address_given_twice_is_a_fault() {
    assert_reports(&[
        (
            "[database]\nurl = 'postgres://u@localhost/db'\nhost = 'x'",
            "3: database.host: database.url says it already: remove one of the two",
        ),
        (
            "[database]\npassword = 'canary'\npassword_file = '/x'",
            "3: database.password_file: database.password says it already: remove one of the two",
        ),
        (
            "[broker]\nurl = 'amqp://localhost?heartbeat=5'\nheartbeat = '7s'",
            "3: broker.heartbeat: broker.url says it already: remove one of the two",
        ),
    ]);
}

#[test]
fn a_database_address_that_cannot_be_used_says_why() {
    assert_reports(&[
        (
            "[database]\nurl = 'postgres://u:canary@h/db?sslmode=ful'",
            "2: database.url: sslmode must be \"disable\", \"allow\", \"prefer\", \"require\", \
             \"verify-ca\" or \"verify-full\"",
        ),
        (
            "[database]\nurl = 'postgres://u:canary@h:port/db?connect_timeout=0'",
            "2: database.url: port must be a number from 1 to 65535\n  FILE:2: database.url: \
             connect_timeout=0 would wait for ever; write seconds from 1 to 300",
        ),
        (
            "[database]\nurl = 'postgres://u:canary@a,b/db?port=1,2,3'",
            "2: database.url: port must be one, or one for each of the 2 hosts",
        ),
        (
            "[database]\nurl = 'postgres://u@h/db?target_session_attrs=standby'",
            "2: database.url: target_session_attrs must be any, read-write or primary, or be left \
             out",
        ),
        (
            "[database]\nurl = 'postgres://u@h/db?sslcert=/c.pem'",
            "2: database.url: a client certificate needs both cert_file (sslcert) and key_file \
             (sslkey)",
        ),
        (
            "[database]\nurl = 'postgres://u@h/db?sslrootcert=system&sslmode=require'",
            "2: database.url: sslrootcert=system needs sslmode=verify-full, as in libpq",
        ),
        (
            "[database]\nhost = ['a', 'h:5433']",
            "2: database.host: must be a name or an address alone: write the port into \
             database.port",
        ),
        (
            "[database]\nhost = 'postgres://u:canary@h'",
            "2: database.host: is a URL: write it into database.url",
        ),
        (
            "[database]\nurl_file = 'postgres://u:canary@h'",
            "2: database.url_file: must be the path of a file, not a URL",
        ),
        (
            "[database]\nhost = 'h'\nport = 0",
            "3: database.port: 0: must be from 1 to 65535",
        ),
    ]);
}

#[test]
fn certificates_that_nobody_would_look_at_are_refused() {
    assert_reports(&[
        (
            "[database]\nhost = 'h'\nsslmode = 'disable'\nca_file = '/ca.pem'",
            "4: database.ca_file: certificates are given, but sslmode=disable does not speak TLS: \
             write sslmode=verify-full, or leave them out",
        ),
        (
            "[database]\nurl = 'postgres://u:canary@h/db?sslmode=disable&sslrootcert=/ca.pem'",
            "2: database.url: certificates are given, but sslmode=disable does not speak TLS: \
             write sslmode=verify-full, or leave them out",
        ),
    ]);
}

#[test]
fn a_broker_address_that_cannot_be_used_says_why() {
    assert_reports(&[
        (
            "[broker]\nurl = 'amqp://u:canary@h/'\nheartbeat = '0s'",
            "2: broker.url: a URL that ends in / means the vhost with the empty name (RabbitMQ URI \
             specification): leave the slash out for the default vhost, or write /%2F\n  FILE:3: \
             broker.heartbeat: \"0s\": must be from 1s to 10m",
        ),
        (
            "[broker]\nhost = 'h'\nport = 5672\nuser = 'u'\npassword = 'canary'",
            "3: broker.port: 5672 is the port for plain AMQP, but TLS is spoken to another machine: \
             use 5671, or accept plain text by writing broker.url = \"amqp://…\"",
        ),
        (
            "[broker]\nhost = 'h:5671'",
            "2: broker.host: \"h:5671\": must be a name or an address alone: write the port into \
             broker.port",
        ),
        (
            "[broker]\nhost = 'localhost'\nauth = 'external'",
            "3: broker.auth: external proves who we are by a client certificate: it needs TLS \
             (amqps://), cert_file and key_file",
        ),
        (
            "[broker]\nurl = 'amqp://localhost'\nca_file = '/ca.pem'",
            "2: broker.url: certificates or a server name are given, but amqp:// does not speak \
             TLS: write amqps://",
        ),
        (
            "[broker]\nurl = ['amqps://u:canary@a', 'amqp://u:canary@b']",
            "2: broker.url: names amqps:// and amqp:// in one list: whoever keeps the relay from \
             the first would be sent everything by the second, the password included, in plain \
             text; write amqps:// for all of them",
        ),
        (
            "[broker]\nurl = ['amqp://localhost', 'amqps:/x']",
            "2: broker.url: must begin with amqp:// or amqps://",
        ),
    ]);
    assert_eq!(
        given("[broker]\nurl = 'amqps://h'", &[]).report(),
        "configuration: 2 faults\n  broker.user: missing: set it, or write it into the URL; guest \
         may log in from the broker's own machine only\n  broker.password: missing: set it or \
         broker.password_file, or write it into the URL"
    );
}

#[test]
fn a_needed_server_that_is_not_named_is_missing() {
    let needs = Needs {
        database: true,
        broker: true,
    };
    assert_eq!(
        given("", &[]).load(needs).unwrap_err().to_string(),
        "configuration: 2 faults\n  database.url: missing: set it or database.host, or the \
         variable DATABASE_URL\n  broker.url: missing: set it or broker.host, or the variable \
         AMQP_URL"
    );
}

#[test]
fn an_address_that_is_refused_on_the_command_line_is_not_missing() {
    let needs = Needs {
        database: true,
        broker: true,
    };
    let given = given("[database]\nhost = 'localhost'", &[]);
    let given = given.flag("broker.url", "amqp://u:canary@h");
    assert_eq!(
        given.load(needs).unwrap_err().to_string(),
        "configuration: --set broker.url: broker.url: a command line is visible to every user of \
         the machine: use the environment, or the key's _file twin"
    );
}

#[test]
fn a_needed_secret_file_must_be_readable_at_start() {
    let needs = Needs {
        database: true,
        broker: true,
    };
    let secrets = given(
        "[database]\nhost = 'localhost'\npassword_file = '/nonexistent/a'\n\
         [broker]\nurl_file = '/nonexistent/b'",
        &[],
    );
    assert_eq!(
        secrets.anonymous(&secrets.load(needs).unwrap_err().to_string()),
        "configuration: 2 faults\n  FILE:3: database.password_file: cannot read secret file \
         /nonexistent/a: No such file or directory (os error 2)\n  FILE:5: broker.url_file: cannot \
         read secret file /nonexistent/b: No such file or directory (os error 2)"
    );
    assert!(secrets.load(Needs::default()).is_ok());
}
