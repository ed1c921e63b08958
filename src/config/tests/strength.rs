//! Which source wins, and what a stronger one leaves of a weaker one.

use secrecy::ExposeSecret;

use super::{Given, given};
use crate::config::{
    ByteSize, Config, DatabaseAccess, Host, Loaded, Login, Needs, Origin, Secret, SslMode,
};

fn load(given: &Given) -> Loaded {
    given.load(Needs::default()).unwrap()
}

fn config(file: &str, variables: &[(&str, &str)]) -> Config {
    load(&given(file, variables)).config
}

fn database(file: &str, variables: &[(&str, &str)]) -> DatabaseAccess {
    config(file, variables).database_target().resolve().unwrap()
}

fn password(access: &DatabaseAccess) -> Option<&str> {
    let password = access.endpoints[0].password.as_ref()?;
    Some(password.expose_secret())
}

#[test]
fn flags_win_over_variables_over_the_file_over_conventions_over_defaults() {
    let file = "[relay]\nbatch_size = 2\nchannels = 2\n[database]\nurl = 'postgres://f@localhost'";
    let given = given(
        file,
        &[
            ("OUTBOX_RELAY__RELAY__BATCH_SIZE", "3"),
            ("DATABASE_URL", "postgres://convention@localhost"),
            ("AMQP_URL", "amqp://localhost/vhost"),
        ],
    )
    .flag("relay.batch_size", "4")
    .flag("log.level", "debug");
    let loaded = load(&given);
    let shown = |key: &str| {
        let line = loaded.effective.iter().find(|line| line.key == key);
        let line = line.unwrap();
        let origin = given.anonymous(&line.origin.to_string());
        format!("{} ({origin})", line.value.as_deref().unwrap_or("not set"))
    };
    assert_eq!(shown("relay.batch_size"), "4 (--set relay.batch_size)");
    assert_eq!(shown("relay.channels"), "2 (FILE:3)");
    assert_eq!(shown("relay.lease"), "15s (default)");
    assert_eq!(shown("database.url"), "host=localhost user=f (FILE:5)");
    assert_eq!(shown("broker.url"), "amqp://localhost/vhost (AMQP_URL)");
    assert_eq!(shown("database.user"), "not set (default)");
    assert_eq!(loaded.config.relay.batch_size, 4);
    assert_eq!(loaded.config.log.level, "debug");
}

#[test]
fn a_variable_wins_over_the_file() {
    let relay = config(
        "[relay]\nbatch_size = 2",
        &[("OUTBOX_RELAY__RELAY__BATCH_SIZE", "3")],
    )
    .relay;
    assert_eq!(relay.batch_size, 3);
}

#[test]
fn text_from_the_environment_is_never_guessed_at() {
    for password in ["0123", "1e5", "true", "a,b", " x ", "=", "\"q\""] {
        let database = config("", &[("OUTBOX_RELAY__DATABASE__PASSWORD", password)]).database;
        let Some(Secret::Value(read)) = database.password else {
            panic!("{password} is not a value");
        };
        assert_eq!(read.expose_secret(), password);
    }
    let owner = config("", &[("OUTBOX_RELAY__QUARANTINE__OWNER", "0123")]);
    assert_eq!(owner.quarantine.owner, "0123");
}

#[test]
fn every_type_can_be_set_by_a_variable() {
    let config = config(
        "",
        &[
            ("OUTBOX_RELAY__RELAY__MANDATORY", "false"),
            ("OUTBOX_RELAY__RELAY__MAX_MESSAGE_SIZE", "1MiB"),
            ("OUTBOX_RELAY__RELAY__OPTIONAL_EXCHANGES", "a, b.*,"),
            ("OUTBOX_RELAY__RETRY__JITTER", "0.5"),
            ("OUTBOX_RELAY__HTTP__LISTEN", "[::]:80"),
            ("OUTBOX_RELAY__DATABASE__HOST", "one,two"),
            ("OUTBOX_RELAY__DATABASE__PORT", "1,2"),
            ("OUTBOX_RELAY__DATABASE__SSLMODE", "require"),
            (
                "OUTBOX_RELAY__BROKER__URL",
                "amqp://u:a,b@localhost,amqps://u:c@two",
            ),
        ],
    );
    assert!(!config.relay.mandatory);
    assert_eq!(config.relay.max_message_size, ByteSize::from_mib(1));
    assert_eq!(config.relay.optional_exchanges, ["a", "b.*"]);
    assert_eq!(config.retry.jitter.to_string(), "0.5");
    assert_eq!(config.http.listen.port(), 80);
    assert_eq!(config.database.host, ["one", "two"]);
    assert_eq!(config.database.port, [1, 2]);
    assert_eq!(config.database.sslmode, Some(SslMode::Require));
    let broker = config.broker_target().resolve().unwrap();
    let endpoints: Vec<_> = broker.endpoints.iter().map(ToString::to_string).collect();
    assert_eq!(endpoints, ["localhost:5672", "two:5671"]);
    let Login::Plain { password, .. } = &broker.endpoints[0].login else {
        panic!("no login");
    };
    assert_eq!(password.expose_secret(), "a,b");
}

