//! Opens one session to PostgreSQL and drives it.
//!
//! Tries each host and each of its addresses in turn, as libpq does, each under one deadline
//! that covers TCP, TLS, authentication and the session's settings (the client crate's own
//! `connect_timeout` covers TCP only). Does not retry, pool or wait: the engine does.
//! Secrets and certificates are read from their files anew each time.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use tokio_postgres::Config;
use tokio_postgres::config::SslMode as Negotiation;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::session::{Session, SessionSettings};
use super::sqlstate::{chain, store_error};
use super::tls::{self, TlsSettings};
use crate::config::{Secret, SslMode};
use crate::store::error::{Fault, StoreError};

/// Silence after which the kernel probes an idle connection, and how often and how many times.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 3);
/// How long sent bytes may stay unacknowledged before the kernel gives the connection up.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(30);
/// Where the database is and who we are there.
#[derive(Debug, Clone)]
pub struct DatabaseTarget {
    /// In order of preference.
    pub endpoints: Vec<Endpoint>,
    /// Login name.
    pub user: String,
    /// Database name.
    pub dbname: String,
    /// Password; read anew at every connect.
    pub password: Option<Secret>,
    /// TLS. Ignored on Unix sockets, as in libpq.
    pub tls: TlsSettings,
    /// Bound for each address tried.
    pub connect_timeout: Duration,
}

/// One server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// How it is reached.
    pub host: Host,
    /// Port, or the number in the socket's file name.
    pub port: u16,
}

/// How a server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// By name or address; `address` (libpq's `hostaddr`) saves the look-up.
    Tcp {
        /// Name to look up and to find in the certificate.
        name: String,
        /// Where to connect instead of asking the resolver.
        address: Option<IpAddr>,
    },
    /// By a socket in this directory.
    Unix(PathBuf),
}

/// Opens a session on the first host that takes us.
///
/// Takes at most `connect_timeout` for each name looked up and each address tried. A login
/// that is refused ends the search, as in libpq. Not cancel safe in the sense that a server
/// may see a login that nobody uses.
///
/// # Errors
/// [`StoreError`] tells what each host answered; its class is that of the first refusal that
/// is more than "unreachable".
pub async fn connect(
    target: &DatabaseTarget,
    settings: &SessionSettings,
) -> Result<Session, StoreError> {
    let password = password(target).await?;
    let connector = MakeRustlsConnect::new(tls_client(target.tls.clone()).await?);
    let mut refusals = Vec::new();
    for endpoint in &target.endpoints {
        let addresses = match addresses(endpoint, target.connect_timeout).await {
            Ok(addresses) => addresses,
            Err(refusal) => {
                refusals.push(refusal);
                continue;
            }
        };
        for address in addresses {
            let config = client_config(target, endpoint, address, settings, password.as_ref());
            let door = Door {
                name: door_name(endpoint, address),
                mode: target.tls.mode,
                unix: matches!(endpoint.host, Host::Unix(_)),
                config,
                connector: connector.clone(),
            };
            match door.open(settings, target.connect_timeout).await {
                Ok(session) => return Ok(session),
                Err(refusal @ StoreError::Denied(_)) => {
                    refusals.push(refusal);
                    return Err(summary(refusals));
                }
                Err(refusal) => refusals.push(refusal),
            }
        }
    }
    Err(summary(refusals))
}

/// One address about to be tried.
struct Door {
    name: String,
    mode: SslMode,
    unix: bool,
    config: Config,
    connector: MakeRustlsConnect,
}

impl Door {
    async fn open(
        mut self,
        settings: &SessionSettings,
        deadline: Duration,
    ) -> Result<Session, StoreError> {
        let name = self.name.clone();
        tokio::time::timeout(deadline, self.enter(settings))
            .await
            .unwrap_or_else(|_| {
                let reason = format!("no answer within {} ms", deadline.as_millis());
                Err(StoreError::Unreachable(Fault::new(doing(&name), reason)))
            })
    }

    async fn enter(&mut self, settings: &SessionSettings) -> Result<Session, StoreError> {
        let mut last = None;
        for negotiation in negotiations(self.mode, self.unix) {
            self.config.ssl_mode(*negotiation);
            match Box::pin(self.config.connect(self.connector.clone())).await {
                Ok((client, connection)) => {
                    return Session::begin(client, connection, &self.name, settings).await;
                }
                Err(error) => {
                    let refusal = refusal(&self.name, &error);
                    let other_way_may_help = matches!(refusal.sqlstate(), None | Some("28000"));
                    last = Some(refusal);
                    if !other_way_may_help {
                        break;
                    }
                }
            }
        }
        Err(last.unwrap_or_else(|| StoreError::Unreachable(Fault::new(doing(&self.name), ""))))
    }
}

/// The ways to negotiate TLS, in libpq's order.
fn negotiations(mode: SslMode, unix: bool) -> &'static [Negotiation] {
    match mode {
        _ if unix => &[Negotiation::Disable],
        SslMode::Disable => &[Negotiation::Disable],
        SslMode::Allow => &[Negotiation::Disable, Negotiation::Require],
        SslMode::Prefer => &[Negotiation::Prefer, Negotiation::Disable],
        SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => &[Negotiation::Require],
    }
}

