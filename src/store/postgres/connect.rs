//! Opens one session to PostgreSQL and drives it.
//!
//! Tries each host and each of its addresses in turn, as libpq does, each under one deadline
//! that covers TCP, TLS, authentication and the session's settings (the client crate's own
//! `connect_timeout` covers TCP only). Does not retry, pool or wait: the engine does.
//! Certificates are read from their files anew each time.

use std::net::IpAddr;
use std::time::Duration;

use secrecy::ExposeSecret;
use tokio_postgres::Config;
use tokio_postgres::config::{self, SslMode as Negotiation};
use tokio_postgres_rustls::MakeRustlsConnect;
use uuid::Uuid;

use super::session::{Session, SessionSettings};
use super::sqlstate::{chain, store_error};
use super::tls;
use crate::config::{
    ChannelBinding, DatabaseAccess, DatabaseTarget, Endpoint, Host, Keepalives, SslMode,
};
use crate::store::error::{Fault, StoreError};

/// Resolves the target, which reads its secret files anew, and opens a session with the usual
/// settings.
///
/// # Errors
/// As [`connect`]; [`StoreError::Settings`] if the target cannot be resolved.
pub async fn open(target: &DatabaseTarget, application_name: &str) -> Result<Session, StoreError> {
    let access = resolve(target).await?;
    let settings = SessionSettings::new(application_name.to_owned(), access.statement_timeout);
    connect(&access, &settings).await
}

