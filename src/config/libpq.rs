//! libpq's connection parameters: which there are, and how they are read from a URL or from
//! `key=value` pairs (PostgreSQL manual, 34.1.1 and 34.1.2).
//!
//! Only reads; what the values mean is `database_target`'s business. A parameter that cannot be
//! honoured is refused, never dropped. No message holds a password.

use std::collections::BTreeMap;

use super::nearest::nearest;
use super::{libpq_pairs, libpq_url};

/// Parameters by their libpq name; the last one wins, as in libpq.
#[derive(Clone, Default)]
pub(super) struct Parameters(BTreeMap<&'static str, String>);

/// Honoured.
const USED: [&str; 28] = [
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "passfile",
    "channel_binding",
    "connect_timeout",
    "client_encoding",
    "options",
    "application_name",
    "fallback_application_name",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
    "sslmode",
    "sslnegotiation",
    "sslcert",
    "sslkey",
    "sslrootcert",
    "target_session_attrs",
    "load_balance_hosts",
    "sslcompression",
    "gssencmode",
    "sslsni",
];

/// Known to libpq and not honoured, with the reason or the way out.
const REFUSED: [(&str, &str); 23] = [
    ("service", "write host, port and dbname here"),
    ("servicefile", "write host, port and dbname here"),
    ("replication", "the relay reads a table, not the log"),
    ("sslpassword", "decrypt the key file and keep it private"),
    ("sslcrl", "revocation lists are not read"),
    ("sslcrldir", "revocation lists are not read"),
    ("sslcertmode", "give sslcert and sslkey, or leave them out"),
    ("sslkeylogfile", "it would disclose the traffic"),
    ("requiressl", "write sslmode=require"),
    ("requirepeer", "the socket's owner is not checked"),
    (
        "require_auth",
        "use channel_binding=require or sslmode=verify-full",
    ),
    (
        "ssl_min_protocol_version",
        "TLS 1.2 is the oldest spoken anyway",
    ),
    ("ssl_max_protocol_version", "TLS 1.2 and 1.3 are spoken"),
    ("min_protocol_version", "protocol 3.0 is spoken"),
    ("max_protocol_version", "protocol 3.0 is spoken"),
    ("krbsrvname", "Kerberos is not spoken"),
    ("gsslib", "Kerberos is not spoken"),
    ("gssdelegation", "Kerberos is not spoken"),
    ("scram_client_key", "give the password"),
    ("scram_server_key", "give the password"),
    ("statement_timeout", "set database.statement_timeout"),
    ("lock_timeout", "it is half of database.statement_timeout"),
    ("oauth_issuer", "OAuth is not spoken"),
];

impl Parameters {
    /// Reads a URL or `key=value` pairs.
    ///
    /// # Errors
    /// A sentence without the text itself, which may hold a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Some(rest) = libpq_url::after_scheme(text) {
            return libpq_url::parse(rest);
        }
        if let Some((scheme, _)) = text.split_once("://") {
            return Err(match scheme {
                "amqp" | "amqps" => "is a broker's URL; it belongs into broker.url".to_owned(),
                _ => "must begin with postgres:// or postgresql://".to_owned(),
            });
        }
        libpq_pairs::parse(text)
    }

    /// One parameter as libpq names it.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Takes a parameter if it can be honoured.
    pub fn set(&mut self, name: &str, value: String) -> Result<(), String> {
        if let Some(known) = USED.iter().find(|known| **known == name) {
            self.0.insert(known, value);
            return Ok(());
        }
        if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
            return Err(format!("parameter {name} is not supported: {why}"));
        }
        // Not repeated: what looks like a name may be a piece of a badly quoted password.
        Err(match nearest(name, USED) {
            Some(meant) => format!("unknown parameter; did you mean {meant}?"),
            None => "unknown parameter; libpq has none of that name".to_owned(),
        })
    }

    /// Forgets a parameter.
    pub fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// The parameters that are given.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.keys().copied()
    }

    /// A list, as in `host=a,b`; absent is empty.
    pub fn list(&self, name: &str) -> Vec<&str> {
        self.get(name)
            .map_or_else(Vec::new, |v| v.split(',').collect())
    }

    /// The text without secrets, for people.
    pub fn shown(&self) -> String {
        let shown = |(name, value): (&&str, &String)| match *name {
            "password" => "password=***".to_owned(),
            name => format!("{name}={value}"),
        };
        let parts: Vec<String> = self.0.iter().map(shown).collect();
        parts.join(" ")
    }
}