fn client_config(
    target: &DatabaseTarget,
    endpoint: &Endpoint,
    address: Option<IpAddr>,
    settings: &SessionSettings,
    password: Option<&SecretString>,
) -> Config {
    let mut config = Config::new();
    config
        .user(target.user.as_str())
        .dbname(target.dbname.as_str())
        .application_name(settings.application_name.as_str())
        .port(endpoint.port)
        .keepalives_idle(KEEPALIVE.0)
        .keepalives_interval(KEEPALIVE.1)
        .keepalives_retries(KEEPALIVE.2)
        .tcp_user_timeout(TCP_USER_TIMEOUT);
    match &endpoint.host {
        Host::Tcp { name, .. } => config.host(name.as_str()),
        Host::Unix(directory) => config.host_path(directory),
    };
    if let Some(address) = address {
        config.hostaddr(address);
    }
    if let Some(password) = password {
        config.password(password.expose_secret());
    }
    config
}

/// The addresses behind a name; `[None]` for a Unix socket.
async fn addresses(
    endpoint: &Endpoint,
    deadline: Duration,
) -> Result<Vec<Option<IpAddr>>, StoreError> {
    let name = match &endpoint.host {
        Host::Unix(_) => return Ok(vec![None]),
        Host::Tcp {
            address: Some(address),
            ..
        } => return Ok(vec![Some(*address)]),
        Host::Tcp { name, .. } => name,
    };
    let refused = |reason| StoreError::Unreachable(Fault::new(format!("look up {name}"), reason));
    let lookup = tokio::net::lookup_host((name.as_str(), endpoint.port));
    match tokio::time::timeout(deadline, lookup).await {
        Err(_) => Err(refused(format!(
            "no answer within {} ms",
            deadline.as_millis()
        ))),
        Ok(Err(error)) => Err(refused(error.to_string())),
        Ok(Ok(found)) => Ok(found.map(|address| Some(address.ip())).collect()),
    }
}

async fn password(target: &DatabaseTarget) -> Result<Option<SecretString>, StoreError> {
    let Some(secret) = target.password.clone() else {
        return Ok(None);
    };
    let read = tokio::task::spawn_blocking(move || secret.read())
        .await
        .map_err(|error| StoreError::Other(Fault::new("read the password", error.to_string())))?;
    match read {
        Ok(password) => Ok(Some(password)),
        Err(error) => Err(StoreError::Settings(Fault::new(
            "database.password",
            error.to_string(),
        ))),
    }
}

async fn tls_client(settings: TlsSettings) -> Result<rustls::ClientConfig, StoreError> {
    tokio::task::spawn_blocking(move || tls::client_config(&settings))
        .await
        .map_err(|error| StoreError::Other(Fault::new("prepare TLS", error.to_string())))?
}

fn refusal(server: &str, error: &tokio_postgres::Error) -> StoreError {
    let refused = store_error(doing(server), error);
    if refused.sqlstate().is_some() {
        return refused;
    }
    let mut fault = Fault::new(doing(server), chain(error));
    if let Some(remedy) = handshake_error(error).and_then(tls::remedy) {
        fault.reason = format!("{}; {remedy}", fault.reason);
    }
    StoreError::Unreachable(fault)
}

/// The TLS library's own error, which `io::Error::source` skips.
fn handshake_error(error: &tokio_postgres::Error) -> Option<&rustls::Error> {
    use std::error::Error as _;
    let mut cause = error.source();
    while let Some(error) = cause {
        let inner = error
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref)
            .and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if inner.is_some() {
            return inner;
        }
        cause = error.source();
    }
    None
}

/// One refusal for all hosts, of the class that says most.
fn summary(mut refusals: Vec<StoreError>) -> StoreError {
    let reasons: Vec<_> = refusals.iter().map(|one| one.fault().to_string()).collect();
    let telling = refusals
        .iter()
        .position(|one| !matches!(one, StoreError::Unreachable(_)))
        .unwrap_or(0);
    match refusals.len() {
        0 => StoreError::Settings(Fault::new("database.host", "no host is named")),
        1 => refusals.swap_remove(0),
        _ => refusals.swap_remove(telling).map_fault(|fault| Fault {
            doing: "no host took us".to_owned(),
            sqlstate: fault.sqlstate,
            reason: reasons.join("; "),
        }),
    }
}

fn doing(server: &str) -> String {
    format!("connect to {server}")
}

fn door_name(endpoint: &Endpoint, address: Option<IpAddr>) -> String {
    let port = endpoint.port;
    match (&endpoint.host, address) {
        (Host::Unix(directory), _) => format!("{}/.s.PGSQL.{port}", directory.display()),
        (Host::Tcp { name, .. }, Some(address)) if *name != address.to_string() => {
            format!("{name}:{port} [{address}]")
        }
        (Host::Tcp { name, .. }, _) => format!("{name}:{port}"),
    }
}