/// Resolves the target where blocking on its files is allowed.
///
/// # Errors
/// [`StoreError::Settings`] names the key that cannot be used.
pub async fn resolve(target: &DatabaseTarget) -> Result<DatabaseAccess, StoreError> {
    const DOING: &str = "read the database's settings";
    let target = target.clone();
    tokio::task::spawn_blocking(move || target.resolve())
        .await
        .map_err(|error| StoreError::Other(Fault::new(DOING, error.to_string())))?
        .map_err(|error| StoreError::Settings(Fault::new(DOING, error.to_string())))
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
    access: &DatabaseAccess,
    settings: &SessionSettings,
) -> Result<Session, StoreError> {
    let connector = MakeRustlsConnect::new(tls_client(access).await?);
    let mut refusals = Vec::new();
    for endpoint in in_turn(access) {
        let addresses = match addresses(endpoint, access.connect_timeout).await {
            Ok(addresses) => addresses,
            Err(refusal) => {
                refusals.push(refusal);
                continue;
            }
        };
        for address in addresses {
            let door = Door {
                name: door_name(endpoint, address),
                access,
                unix: matches!(endpoint.host, Host::Unix(_)),
                config: client_config(access, endpoint, address, settings),
                connector: connector.clone(),
            };
            match door.open(settings).await {
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
struct Door<'a> {
    name: String,
    access: &'a DatabaseAccess,
    unix: bool,
    config: Config,
    connector: MakeRustlsConnect,
}

impl Door<'_> {
    async fn open(mut self, settings: &SessionSettings) -> Result<Session, StoreError> {
        let name = self.name.clone();
        let deadline = self.access.connect_timeout;
        tokio::time::timeout(deadline, self.enter(settings))
            .await
            .unwrap_or_else(|_| {
                let reason = format!("no answer within {} ms", deadline.as_millis());
                Err(StoreError::Unreachable(Fault::new(doing(&name), reason)))
            })
    }

    async fn enter(&mut self, settings: &SessionSettings) -> Result<Session, StoreError> {
        let mut last = None;
        for negotiation in negotiations(self.access.sslmode, self.unix) {
            self.config.ssl_mode(*negotiation);
            match Box::pin(self.config.connect(self.connector.clone())).await {
                Ok((client, connection)) => {
                    return Session::begin(
                        client,
                        connection,
                        &self.name,
                        settings,
                        self.access.session,
                    )
                    .await;
                }
                Err(error) => {
                    let refusal = self.refusal(&error);
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

    fn refusal(&self, error: &tokio_postgres::Error) -> StoreError {
        let refused = store_error(doing(&self.name), error);
        match refused.sqlstate() {
            None => {
                let fault = Fault::new(doing(&self.name), chain(error));
                let remedy = handshake_error(error).and_then(tls::remedy);
                StoreError::Unreachable(Fault {
                    remedy: remedy.or_else(|| no_tls(error)).map(str::to_owned),
                    ..fault
                })
            }
            // On a Unix socket there is no TLS.
            Some("28000") if !self.unix => {
                let known = self.access.certificates.cert_file.is_some();
                let remedy = tls::login_remedy(self.access.sslmode, known);
                refused.map_fault(|fault| fault.with_remedy(remedy))
            }
            Some(_) => refused,
        }
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
    access: &DatabaseAccess,
    endpoint: &Endpoint,
    address: Option<IpAddr>,
    settings: &SessionSettings,
) -> Config {
    let mut config = Config::new();
    config
        .application_name(settings.application_name.as_str())
        .port(endpoint.port)
        .channel_binding(match access.channel_binding {
            ChannelBinding::Disable => config::ChannelBinding::Disable,
            ChannelBinding::Prefer => config::ChannelBinding::Prefer,
            ChannelBinding::Require => config::ChannelBinding::Require,
        })
        .ssl_negotiation(if access.direct_tls {
            config::SslNegotiation::Direct
        } else {
            config::SslNegotiation::Postgres
        });
    match &endpoint.host {
        Host::Tcp { name, .. } => config.host(name.as_str()),
        Host::Unix(directory) => config.host_path(directory),
    };
    if let Some(address) = address {
        config.hostaddr(address);
    }
    if let Some(user) = &access.user {
        config.user(user.as_str());
    }
    if let Some(dbname) = &access.dbname {
        config.dbname(dbname.as_str());
    }
    if let Some(options) = &access.options {
        config.options(options.as_str());
    }
    if let Some(password) = &endpoint.password {
        config.password(password.expose_secret());
    }
    watch_the_wire(&mut config, access);
    config
}

fn watch_the_wire(config: &mut Config, access: &DatabaseAccess) {
    config.keepalives(access.keepalives.is_some());
    if let Some(Keepalives {
        idle,
        interval,
        count,
    }) = access.keepalives
    {
        // Zero is "the operating system's" for libpq and an error for the kernel.
        if !idle.is_zero() {
            config.keepalives_idle(idle);
        }
        if !interval.is_zero() {
            config.keepalives_interval(interval);
        }
        if count > 0 {
            config.keepalives_retries(count);
        }
    }
    if let Some(longest) = access.tcp_user_timeout {
        config.tcp_user_timeout(longest);
    }
}

/// The endpoints in the order to try them.
fn in_turn(access: &DatabaseAccess) -> Vec<&Endpoint> {
    let mut endpoints: Vec<_> = access.endpoints.iter().collect();
    if access.shuffle {
        endpoints.sort_by_cached_key(|_| Uuid::new_v4());
    }
    endpoints
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

async fn tls_client(access: &DatabaseAccess) -> Result<rustls::ClientConfig, StoreError> {
    let (mode, files) = (access.sslmode, access.certificates.clone());
    tokio::task::spawn_blocking(move || tls::client_config(mode, &files))
        .await
        .map_err(|error| StoreError::Other(Fault::new("prepare TLS", error.to_string())))?
}

/// The client crate has no type for this answer; the words are its own, not the server's.
fn no_tls(error: &tokio_postgres::Error) -> Option<&'static str> {
    use std::error::Error as _;
    let told = error.source()?.to_string();
    (told == "server does not support TLS").then_some(
        "switch it on there (ssl = on), or write a weaker database.sslmode down if nobody else \
         is on the network",
    )
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
    let reasons: Vec<_> = refusals
        .iter()
        .map(|one| one.fault().clone().without_remedy().to_string())
        .collect();
    let remedies = refusals.iter().filter_map(|one| one.fault().remedy.clone());
    let mut remedies: Vec<_> = remedies.collect();
    remedies.dedup();
    let telling = refusals
        .iter()
        .position(|one| !matches!(one, StoreError::Unreachable(_)))
        .unwrap_or(0);
    match refusals.len() {
        0 => StoreError::Settings(Fault::new("database.host", "no host is named")),
        1 => refusals.swap_remove(0),
        _ => refusals.swap_remove(telling).map_fault(|fault| Fault {
            doing: "no host took us".to_owned(),
            reason: reasons.join("; "),
            remedy: (!remedies.is_empty()).then(|| remedies.join("; ")),
            ..fault
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
