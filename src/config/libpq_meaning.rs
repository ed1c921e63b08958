//! What libpq's parameters mean: values, libpq's defaults, and one exception, the `sslmode`.
//!
//! libpq's default, `prefer`, silently speaks plain text to whoever answers. Here it is
//! `verify-full`; only if every host is this machine (a socket or a loopback address) and no
//! certificate is configured, nothing is encrypted, as nobody is on that wire.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::SecretString;

use super::database_access::{
    Certificates, ChannelBinding, DatabaseAccess, Endpoint, Host, Keepalives, SessionKind,
};
use super::libpq::Parameters;
use super::passfile;
use super::setting::Setting;
use super::{DatabaseSection, SslMode};

/// Where a server listens if no host is given: Debian's and Red Hat's directory, else upstream's.
const SOCKET_DIRECTORIES: [&str; 2] = ["/var/run/postgresql", "/tmp"];
/// Probes after silence: an unplugged server is noticed in a minute, not in libpq's two hours.
const KEEPALIVES: Keepalives = Keepalives {
    idle: Duration::from_secs(30),
    interval: Duration::from_secs(10),
    count: 3,
};
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(30);
const LONGEST_CONNECT: u64 = 300;

/// Turns parameters into values; what has no meaning becomes a problem and a harmless value.
pub(super) struct Meaning<'a> {
    parameters: &'a Parameters,
    problems: Vec<String>,
}

impl<'a> Meaning<'a> {
    pub fn of(parameters: &'a Parameters) -> Self {
        Self {
            parameters,
            problems: Vec::new(),
        }
    }

    /// All of it, or all that has no meaning. Timeouts come from the section unless the URL has
    /// its own.
    pub fn access(
        mut self,
        section: &DatabaseSection,
        password: Option<&SecretString>,
    ) -> Result<DatabaseAccess, Vec<String>> {
        self.refuse_what_cannot_be_done();
        let endpoints = self.endpoints(password);
        let several = endpoints.len() > 1;
        let certificates = self.certificates();
        let sslmode = self.sslmode(&endpoints, &certificates);
        let text = |name| self.parameters.get(name).map(str::to_owned);
        let (user, dbname, options) = (text("user"), text("dbname"), text("options"));
        let application_name =
            text("application_name").or_else(|| text("fallback_application_name"));
        let access = DatabaseAccess {
            endpoints,
            user,
            dbname,
            sslmode,
            direct_tls: self.direct_tls(sslmode),
            certificates,
            channel_binding: self.channel_binding(),
            session: self.session(several),
            shuffle: self.word(
                "load_balance_hosts",
                &[("disable", false), ("random", true)],
                false,
            ),
            application_name,
            options,
            keepalives: self.keepalives(),
            tcp_user_timeout: self.tcp_user_timeout(),
            connect_timeout: self.connect_timeout(section.connect_timeout),
            statement_timeout: section.statement_timeout,
        };
        if self.problems.is_empty() {
            Ok(access)
        } else {
            Err(self.problems)
        }
    }

    /// Values that ask for something the client does not do.
    fn refuse_what_cannot_be_done(&mut self) {
        self.word("sslcompression", &[("0", ())], ());
        self.word("sslsni", &[("1", ())], ());
        self.word("gssencmode", &[("disable", ()), ("prefer", ())], ());
        let encodings = [("UTF8", ()), ("utf8", ()), ("UTF-8", ()), ("utf-8", ())];
        self.word("client_encoding", &encodings, ());
    }

