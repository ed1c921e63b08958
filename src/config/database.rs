//! `[database]`: where PostgreSQL is and how to be let in.

use std::path::PathBuf;
use std::time::Duration;

use super::Secret;
use super::libpq::Parameters;
use super::reader::{Reader, accept, masked, not_empty, within};
use super::setting::Choice;

/// How a connection to PostgreSQL is secured, as libpq's `sslmode` (PostgreSQL manual, 34.19.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SslMode {
    /// Never encrypted.
    Disable,
    /// Plain first, encrypted if the server insists.
    Allow,
    /// Encrypted if the server can; silently plain otherwise.
    Prefer,
    /// Always encrypted. Whom one talks to is checked only if a `ca_file` is given.
    Require,
    /// Encrypted, certificate signed by a trusted CA; the name in it may differ.
    VerifyCa,
    /// Encrypted, certificate signed by a trusted CA for this very host.
    VerifyFull,
}

/// The keys of `[database]`. Either `url` or the discrete keys say where the server is.
#[derive(Clone, Debug)]
pub struct DatabaseSection {
    /// `url` or `url_file`: `postgres://…`, or libpq's `key=value` form.
    pub url: Option<Secret>,
    /// `host`: names, addresses or socket directories (beginning with `/`), tried in order.
    pub host: Vec<String>,
    /// `port`: one for all hosts or one for each; empty means 5432.
    pub port: Vec<u16>,
    /// `user`.
    pub user: Option<String>,
    /// `password` or `password_file`.
    pub password: Option<Secret>,
    /// `dbname`; the user's name if not given.
    pub dbname: Option<String>,
    /// `sslmode`; depends on the host if not given: `verify-full` for a remote one.
    pub sslmode: Option<SslMode>,
    /// `ca_file`: PEM certificates to trust in place of the system's.
    pub ca_file: Option<PathBuf>,
    /// `cert_file`: PEM client certificate chain.
    pub cert_file: Option<PathBuf>,
    /// `key_file`: PEM private key of the client certificate.
    pub key_file: Option<PathBuf>,
    /// `connect_timeout`: for each host, from the first packet until queries are accepted.
    pub connect_timeout: Duration,
    /// `statement_timeout`: for every statement the relay runs.
    pub statement_timeout: Duration,
}

impl Default for DatabaseSection {
    fn default() -> Self {
        Self {
            url: None,
            host: Vec::new(),
            port: Vec::new(),
            user: None,
            password: None,
            dbname: None,
            sslmode: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            connect_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(10),
        }
    }
}

impl Choice for SslMode {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("disable", Self::Disable),
        ("allow", Self::Allow),
        ("prefer", Self::Prefer),
        ("require", Self::Require),
        ("verify-ca", Self::VerifyCa),
        ("verify-full", Self::VerifyFull),
    ];
}

impl SslMode {
    /// As it is written.
    #[must_use]
    pub fn word(self) -> &'static str {
        let word = Self::WORDS.iter().find(|(_, mode)| *mode == self);
        word.map_or("", |(word, _)| word)
    }
}

impl DatabaseSection {
    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        let defaults = Self::default();
        let short = within(Duration::from_millis(100), Duration::from_secs(300));
        Self {
            url: reader.secret("database.url", "database.url_file", shown_url),
            host: reader.list("database.host", plain_host),
            port: reader.list("database.port", within(1, u16::MAX)),
            user: reader.optional("database.user", not_empty),
            password: reader.secret("database.password", "database.password_file", masked),
            dbname: reader.optional("database.dbname", not_empty),
            sslmode: reader.optional("database.sslmode", accept),
            ca_file: reader.optional("database.ca_file", accept),
            cert_file: reader.optional("database.cert_file", accept),
            key_file: reader.optional("database.key_file", accept),
            connect_timeout: reader.value(
                "database.connect_timeout",
                defaults.connect_timeout,
                short,
            ),
            statement_timeout: reader.value(
                "database.statement_timeout",
                defaults.statement_timeout,
                within(Duration::from_millis(100), Duration::from_secs(600)),
            ),
        }
    }
}

fn shown_url(text: &str) -> Option<String> {
    Parameters::parse(text).ok().map(|url| url.shown())
}

fn plain_host(host: &impl AsRef<str>) -> Result<(), String> {
    not_empty(host)?;
    let host = host.as_ref();
    let is_address = host.starts_with('/') || host.parse::<std::net::IpAddr>().is_ok();
    if host.contains("://") {
        Err("is a URL: write it into database.url".to_owned())
    } else if host.contains(':') && !is_address {
        Err("must be a name or an address alone: write the port into database.port".to_owned())
    } else {
        Ok(())
    }
}
