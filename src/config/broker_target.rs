//! From `[broker]` to what connecting needs: the URLs, the keys on top of them, and defaults
//! below.
//!
//! A URL's scheme says whether TLS is spoken. Discrete keys cannot say it, so TLS is spoken to
//! every other machine, and plain AMQP only to this one. A list that speaks TLS to one machine and
//! not to another is refused: its first member's failure would be a way around TLS.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};

use super::amqp_url::AmqpUrl;
use super::broker_access::{BrokerAccess, BrokerEndpoint, BrokerTls, Login};
use super::database_access::is_loopback;
use super::{Auth, BrokerSection, Certificates, Secret, TargetError};

const PLAIN_PORT: u16 = 5672;
const TLS_PORT: u16 = 5671;
/// RabbitMQ's initial user, who may log in from the broker's own machine only (RabbitMQ manual,
/// Access Control).
const GUEST: &str = "guest";

/// `[broker]`, to be resolved before every connect. Clones are one: what one takes up counts for
/// all.
#[derive(Clone, Debug)]
pub struct BrokerTarget(Arc<RwLock<BrokerSection>>);

type Problems = Vec<(&'static str, String)>;

impl BrokerTarget {
    /// Nothing is read yet.
    #[must_use]
    pub fn new(section: BrokerSection) -> Self {
        Self(Arc::new(RwLock::new(section)))
    }

    /// Takes over what may change while a connection stands: address and password. It counts
    /// from the next connect on.
    pub fn take_up(&self, new: &BrokerSection) {
        let mut section = self.0.write().unwrap_or_else(PoisonError::into_inner);
        section.url.clone_from(&new.url);
        section.password.clone_from(&new.password);
    }

    /// The addresses and credentials as they are now. Reads the secret files anew, which blocks
    /// for as long as their file system does.
    ///
    /// # Errors
    /// [`TargetError`] names every key that cannot be used, and never holds a secret.
    pub fn resolve(&self) -> Result<BrokerAccess, TargetError> {
        let section = self
            .0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let section = &section;
        let (key, urls) = section.addresses()?;
        let password = match &section.password {
            Some(secret) => Some(secret.read().map_err(|error| {
                let key = match secret {
                    Secret::File(_) => "broker.password_file",
                    Secret::Value(_) => "broker.password",
                };
                TargetError::one(key, error.to_string())
            })?),
            None => None,
        };
        let mut problems = Problems::new();
        let mut endpoints = Vec::new();
        for url in urls {
            let mut one = Address {
                section,
                url,
                key,
                problems: &mut problems,
            };
            endpoints.push(one.endpoint(password.as_ref()));
        }
        problems.dedup();
        if problems.is_empty() {
            Ok(BrokerAccess {
                endpoints,
                confirm_timeout: section.confirm_timeout,
            })
        } else {
            Err(TargetError { problems })
        }
    }
}

impl BrokerSection {
    /// One URL for each broker, and the key to blame for it. Discrete keys are made into URLs.
    fn addresses(&self) -> Result<(&'static str, Vec<AmqpUrl>), TargetError> {
        if self.url.is_empty() {
            return Ok(("broker.host", self.discrete()?));
        }
        let mut key = "broker.url";
        let mut urls = Vec::new();
        let mut problems = Problems::new();
        for secret in &self.url {
            if matches!(secret, Secret::File(_)) {
                key = "broker.url_file";
            }
            let text = secret
                .read()
                .map_err(|e| TargetError::one(key, e.to_string()))?;
            let lines = text.expose_secret().lines().map(str::trim);
            for line in lines.filter(|line| !line.is_empty()) {
                match AmqpUrl::parse(line) {
                    Ok(url) => urls.push(url),
                    Err(problem) => problems.push((key, problem)),
                }
            }
        }
        if urls.is_empty() && problems.is_empty() {
            problems.push((key, "holds no URL".to_owned()));
        }
        if urls.iter().any(|url| url.tls) && urls.iter().any(is_exposed) {
            problems.push((
                key,
                "names amqps:// and amqp:// in one list: whoever keeps the relay from the first \
                 would be sent everything by the second, the password included, in plain text; \
                 write amqps:// for all of them"
                    .to_owned(),
            ));
        }
        if problems.is_empty() {
            Ok((key, urls))
        } else {
            Err(TargetError { problems })
        }
    }

    fn discrete(&self) -> Result<Vec<AmqpUrl>, TargetError> {
        if self.host.is_empty() {
            return Err(TargetError::one(
                "broker.url",
                "missing: set it or broker.host, or the variable AMQP_URL",
            ));
        }
        let tls_wanted = self.names_tls();
        let urls = self.host.iter().map(|host| AmqpUrl {
            tls: tls_wanted || !is_loopback(host),
            host: Some(host.clone()),
            port: self.port,
            ..AmqpUrl::default()
        });
        let urls: Vec<AmqpUrl> = urls.collect();
        if self.port == Some(PLAIN_PORT) && urls.iter().any(|url| url.tls) {
            return Err(TargetError::one(
                "broker.port",
                "5672 is the port for plain AMQP, but TLS is spoken to another machine: use 5671, \
                 or accept plain text by writing broker.url = \"amqp://…\"",
            ));
        }
        Ok(urls)
    }

    fn names_tls(&self) -> bool {
        self.ca_file.is_some() || self.cert_file.is_some() || self.server_name.is_some()
    }
}

/// It sends plain text to another machine.
fn is_exposed(url: &AmqpUrl) -> bool {
    !url.tls && url.host.as_deref().is_some_and(|host| !is_loopback(host))
}

/// One broker on its way from URL to endpoint.
struct Address<'a> {
    section: &'a BrokerSection,
    url: AmqpUrl,
    key: &'static str,
    problems: &'a mut Problems,
}