    fn endpoints(&mut self, password: Option<&SecretString>) -> Vec<Endpoint> {
        let names = self.parameters.list("host");
        let addresses = self.parameters.list("hostaddr");
        let count = names.len().max(addresses.len()).max(1);
        if !names.is_empty() && !addresses.is_empty() && names.len() != addresses.len() {
            self.problem("hostaddr must name as many addresses as host names hosts".to_owned());
        }
        let ports = self.parameters.list("port");
        if ports.len() > 1 && ports.len() != count {
            self.problem(format!(
                "port must be one, or one for each of the {count} hosts"
            ));
        }
        (0..count)
            .map(|at| {
                let port = ports.get(at).or(ports.first()).copied().unwrap_or("");
                let port = self.port(port);
                let host = self.host(
                    names.get(at).copied().unwrap_or(""),
                    addresses.get(at).copied().unwrap_or(""),
                );
                let password = match password {
                    Some(password) => Some(password.clone()),
                    None => self.look_up_password(&host, port),
                };
                Endpoint {
                    host,
                    port,
                    password,
                }
            })
            .collect()
    }

    fn port(&mut self, text: &str) -> u16 {
        match text {
            "" => 5432,
            text => text
                .parse()
                .ok()
                .filter(|port| *port > 0)
                .unwrap_or_else(|| {
                    self.problem("port must be a number from 1 to 65535".to_owned());
                    5432
                }),
        }
    }

    fn host(&mut self, name: &str, address: &str) -> Host {
        let ip = match address {
            "" => None,
            text => text.parse::<IpAddr>().map_or_else(
                |_| {
                    self.problem("hostaddr must be an IP address".to_owned());
                    None
                },
                Some,
            ),
        };
        if name.starts_with('@') {
            self.problem("abstract Unix sockets (@…) are not supported".to_owned());
        }
        match (name, ip) {
            ("", Some(ip)) => Host::Tcp {
                name: ip.to_string(),
                address: Some(ip),
            },
            ("", None) => Host::Unix(default_socket_directory()),
            (path, None) if path.starts_with('/') => Host::Unix(PathBuf::from(path)),
            (name, address) => Host::Tcp {
                name: name.to_owned(),
                address,
            },
        }
    }

    fn look_up_password(&mut self, host: &Host, port: u16) -> Option<SecretString> {
        let path = self.parameters.get("passfile")?;
        let Some(user) = self.parameters.get("user") else {
            self.problem("passfile needs a user to look for".to_owned());
            return None;
        };
        let directory;
        let host = match host {
            Host::Tcp { name, .. } => name.as_str(),
            Host::Unix(path) if *path == default_socket_directory() => "localhost",
            Host::Unix(path) => {
                directory = path.display().to_string();
                &directory
            }
        };
        let wanted = passfile::Entry {
            host,
            port,
            dbname: self.parameters.get("dbname").unwrap_or(user),
            user,
        };
        passfile::look_up(Path::new(path), &wanted).unwrap_or_else(|problem| {
            self.problem(problem);
            None
        })
    }

    fn certificates(&mut self) -> Certificates {
        let path = |name| self.parameters.get(name).map(PathBuf::from);
        let certificates = Certificates {
            ca_file: path("sslrootcert").filter(|path| path != Path::new("system")),
            cert_file: path("sslcert"),
            key_file: path("sslkey"),
        };
        if certificates.cert_file.is_some() != certificates.key_file.is_some() {
            self.problem(
                "a client certificate needs both cert_file (sslcert) and key_file (sslkey)"
                    .to_owned(),
            );
        }
        certificates
    }

    fn sslmode(&mut self, endpoints: &[Endpoint], certificates: &Certificates) -> SslMode {
        let local = endpoints.iter().all(|endpoint| endpoint.host.is_local());
        let default = if local && *certificates == Certificates::default() {
            SslMode::Disable
        } else {
            SslMode::VerifyFull
        };
        let Some(text) = self.parameters.get("sslmode") else {
            return match self.parameters.get("sslrootcert") {
                Some("system") => SslMode::VerifyFull,
                Some(_) | None => default,
            };
        };
        let mode = SslMode::from_text(text).unwrap_or_else(|problem| {
            self.problem(format!("sslmode {problem}"));
            default
        });
        let system = self.parameters.get("sslrootcert") == Some("system");
        if system && mode != SslMode::VerifyFull {
            self.problem("sslrootcert=system needs sslmode=verify-full, as in libpq".to_owned());
        }
        mode
    }

