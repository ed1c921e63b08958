//! `[broker]`: where RabbitMQ is and how to be let in.

use std::path::PathBuf;
use std::time::Duration;

use super::Secret;
use super::amqp_url::AmqpUrl;
use super::reader::{Reader, accept, masked, not_empty, within};
use super::setting::Choice;

/// Which SASL mechanism proves who the relay is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// User and password.
    Plain,
    /// The client certificate (RabbitMQ's `rabbitmq_auth_mechanism_ssl` plugin).
    External,
}

/// The keys of `[broker]`. Either `url` or the discrete keys say where the broker is.
#[derive(Clone, Debug)]
pub struct BrokerSection {
    /// `url` (string or list) or `url_file` (one a line): `amqp://…` or `amqps://…`, tried in
    /// order.
    pub url: Vec<Secret>,
    /// `host`: names or addresses, tried in order.
    pub host: Vec<String>,
    /// `port`: 5671 with TLS and 5672 without, if not given.
    pub port: Option<u16>,
    /// `user`.
    pub user: Option<String>,
    /// `password` or `password_file`.
    pub password: Option<Secret>,
    /// `vhost`; `/` if neither this nor the URL names one.
    pub vhost: Option<String>,
    /// `ca_file`: PEM certificates to trust in place of the system's.
    pub ca_file: Option<PathBuf>,
    /// `cert_file`: PEM client certificate chain.
    pub cert_file: Option<PathBuf>,
    /// `key_file`: PEM private key of the client certificate.
    pub key_file: Option<PathBuf>,
    /// `server_name`: the name expected in the broker's certificate, if it is not the host's.
    pub server_name: Option<String>,
    /// `auth`.
    pub auth: Auth,
    /// `heartbeat`: a dead peer is noticed after two of them.
    pub heartbeat: Duration,
    /// `connect_timeout`: for each host, from the first packet until the connection is open.
    pub connect_timeout: Duration,
    /// `confirm_timeout`: how long a confirm may take while the broker is not blocking.
    pub confirm_timeout: Duration,
}

impl Default for BrokerSection {
    fn default() -> Self {
        Self {
            url: Vec::new(),
            host: Vec::new(),
            port: None,
            user: None,
            password: None,
            vhost: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            server_name: None,
            auth: Auth::Plain,
            heartbeat: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            confirm_timeout: Duration::from_secs(30),
        }
    }
}

impl Choice for Auth {
    const WORDS: &'static [(&'static str, Self)] =
        &[("plain", Self::Plain), ("external", Self::External)];
}

impl BrokerSection {
    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        let defaults = Self::default();
        let second = Duration::from_secs(1);
        let minutes = |n: u64| Duration::from_secs(n * 60);
        Self {
            url: reader.secrets("broker.url", "broker.url_file", split_urls, shown_url),
            host: reader.list("broker.host", plain_host),
            port: reader.optional("broker.port", within(1, u16::MAX)),
            user: reader.optional("broker.user", not_empty),
            password: reader.secret("broker.password", "broker.password_file", masked),
            vhost: reader.optional("broker.vhost", accept),
            ca_file: reader.optional("broker.ca_file", accept),
            cert_file: reader.optional("broker.cert_file", accept),
            key_file: reader.optional("broker.key_file", accept),
            server_name: reader.optional("broker.server_name", not_empty),
            auth: reader.value("broker.auth", defaults.auth, accept),
            heartbeat: reader.value("broker.heartbeat", defaults.heartbeat, |given| {
                within(second, minutes(10))(given)?;
                if given.subsec_nanos() == 0 {
                    Ok(())
                } else {
                    Err("must be whole seconds: AMQP counts heartbeats so".to_owned())
                }
            }),
            connect_timeout: reader.value(
                "broker.connect_timeout",
                defaults.connect_timeout,
                within(second / 10, minutes(5)),
            ),
            confirm_timeout: reader.value(
                "broker.confirm_timeout",
                defaults.confirm_timeout,
                within(second / 10, minutes(60)),
            ),
        }
    }
}

/// A comma separates URLs only where the next one begins: a password may hold commas.
fn split_urls(text: &str) -> Vec<String> {
    let mut urls: Vec<String> = Vec::new();
    for part in text.split(',') {
        match urls.last_mut() {
            Some(last) if !part.trim_start().starts_with("amqp") => {
                last.push(',');
                last.push_str(part);
            }
            Some(_) | None => urls.push(part.trim().to_owned()),
        }
    }
    urls
}

fn plain_host(host: &impl AsRef<str>) -> Result<(), String> {
    let host = host.as_ref();
    not_empty(&host)?;
    let is_address = host.parse::<std::net::IpAddr>().is_ok();
    if host.contains("://") {
        Err("is a URL: write it into broker.url".to_owned())
    } else if host.contains(':') && !is_address {
        Err("must be a name or an address alone: write the port into broker.port".to_owned())
    } else {
        Ok(())
    }
}

fn shown_url(text: &str) -> Option<String> {
    AmqpUrl::parse(text).ok().map(|url| url.shown())
}