impl Address<'_> {
    fn endpoint(&mut self, password: Option<&SecretString>) -> BrokerEndpoint {
        let host = self.url.host.clone();
        let host = host.unwrap_or_else(|| "localhost".to_owned());
        let tls = self.tls(&host);
        let default_port = if tls.is_some() { TLS_PORT } else { PLAIN_PORT };
        if self.url.port == Some(0) {
            self.problem(self.key, "the port must be from 1 to 65535");
        }
        BrokerEndpoint {
            port: self.url.port.unwrap_or(default_port),
            vhost: self.vhost(),
            login: self.login(&host, password),
            heartbeat: self.seconds("heartbeat", self.url.heartbeat, self.section.heartbeat),
            connect_timeout: self.seconds(
                "connection_timeout",
                self.url.connect_timeout,
                self.section.connect_timeout,
            ),
            host,
            tls,
        }
    }

    fn tls(&mut self, host: &str) -> Option<BrokerTls> {
        let (section, url) = (self.section, &self.url);
        let certificates = Certificates {
            ca_file: section.ca_file.clone().or_else(|| url.ca_file.clone()),
            cert_file: section.cert_file.clone().or_else(|| url.cert_file.clone()),
            key_file: section.key_file.clone().or_else(|| url.key_file.clone()),
        };
        let name = section
            .server_name
            .clone()
            .or_else(|| url.server_name.clone());
        let meant = certificates != Certificates::default() || name.is_some();
        if certificates.cert_file.is_some() != certificates.key_file.is_some() {
            self.problem(
                "broker.cert_file",
                "a client certificate needs both cert_file and key_file",
            );
        }
        if !self.url.tls {
            if meant {
                self.problem(
                    self.key,
                    "certificates or a server name are given, but amqp:// does not speak TLS: \
                     write amqps://",
                );
            }
            return None;
        }
        Some(BrokerTls {
            server_name: name.unwrap_or_else(|| host.to_owned()),
            certificates,
        })
    }

    fn vhost(&mut self) -> String {
        if let Some(vhost) = &self.section.vhost {
            return vhost.clone();
        }
        match self.url.vhost.clone() {
            None => "/".to_owned(),
            Some(empty) if empty.is_empty() => {
                self.problem(
                    self.key,
                    "a URL that ends in / means the vhost with the empty name (RabbitMQ URI \
                     specification): leave the slash out for the default vhost, or write /%2F",
                );
                empty
            }
            Some(vhost) => vhost,
        }
    }

    fn login(&mut self, host: &str, password: Option<&SecretString>) -> Login {
        let auth = match self.section.auth {
            Auth::External => Auth::External,
            Auth::Plain => self.url.auth.unwrap_or(Auth::Plain),
        };
        if auth == Auth::External {
            let certified = self.section.cert_file.is_some() || self.url.cert_file.is_some();
            if !self.url.tls || !certified {
                self.problem(
                    "broker.auth",
                    "external proves who we are by a client certificate: it needs TLS (amqps://), \
                     cert_file and key_file",
                );
            }
            return Login::External;
        }
        let user = self.section.user.clone().or_else(|| self.url.user.clone());
        let password = password.cloned().or_else(|| self.url.password.clone());
        match (user, password) {
            (Some(user), Some(password)) => Login::Plain { user, password },
            (None, None) if is_loopback(host) => Login::Plain {
                user: GUEST.to_owned(),
                password: SecretString::from(GUEST),
            },
            (user, password) => {
                if user.is_none() {
                    self.problem(
                        "broker.user",
                        "missing: set it, or write it into the URL; guest may log in from the \
                         broker's own machine only",
                    );
                }
                if password.is_none() {
                    self.problem(
                        "broker.password",
                        "missing: set it or broker.password_file, or write it into the URL",
                    );
                }
                // Never used: the problems above make the whole an error.
                Login::External
            }
        }
    }

    /// A URL's own timing wins over the key, whose default is always there.
    fn seconds(&mut self, name: &str, url: Option<Duration>, key: Duration) -> Duration {
        let Some(given) = url else { return key };
        if given.is_zero() || given > Duration::from_secs(600) {
            let problem = format!("{name} must not be zero nor longer than ten minutes");
            self.problems.push((self.key, problem));
        }
        given
    }

    fn problem(&mut self, key: &'static str, problem: &str) {
        self.problems.push((key, problem.to_owned()));
    }
}