#[test]
fn a_stronger_url_takes_nothing_it_answers_itself_from_the_file() {
    let access = database(
        "[database]\nhost = 'old'\nport = 1\nuser = 'old'\npassword = 'old'\ndbname = 'db'\n\
         ca_file = '/ca.pem'",
        &[("OUTBOX_RELAY__DATABASE__URL", "postgres://new@new:2")],
    );
    assert_eq!(access.endpoints[0].to_string(), "new:2");
    assert_eq!(access.user.as_deref(), Some("new"));
    assert_eq!(password(&access), None);
    assert_eq!(access.dbname.as_deref(), Some("db"));
    assert!(access.certificates.ca_file.is_some());
}

#[test]
fn a_stronger_host_drops_the_weaker_url() {
    let access = database(
        "[database]\nhost = 'new'\nuser = 'u'",
        &[(
            "DATABASE_URL",
            "postgres://old:canary@old:9/old?sslmode=disable",
        )],
    );
    assert_eq!(access.endpoints[0].to_string(), "new:5432");
    assert_eq!(access.user.as_deref(), Some("u"));
    assert_eq!(password(&access), None);
    assert_eq!(access.sslmode, SslMode::VerifyFull);
}

#[test]
fn a_key_completes_and_overrides_the_url_beside_it() {
    let access = database(
        "[database]\nurl = 'postgres://u:old@h/db'\npassword = 'new'\nsslmode = 'verify-ca'",
        &[],
    );
    assert_eq!(password(&access), Some("new"));
    assert_eq!(access.sslmode, SslMode::VerifyCa);
    assert_eq!(access.dbname.as_deref(), Some("db"));
}

#[test]
fn a_stronger_twin_replaces_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("password");
    std::fs::write(&path, "from file\n").unwrap();
    let access = database(
        "[database]\nhost = 'h'\nuser = 'u'\npassword = 'plain'",
        &[(
            "OUTBOX_RELAY__DATABASE__PASSWORD_FILE",
            path.to_str().unwrap(),
        )],
    );
    assert_eq!(password(&access), Some("from file"));
}

#[test]
fn a_rotated_secret_file_counts_at_the_next_resolution() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("url");
    std::fs::write(&path, "postgres://u:first@one/db\n").unwrap();
    let file = format!("[database]\nurl_file = '{}'", path.display());
    let target = config(&file, &[]).database_target();
    assert_eq!(password(&target.resolve().unwrap()), Some("first"));
    std::fs::write(&path, "postgres://u:second@two/db\n").unwrap();
    let access = target.resolve().unwrap();
    assert_eq!(password(&access), Some("second"));
    assert_eq!(access.endpoints[0].to_string(), "two:5432");
    std::fs::write(&path, "nonsense canary").unwrap();
    assert_eq!(
        target.resolve().unwrap_err().to_string(),
        "database.url_file: is neither a postgres:// URL nor a list of key=value pairs: an = is \
         missing"
    );
}

#[test]
fn the_default_file_is_read_only_if_it_exists() {
    let mut given = given("[relay]\nbatch_size = 7", &[]);
    given.sources.default_file = given.sources.file.take().unwrap();
    let loaded = load(&given);
    assert_eq!(loaded.config.relay.batch_size, 7);
    assert!(loaded.file.is_some());
    given.sources.default_file.set_file_name("not there");
    assert!(load(&given).file.is_none());
}

#[test]
fn a_default_file_that_cannot_be_looked_for_is_not_taken_for_missing() {
    let mut given = given("", &[]);
    given.sources.file = None;
    // As in a folder of mode 700, which would not keep root out.
    let around = given.dir.path().join("around");
    std::os::unix::fs::symlink(&around, &around).unwrap();
    given.sources.default_file = around.join("outbox-relay.toml");
    let report = given.report();
    assert!(
        report.contains("cannot read the configuration file"),
        "{report}"
    );
}