    fn direct_tls(&mut self, mode: SslMode) -> bool {
        let direct = self.word(
            "sslnegotiation",
            &[("postgres", false), ("direct", true)],
            false,
        );
        if direct && matches!(mode, SslMode::Disable | SslMode::Allow | SslMode::Prefer) {
            self.problem("sslnegotiation=direct needs sslmode=require or stronger".to_owned());
        }
        direct
    }

    fn channel_binding(&mut self) -> ChannelBinding {
        let words = [
            ("disable", ChannelBinding::Disable),
            ("prefer", ChannelBinding::Prefer),
            ("require", ChannelBinding::Require),
        ];
        self.word("channel_binding", &words, ChannelBinding::Prefer)
    }

    /// With several hosts the one that takes writes is meant; a single host is taken as it is,
    /// so that its state can be told.
    fn session(&mut self, several: bool) -> SessionKind {
        let default = if several {
            SessionKind::ReadWrite
        } else {
            SessionKind::Any
        };
        let words = [
            ("any", SessionKind::Any),
            ("read-write", SessionKind::ReadWrite),
            ("primary", SessionKind::Primary),
        ];
        self.word("target_session_attrs", &words, default)
    }

    fn keepalives(&mut self) -> Option<Keepalives> {
        let on = self.number("keepalives", 0, 1, 1);
        let seconds = |default: Duration| default.as_secs();
        let keepalives = Keepalives {
            idle: Duration::from_secs(self.number(
                "keepalives_idle",
                0,
                32_767,
                seconds(KEEPALIVES.idle),
            )),
            interval: Duration::from_secs(self.number(
                "keepalives_interval",
                0,
                32_767,
                seconds(KEEPALIVES.interval),
            )),
            count: u32::try_from(self.number(
                "keepalives_count",
                0,
                127,
                u64::from(KEEPALIVES.count),
            ))
            .unwrap_or(KEEPALIVES.count),
        };
        (on == 1).then_some(keepalives)
    }

    fn tcp_user_timeout(&mut self) -> Option<Duration> {
        let default = u64::try_from(TCP_USER_TIMEOUT.as_millis()).unwrap_or(0);
        let millis = self.number("tcp_user_timeout", 0, 86_400_000, default);
        Some(Duration::from_millis(millis)).filter(|timeout| !timeout.is_zero())
    }

    fn connect_timeout(&mut self, default: Duration) -> Duration {
        match self.parameters.get("connect_timeout") {
            None => default,
            // libpq's "for ever".
            Some(text) if text.trim() == "0" => {
                self.problem(format!(
                    "connect_timeout=0 would wait for ever; write seconds from 1 to {LONGEST_CONNECT}"
                ));
                default
            }
            Some(_) => Duration::from_secs(self.number("connect_timeout", 1, LONGEST_CONNECT, 1)),
        }
    }

    fn number(&mut self, name: &str, low: u64, high: u64, default: u64) -> u64 {
        let Some(text) = self.parameters.get(name) else {
            return default;
        };
        let number = text.trim().parse().ok();
        number
            .filter(|number| (low..=high).contains(number))
            .unwrap_or_else(|| {
                self.problem(format!("{name} must be a number from {low} to {high}"));
                default
            })
    }

    fn word<T: Copy>(&mut self, name: &str, words: &[(&str, T)], default: T) -> T {
        let Some(text) = self.parameters.get(name) else {
            return default;
        };
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return *value;
        }
        let words: Vec<String> = words.iter().map(|(word, _)| (*word).to_owned()).collect();
        self.problem(format!(
            "{name} must be {}, or be left out",
            super::nearest::any_of(&words)
        ));
        default
    }

    fn problem(&mut self, problem: String) {
        self.problems.push(problem);
    }
}

fn default_socket_directory() -> PathBuf {
    let [preferred, fallback] = SOCKET_DIRECTORIES.map(Path::new);
    let directory = if preferred.is_dir() {
        preferred
    } else {
        fallback
    };
    directory.to_owned()
}
