//! `amqp://user:password@host:port/vhost?name=value` as RabbitMQ's URI specification and its
//! query parameters define it.
//!
//! Only reads. The vhost is one percent-encoded segment: no slash means "not given", a bare slash
//! means the vhost with the empty name. A parameter that cannot be honoured is refused. No
//! message holds a password.

use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use secrecy::SecretString;
use url::{Host, Url};

use super::Auth;
use super::nearest::nearest;

/// What a broker's URL says; `None` where it says nothing.
#[derive(Default)]
pub(super) struct AmqpUrl {
    pub tls: bool,
    pub host: Option<String>,
    pub port: Option<u16>,
    pub user: Option<String>,
    pub password: Option<SecretString>,
    pub vhost: Option<String>,
    pub auth: Option<Auth>,
    pub heartbeat: Option<Duration>,
    pub connect_timeout: Option<Duration>,
    pub ca_file: Option<PathBuf>,
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    pub server_name: Option<String>,
}

const USED: [&str; 8] = [
    "heartbeat",
    "connection_timeout",
    "auth_mechanism",
    "cacertfile",
    "certfile",
    "keyfile",
    "server_name_indication",
    "verify",
];

/// Known elsewhere and not honoured, with the reason or the way out.
const REFUSED: [(&str, &str); 6] = [
    (
        "frame_max",
        "the largest frame is agreed on with the broker",
    ),
    ("channel_max", "set relay.channels"),
    ("depth", "chains are checked to any usual depth"),
    (
        "fail_if_no_peer_cert",
        "a broker without certificate always fails",
    ),
    ("password", "decrypt the key file and keep it private"),
    ("versions", "TLS 1.2 and 1.3 are spoken"),
];

impl AmqpUrl {
    /// Reads a URL.
    ///
    /// # Errors
    /// A sentence without the text itself, which may hold a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let tls = match text.split_once("://") {
            Some(("amqp", _)) => false,
            Some(("amqps", _)) => true,
            Some(("postgres" | "postgresql", _)) => {
                return Err("is a database's URL; it belongs into database.url".to_owned());
            }
            Some(_) | None => return Err("must begin with amqp:// or amqps://".to_owned()),
        };
        let url = Url::parse(text).map_err(|error| {
            format!("{error}; in user and password percent-encode what is special (@ is %40, / is %2F, : is %3A, ? is %3F, # is %23)")
        })?;
        if url.fragment().is_some() {
            return Err("a # must be written %23".to_owned());
        }
        let mut read = Self {
            tls,
            host: host(&url)?,
            port: url.port(),
            user: some_text("user", url.username())?,
            password: match url.password() {
                Some(password) => some_text("password", password)?.map(SecretString::from),
                None => None,
            },
            vhost: vhost(&url)?,
            ..Self::default()
        };
        for (name, value) in url.query_pairs() {
            read.set(&name, &value)?;
        }
        Ok(read)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "heartbeat" => self.heartbeat = Some(Duration::from_secs(number(name, value)?)),
            "connection_timeout" => {
                self.connect_timeout = Some(Duration::from_millis(number(name, value)?));
            }
            "auth_mechanism" => {
                self.auth = Some(match value.to_ascii_lowercase().as_str() {
                    "plain" => Auth::Plain,
                    "external" => Auth::External,
                    _ => return Err("auth_mechanism must be plain or external".to_owned()),
                });
            }
            "cacertfile" => self.ca_file = Some(PathBuf::from(value)),
            "certfile" => self.cert_file = Some(PathBuf::from(value)),
            "keyfile" => self.key_file = Some(PathBuf::from(value)),
            "server_name_indication" => self.server_name = Some(value.to_owned()),
            "verify" if value == "verify_peer" => {}
            "verify" => {
                return Err(
                    "verify must be verify_peer: trust a private authority by ca_file".to_owned(),
                );
            }
            _ => return Err(not_taken(name)),
        }
        Ok(())
    }

    /// The URL without its password, for people.
    pub fn shown(&self) -> String {
        let scheme = if self.tls { "amqps" } else { "amqp" };
        let login = match (&self.user, &self.password) {
            (None, None) => String::new(),
            (user, None) => format!("{}@", user.as_deref().unwrap_or_default()),
            (user, Some(_)) => format!("{}:***@", user.as_deref().unwrap_or_default()),
        };
        let host = self.host.as_deref().unwrap_or_default();
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host.to_owned()
        };
        let port = self
            .port
            .map_or_else(String::new, |port| format!(":{port}"));
        let vhost = match &self.vhost {
            Some(vhost) => format!("/{}", vhost.replace('%', "%25").replace('/', "%2F")),
            None => String::new(),
        };
        format!("{scheme}://{login}{host}{port}{vhost}")
    }
}

fn not_taken(name: &str) -> String {
    if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
        return format!("parameter {name} is not supported: {why}");
    }
    match nearest(name, USED) {
        Some(meant) => format!("unknown parameter; did you mean {meant}?"),
        None => format!("unknown parameter; there are {}", USED.join(", ")),
    }
}

