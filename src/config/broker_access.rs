//! Where RabbitMQ is and how to be let in, as it stands at one moment: what connecting needs.
//!
//! Plain values, nothing left to look up; made by `BrokerTarget::resolve` before every connect.

use std::fmt;
use std::time::Duration;

use secrecy::SecretString;

use super::Certificates;
use super::database_access::is_loopback;

/// One complete answer to "where and how". `Debug` hides the passwords.
#[derive(Clone, Debug)]
pub struct BrokerAccess {
    /// To be tried in this order; never empty.
    pub endpoints: Vec<BrokerEndpoint>,
    /// How long a confirm may take while the broker is not blocking.
    pub confirm_timeout: Duration,
}

/// One broker.
#[derive(Clone, Debug)]
pub struct BrokerEndpoint {
    /// Name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Virtual host.
    pub vhost: String,
    /// TLS; `None` for plain AMQP.
    pub tls: Option<BrokerTls>,
    /// Who we are.
    pub login: Login,
    /// Interval asked for; a dead peer is noticed after two.
    pub heartbeat: Duration,
    /// From the first packet until `connection.open-ok`.
    pub connect_timeout: Duration,
}

/// How to speak TLS. The broker is always verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerTls {
    /// The name expected in the certificate and sent as SNI.
    pub server_name: String,
    /// Certificates.
    pub certificates: Certificates,
}

/// How to prove who we are.
#[derive(Clone, Debug)]
pub enum Login {
    /// SASL PLAIN.
    Plain {
        /// User.
        user: String,
        /// Password.
        password: SecretString,
    },
    /// SASL EXTERNAL: the client certificate says it.
    External,
}

impl BrokerEndpoint {
    /// Nobody else is on the wire: an address of this machine.
    #[must_use]
    pub fn is_local(&self) -> bool {
        is_loopback(&self.host)
    }
}

/// `host:port/vhost`; the default vhost `/` is not written.
impl fmt::Display for BrokerEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)?;
        } else {
            write!(f, "{}:{}", self.host, self.port)?;
        }
        match self.vhost.as_str() {
            "/" => Ok(()),
            vhost => write!(f, "/{vhost}"),
        }
    }
}

impl BrokerAccess {
    /// What is weaker than it should be towards another machine; one sentence each, for `check`.
    #[must_use]
    pub fn weaknesses(&self) -> Vec<String> {
        self.endpoints
            .iter()
            .filter(|endpoint| endpoint.tls.is_none() && !is_loopback(&endpoint.host))
            .map(|endpoint| {
                format!(
                    "the connection to {endpoint} is not encrypted, and the password travels in \
                     the clear; use amqps://"
                )
            })
            .collect()
    }
}
