//! `[broker]`: where RabbitMQ is and how to be let in.

use std::path::PathBuf;
use std::time::Duration;

use super::Secret;

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