#[test]
fn nothing_that_is_printed_holds_a_secret() {
    let loaded = load(&given(
        "[database]\nurl = 'postgres://u:canary@h/db?options=-c%20a%3Db'\n\
         [broker]\nurl = ['amqps://u:canary@h', 'amqps://u:canary@i']",
        &[],
    ));
    let database = loaded.config.database_target().resolve().unwrap();
    let broker = loaded.config.broker_target().resolve().unwrap();
    let printed = format!("{loaded:?} {database:?} {broker:?}");
    assert!(!printed.contains("canary"));
    assert!(printed.contains("host=h options=-c a=b password=*** user=u"));
    assert!(printed.contains("amqps://u:***@h,amqps://u:***@i"));
}

#[test]
fn local_servers_need_no_tls_and_remote_ones_verify_by_default() {
    for (host, mode) in [
        ("/run/postgresql", SslMode::Disable),
        ("localhost", SslMode::Disable),
        ("127.0.0.9", SslMode::Disable),
        ("::1", SslMode::Disable),
        ("db", SslMode::VerifyFull),
        ("localhost.example", SslMode::VerifyFull),
        ("10.0.0.1", SslMode::VerifyFull),
    ] {
        let access = database(&format!("[database]\nhost = '{host}'"), &[]);
        assert_eq!(access.sslmode, mode, "{host}");
        assert!(access.weaknesses().is_empty(), "{host}");
    }
    let mixed = database("[database]\nhost = ['localhost', 'db']", &[]);
    assert_eq!(mixed.sslmode, SslMode::VerifyFull);
    let certified = database("[database]\nhost = 'localhost'\nca_file = '/ca.pem'", &[]);
    assert_eq!(certified.sslmode, SslMode::VerifyFull);
}

#[test]
fn weaker_encryption_must_be_written_and_is_told() {
    let access = database(
        "[database]\nhost = ['db', 'localhost']\nsslmode = 'prefer'",
        &[],
    );
    assert_eq!(
        access.weaknesses(),
        [
            "the connection to db:5432 is not encrypted if the server does not offer it; use \
          verify-full"
        ]
    );
    let broker = config("[broker]\nurl = 'amqp://u:p@mq/v'", &[]).broker_target();
    assert_eq!(
        broker.resolve().unwrap().weaknesses(),
        [
            "the connection to mq:5672/v is not encrypted, and the password travels in the clear; \
          use amqps://"
        ]
    );
}

#[test]
fn unix_sockets_are_reached_by_key_parameter_and_encoded_host() {
    for file in [
        "[database]\nhost = '/run/pg'\nport = 5433",
        "[database]\nurl = 'postgres://%2Frun%2Fpg:5433/db'",
        "[database]\nurl = 'postgres:///db?host=/run/pg&port=5433'",
        "[database]\nurl = 'host=/run/pg port=5433'",
    ] {
        let access = database(file, &[]);
        assert_eq!(
            access.endpoints[0].host,
            Host::Unix("/run/pg".into()),
            "{file}"
        );
        assert_eq!(access.endpoints[0].to_string(), "/run/pg/.s.PGSQL.5433");
    }
}

#[test]
fn several_hosts_ask_for_the_one_that_writes() {
    use crate::config::SessionKind;
    let one = database("[database]\nurl = 'postgres://u@a/db'", &[]);
    assert_eq!(one.session, SessionKind::Any);
    let two = database("[database]\nurl = 'postgres://u@a:1,b/db'", &[]);
    assert_eq!(two.session, SessionKind::ReadWrite);
    let endpoints: Vec<_> = two.endpoints.iter().map(ToString::to_string).collect();
    assert_eq!(endpoints, ["a:1", "b:5432"]);
    let any = database(
        "[database]\nurl = 'postgres://u@a,b?target_session_attrs=any'",
        &[],
    );
    assert_eq!(any.session, SessionKind::Any);
}

#[test]
fn origins_tell_their_kind() {
    let kinds = [
        (Origin::Default, "default"),
        (Origin::Flag("--x".to_owned()), "flag"),
        (Origin::Variable("X".to_owned()), "environment"),
    ];
    for (origin, kind) in kinds {
        assert_eq!(origin.kind(), kind);
    }
}
