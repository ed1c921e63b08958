//! Where the server binaries are: from the environment, else by asking `servers.sh find`.
//! Fetches nothing.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

const FINDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/servers.sh");

/// Folders of the server binaries.
#[derive(Debug, Clone)]
pub struct Places {
    /// `initdb`, `postgres`, and as a rule the clients (`psql`, `pg_dump`).
    pub postgres_bin: PathBuf,
    /// RabbitMQ's own scripts, not Debian's wrappers.
    pub rabbitmq_sbin: PathBuf,
    /// Shared libraries for Erlang, colon separated; may be empty.
    pub rabbitmq_libs: String,
    /// `erl`, `epmd`, `erl_call`.
    pub erlang_bin: PathBuf,
    /// `pgbouncer`, if there is one.
    pub pgbouncer: Option<PathBuf>,
    /// Shared libraries for it, colon separated; may be empty.
    pub pgbouncer_libs: String,
    /// A library to be preloaded that tells programs another time, if there is one.
    pub faketime: Option<String>,
    /// A Chromium, if there is one.
    pub chromium: Option<PathBuf>,
    /// Shared libraries for it, colon separated; may be empty.
    pub chromium_libs: String,
    /// `promtool`, if there is one.
    pub promtool: Option<PathBuf>,
    /// A folder of this user that may be deleted at any time.
    pub cache: PathBuf,
}

impl Places {
    /// The places, looked up once per process.
    ///
    /// # Panics
    /// If a server is missing; the message says what to do.
    pub fn known() -> &'static Self {
        static PLACES: OnceLock<Places> = OnceLock::new();
        PLACES.get_or_init(Self::look_up)
    }

    fn look_up() -> Self {
        let found = Command::new("sh")
            .args([FINDER, "find"])
            .output()
            .expect("sh can be run");
        assert!(
            found.status.success(),
            "no servers to test with; run `make servers`, which fetches without installing.\n{}",
            String::from_utf8_lossy(&found.stderr)
        );
        let output = String::from_utf8(found.stdout).expect("paths are UTF-8");
        let pairs: HashMap<_, _> = output
            .lines()
            .filter_map(|line| line.split_once('='))
            .collect();
        let of = |key: &str| {
            pairs
                .get(key)
                .unwrap_or_else(|| panic!("{FINDER} printed no {key}"))
                .to_string()
        };
        let some = |key: &str| Some(of(key)).filter(|path| !path.is_empty());
        Self {
            postgres_bin: of("OUTBOX_RELAY_TEST_POSTGRES_BIN").into(),
            rabbitmq_sbin: of("OUTBOX_RELAY_TEST_RABBITMQ_SBIN").into(),
            rabbitmq_libs: of("OUTBOX_RELAY_TEST_RABBITMQ_LIBS"),
            erlang_bin: of("OUTBOX_RELAY_TEST_ERLANG_BIN").into(),
            pgbouncer: some("OUTBOX_RELAY_TEST_PGBOUNCER").map(Into::into),
            faketime: some("OUTBOX_RELAY_TEST_FAKETIME"),
            pgbouncer_libs: of("OUTBOX_RELAY_TEST_PGBOUNCER_LIBS"),
            chromium: some("OUTBOX_RELAY_TEST_CHROMIUM").map(Into::into),
            chromium_libs: of("OUTBOX_RELAY_TEST_CHROMIUM_LIBS"),
            promtool: some("OUTBOX_RELAY_TEST_PROMTOOL").map(Into::into),
            cache: of("OUTBOX_RELAY_TEST_CACHE").into(),
        }
    }
}

/// What a test cannot do without. `None` only where whoever runs the tests has said so: no test is
/// left out by itself.
///
/// # Panics
/// If it is missing otherwise; the message says what to do.
pub fn needed<T>(what: &str, place: Option<T>) -> Option<T> {
    if place.is_some() {
        return place;
    }
    let without = std::env::var("OUTBOX_RELAY_TEST_WITHOUT").unwrap_or_default();
    assert!(
        without.split([',', ' ']).any(|one| one == what),
        "no {what} to test with: run `make servers`, which fetches without installing, or install it; \
         OUTBOX_RELAY_TEST_WITHOUT={what} leaves its tests out"
    );
    println!("left out, as OUTBOX_RELAY_TEST_WITHOUT says: {what}");
    None
}
