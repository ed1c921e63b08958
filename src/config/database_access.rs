//! Where PostgreSQL is and how to be let in, as it stands at one moment: what connecting needs.
//!
//! Plain values, nothing left to look up; made by `DatabaseTarget::resolve` before every connect.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use super::SslMode;

/// One complete answer to "where and how". `Debug` hides the passwords.
#[derive(Clone, Debug)]
pub struct DatabaseAccess {
    /// To be tried in this order (or shuffled, see `shuffle`); never empty.
    pub endpoints: Vec<Endpoint>,
    /// Login name; `None` is the operating system's user, as in libpq.
    pub user: Option<String>,
    /// Database; `None` is the one named like the user, as in libpq.
    pub dbname: Option<String>,
    /// Encryption and how far the server must prove itself. Not for Unix sockets.
    pub sslmode: SslMode,
    /// libpq's `sslnegotiation=direct`: TLS without asking first (PostgreSQL 17 and later).
    pub direct_tls: bool,
    /// Certificates.
    pub certificates: Certificates,
    /// Whether SCRAM must, may or must not be bound to the TLS channel.
    pub channel_binding: ChannelBinding,
    /// Which kind of session will do.
    pub session: SessionKind,
    /// libpq's `load_balance_hosts=random`.
    pub shuffle: bool,
    /// `application_name` of the URL, if it has one.
    pub application_name: Option<String>,
    /// `options`: command-line options for the server, such as `-c search_path=app`.
    pub options: Option<String>,
    /// TCP keepalives; `None` switches them off (`keepalives=0`).
    pub keepalives: Option<Keepalives>,
    /// `tcp_user_timeout`, how long sent bytes may stay unacknowledged.
    pub tcp_user_timeout: Option<Duration>,
    /// For each endpoint, from the first packet until queries are accepted.
    pub connect_timeout: Duration,
    /// For every statement.
    pub statement_timeout: Duration,
}

/// One server.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// How it is reached.
    pub host: Host,
    /// TCP port, or the number in the socket's file name.
    pub port: u16,
    /// The password for this server: a `passfile` may name one for each.
    pub password: Option<SecretString>,
}

/// How a server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// Over the network.
    Tcp {
        /// Name or address, also the name expected in the certificate.
        name: String,
        /// libpq's `hostaddr`: connect there in place of looking `name` up.
        address: Option<IpAddr>,
    },
    /// By the socket in this directory.
    Unix(PathBuf),
}

/// PEM files; read at every connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Certificates {
    /// Authorities to trust; `None` trusts the operating system's.
    pub ca_file: Option<PathBuf>,
    /// The client's certificate chain; comes with `key_file` or not at all.
    pub cert_file: Option<PathBuf>,
    /// The client's private key.
    pub key_file: Option<PathBuf>,
}

/// libpq's `channel_binding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelBinding {
    /// Never.
    Disable,
    /// Where the server offers it.
    Prefer,
    /// Or no connection.
    Require,
}

/// libpq's `target_session_attrs`, as far as a relay can work with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionKind {
    /// The first server that lets us in.
    Any,
    /// Only one where the session may write (`transaction_read_only` is off).
    ReadWrite,
    /// Only one that is not in recovery.
    Primary,
}

/// TCP keepalives; zero or `None` values are the operating system's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalives {
    /// Silence before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Unanswered probes until the connection is given up.
    pub count: u32,
}

impl Host {
    /// Nobody else is on the wire: a socket, or an address of this machine.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp {
                address: Some(address),
                ..
            } => address.is_loopback(),
            Self::Tcp { name, .. } => is_loopback(name),
        }
    }
}

/// `localhost`, names below it, 127.0.0.0/8 and ::1.
pub(super) fn is_loopback(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost"
        || name.ends_with(".localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// `host:port`, `[::1]:port`, or the socket's path.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Unix(directory) => write!(f, "{}/.s.PGSQL.{}", directory.display(), self.port),
            Host::Tcp { name, .. } if name.contains(':') => write!(f, "[{name}]:{}", self.port),
            Host::Tcp { name, .. } => write!(f, "{name}:{}", self.port),
        }
    }
}

impl DatabaseAccess {
    /// What is weaker than it should be towards another machine; one sentence each, for `check`.
    #[must_use]
    pub fn weaknesses(&self) -> Vec<String> {
        let certified = self.certificates.ca_file.is_some();
        let weakness = match self.sslmode {
            SslMode::Disable => "is not encrypted (sslmode = disable)",
            SslMode::Allow | SslMode::Prefer => "is not encrypted if the server does not offer it",
            SslMode::Require if !certified => {
                "is encrypted, but the server is not verified (sslmode = require, no ca_file)"
            }
            SslMode::Require | SslMode::VerifyCa => {
                "is encrypted, but any server with a certificate of the same authority passes"
            }
            SslMode::VerifyFull => return Vec::new(),
        };
        self.endpoints
            .iter()
            .filter(|endpoint| !endpoint.host.is_local())
            .map(|endpoint| format!("the connection to {endpoint} {weakness}; use verify-full"))
            .collect()
    }
}