/// `url` leaves the host of a scheme it does not know as it is written.
fn host(url: &Url) -> Result<Option<String>, String> {
    match url.host() {
        None => Ok(None),
        Some(Host::Domain(name)) => some_text("host", name),
        Some(Host::Ipv4(address)) => Ok(Some(address.to_string())),
        Some(Host::Ipv6(address)) => Ok(Some(address.to_string())),
    }
}

fn vhost(url: &Url) -> Result<Option<String>, String> {
    match url.path().strip_prefix('/') {
        None => Ok(None),
        Some(segment) if segment.contains('/') => {
            Err("a / in the vhost must be written %2F; the default vhost is /%2F".to_owned())
        }
        Some(segment) => decoded("vhost", segment).map(Some),
    }
}

fn some_text(what: &str, text: &str) -> Result<Option<String>, String> {
    let text = decoded(what, text)?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

fn decoded(what: &str, text: &str) -> Result<String, String> {
    match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(format!("{what}: not UTF-8 after percent-decoding")),
    }
}

fn number(name: &str, value: &str) -> Result<u64, String> {
    value
        .parse()
        .map_err(|_| format!("{name} must be a whole number"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use secrecy::ExposeSecret;

    use super::*;

    fn read(text: &str) -> AmqpUrl {
        AmqpUrl::parse(text).unwrap()
    }

    #[test]
    fn the_vhost_follows_rabbitmqs_specification() {
        for (url, vhost) in [
            ("amqp://host", None),
            ("amqp://host/", Some("")),
            ("amqp://host/%2f", Some("/")),
            ("amqp://host/%2F", Some("/")),
            ("amqp://host:10000/vhost", Some("vhost")),
            ("amqp://host/v%2fhost", Some("v/host")),
            ("amqp://", None),
            ("amqp:///vhost", Some("vhost")),
        ] {
            assert_eq!(read(url).vhost.as_deref(), vhost, "{url}");
        }
    }

    #[test]
    fn every_part_is_percent_decoded() {
        let url = read("amqp://user%61:%61p%40ss%2F%23@ho%61st:10000/v%2fhost");
        assert_eq!(url.user.as_deref(), Some("usera"));
        assert_eq!(url.password.unwrap().expose_secret(), "ap@ss/#");
        assert_eq!(url.host.as_deref(), Some("hoast"));
        assert_eq!(url.port, Some(10000));
        assert!(!url.tls);
    }

    #[test]
    fn addresses_lose_their_brackets() {
        assert_eq!(read("amqps://[::1]:5671").host.as_deref(), Some("::1"));
        assert_eq!(read("amqps://10.0.0.1").host.as_deref(), Some("10.0.0.1"));
    }

    #[test]
    fn query_parameters_are_rabbitmqs() {
        let url = read(
            "amqps://h?heartbeat=5&connection_timeout=2500&auth_mechanism=external\
             &cacertfile=/ca.pem&certfile=/c.pem&keyfile=/k.pem&server_name_indication=n\
             &verify=verify_peer",
        );
        assert_eq!(url.heartbeat, Some(Duration::from_secs(5)));
        assert_eq!(url.connect_timeout, Some(Duration::from_millis(2500)));
        assert_eq!(url.auth, Some(Auth::External));
        assert_eq!(url.ca_file, Some(PathBuf::from("/ca.pem")));
        assert_eq!(url.cert_file, Some(PathBuf::from("/c.pem")));
        assert_eq!(url.key_file, Some(PathBuf::from("/k.pem")));
        assert_eq!(url.server_name.as_deref(), Some("n"));
    }

    #[test]
    fn the_shown_form_hides_the_password_only() {
        let shown = |url| read(url).shown();
        assert_eq!(shown("amqps://u:canary@h:1/v%2F"), "amqps://u:***@h:1/v%2F");
        assert_eq!(shown("amqp://[::1]"), "amqp://[::1]");
    }

    #[test]
    fn a_mistake_is_explained_without_the_secret() {
        for (url, problem) in [
            ("h:5672", "must begin with amqp:// or amqps://"),
            (
                "postgres://u:canary@h",
                "is a database's URL; it belongs into database.url",
            ),
            (
                "amqp://u:can/ary@h",
                "invalid port number; in user and password percent-encode what is special (@ is \
                 %40, / is %2F, : is %3A, ? is %3F, # is %23)",
            ),
            ("amqp://h/v#x", "a # must be written %23"),
            (
                "amqp://h//",
                "a / in the vhost must be written %2F; the default vhost is /%2F",
            ),
            (
                "amqp://h?verify=verify_none",
                "verify must be verify_peer: trust a private authority by ca_file",
            ),
            (
                "amqp://h?hartbeat=1",
                "unknown parameter; did you mean heartbeat?",
            ),
            ("amqp://h?heartbeat=1s", "heartbeat must be a whole number"),
            (
                "amqp://h?channel_max=5",
                "parameter channel_max is not supported: set relay.channels",
            ),
        ] {
            assert_eq!(AmqpUrl::parse(url).err().as_deref(), Some(problem), "{url}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(amqps?://)?[a-z0-9:/@?&=%,\\[\\]#é]*") {
            let _ = AmqpUrl::parse(&text);
        }
    }
}
