//! Connects to one broker: name, TCP, TLS, AMQP, all within one deadline.
//!
//! Tries nothing twice; the retry loop is the engine's.

use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_compat::{Compat, CompatExt};
use lapin::auth::AuthProvider;
use lapin::tcp::{AsyncTcpStream, RustlsConnector};
use lapin::types::{FrameSize, LongString, ShortString};
use lapin::uri::{
    AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo, SASLMechanism,
};
use lapin::{Connection, ConnectionProperties};
use secrecy::{ExposeSecret, SecretString};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::misfit::{self, Trouble};
use super::readable::{self, Readable};
use super::socket::{self, ShutOnDrop};
use super::{tls, whole_seconds};
use crate::broker::{BrokerError, TCP_CONNECT};
use crate::config::{BrokerEndpoint, BrokerTls, Login};

/// What we ask for: RabbitMQ's own default. Content headers must fit in one frame, and lapin
/// keeps buffers of 64 frames.
const FRAME_MAX: FrameSize = 131_072;

/// The name shown in RabbitMQ's management pages.
const CONNECTION_NAME: &str = "outbox-relay";

pub(super) type Stream = AsyncTcpStream<Compat<TcpStream>>;

/// An open connection and what ends with it.
pub(super) struct Connected {
    pub(super) connection: Connection,
    pub(super) socket: ShutOnDrop,
    /// Ends when lapin's thread does, however that comes about.
    pub(super) thread: oneshot::Receiver<()>,
}

/// Connects. Dropped half-way, it leaves no thread behind.
///
/// # Errors
/// [`BrokerError`] names the endpoint, the step and why.
pub(super) async fn connect(endpoint: &BrokerEndpoint) -> Result<Connected, BrokerError> {
    let steps = Steps::towards(endpoint);
    let open = socket::open(&endpoint.host, endpoint.port, endpoint.heartbeat);
    let tcp = steps.take(TCP_CONNECT, open).await?;
    // From here on every way out shuts the socket, and with it lapin's thread.
    let socket = ShutOnDrop::of(&tcp).map_err(|error| steps.failed(TCP_CONNECT, error.into()))?;
    let plain = AsyncTcpStream::Plain(tcp.compat());
    let stream = match &endpoint.tls {
        Some(tls) => steps.take("TLS handshake", encrypt(plain, tls)).await?,
        None => plain,
    };
    let (ended, thread) = oneshot::channel();
    let connection = steps
        .take("AMQP handshake", handshake(endpoint, stream, ended))
        .await?;
    Ok(Connected {
        connection,
        socket,
        thread,
    })
}

pub(super) struct Steps<'a> {
    endpoint: &'a BrokerEndpoint,
    deadline: Instant,
}

impl<'a> Steps<'a> {
    /// The deadline begins now.
    pub(super) fn towards(endpoint: &'a BrokerEndpoint) -> Self {
        let deadline = Instant::now() + endpoint.connect_timeout;
        Self { endpoint, deadline }
    }

    pub(super) async fn take<T, E: Into<Trouble>>(
        &self,
        step: &'static str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, BrokerError> {
        match timeout_at(self.deadline, pin!(work)).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => Err(self.failed(step, error.into())),
            Err(_) => Err(BrokerError::Timeout {
                host: self.endpoint.to_string(),
                step,
                seconds: whole_seconds(self.endpoint.connect_timeout),
            }),
        }
    }

    fn failed(&self, step: &'static str, trouble: Trouble) -> BrokerError {
        let host = self.endpoint.to_string();
        let error = match trouble {
            Trouble::Settings(reason) => return BrokerError::Settings { host, reason },
            Trouble::Met(error) => error,
        };
        let reason = error.to_string();
        match misfit::remedy(self.endpoint.tls.is_some(), &*error) {
            None => BrokerError::Failed { host, step, reason },
            Some(remedy) => BrokerError::Misfit {
                host,
                step,
                reason,
                remedy: remedy.to_owned(),
            },
        }
    }
}

pub(super) async fn encrypt(plain: Stream, tls: &BrokerTls) -> Result<Stream, Trouble> {
    let certificates = tls.certificates.clone();
    let config = tokio::task::spawn_blocking(move || tls::client_config(&certificates));
    let config = config.await?.map_err(Trouble::Settings)?;
    let connector = RustlsConnector::from(Arc::new(config));
    Ok(plain.into_rustls(&connector, &tls.server_name).await?)
}

/// `ended` is dropped when lapin's thread ends, because the closure is.
async fn handshake(
    endpoint: &BrokerEndpoint,
    stream: Stream,
    ended: oneshot::Sender<()>,
) -> lapin::Result<Connection> {
    let readable = AsyncTcpStream::Plain(Readable::new(stream));
    let prepared = Mutex::new(Some(readable));
    let hand_over = async move |_, _| {
        let _ended = &ended;
        let mut stream = prepared.lock().unwrap_or_else(PoisonError::into_inner);
        // lapin asks again only when it reconnects by itself, which is off.
        stream
            .take()
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected).into())
    };
    Connection::connector(
        uri(endpoint),
        readable::runtime(),
        hand_over,
        options(endpoint),
    )
    .await
}

/// Holds no login: lapin's URI types print the password. [`Credentials`] is asked for it.
fn uri(endpoint: &BrokerEndpoint) -> AMQPUri {
    let scheme = match endpoint.tls {
        Some(_) => AMQPScheme::AMQPS,
        None => AMQPScheme::AMQP,
    };
    AMQPUri {
        scheme,
        authority: AMQPAuthority {
            userinfo: AMQPUserInfo {
                username: String::new(),
                password: String::new(),
            },
            host: endpoint.host.clone(),
            port: endpoint.port,
        },
        vhost: endpoint.vhost.clone(),
        query: AMQPQueryString {
            frame_max: Some(FRAME_MAX),
            heartbeat: Some(heartbeat_seconds(endpoint.heartbeat)),
            ..AMQPQueryString::default()
        },
    }
}

/// AMQP negotiates whole seconds, and zero would switch heartbeats off.
fn heartbeat_seconds(heartbeat: Duration) -> u16 {
    u16::try_from(whole_seconds(heartbeat).max(1)).unwrap_or(u16::MAX)
}

fn options(endpoint: &BrokerEndpoint) -> ConnectionProperties {
    let text = |text: &str| LongString::from(text);
    ConnectionProperties::default()
        .with_connection_name(text(CONNECTION_NAME))
        .with_client_property("product".into(), text(CONNECTION_NAME))
        .with_client_property("version".into(), text(env!("CARGO_PKG_VERSION")))
        .with_auth_provider(Credentials(endpoint.login.clone()))
}

/// Answers the broker's question who we are.
struct Credentials(Login);

impl AuthProvider for Credentials {
    fn mechanism(&self) -> ShortString {
        match &self.0 {
            Login::Plain { .. } => SASLMechanism::Plain.name().into(),
            Login::External => SASLMechanism::External.name().into(),
        }
    }

    fn auth_starter(&self) -> Result<LongString, String> {
        Ok(match &self.0 {
            Login::Plain { user, password } => plain(user, password),
            Login::External => LongString::from(""),
        })
    }
}

/// RFC 4616: no authorisation identity, user, password, separated by NUL.
fn plain(user: &str, password: &SecretString) -> LongString {
    LongString::from(format!("\0{user}\0{}", password.expose_secret()))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio::time::{interval, timeout};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn endpoint(port: u16) -> BrokerEndpoint {
        BrokerEndpoint {
            host: "127.0.0.1".to_owned(),
            port,
            vhost: "/".to_owned(),
            tls: None,
            login: Login::External,
            heartbeat: Duration::from_secs(10),
            connect_timeout: Duration::from_millis(200),
        }
    }

    fn threads_of_lapin() -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names
            .filter(|name| name.trim_end() == "lapin-io-loop")
            .count()
    }

    /// The kernel does not say when a thread ends, so it is asked again and again.
    async fn until_threads_are(count: usize) {
        let mut ticks = interval(Duration::from_millis(5));
        let reached = async {
            while threads_of_lapin() != count {
                ticks.tick().await;
            }
        };
        timeout(PATIENCE, reached).await.unwrap();
    }

    #[tokio::test]
    async fn an_abandoned_connect_leaves_no_thread() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = endpoint(silent.local_addr().unwrap().port());
        let patient = BrokerEndpoint {
            connect_timeout: PATIENCE,
            ..there.clone()
        };
        // Given up by its own deadline, and dropped half-way by somebody else's.
        let (given_up, dropped) = tokio::join!(connect(&there), async {
            tokio::select! {
                _ = connect(&patient) => panic!("nobody answers"),
                () = until_threads_are(2) => {}
            }
        });
        let () = dropped;
        assert!(matches!(given_up, Err(BrokerError::Timeout { .. })));
        until_threads_are(0).await;
    }

    #[test]
    fn heartbeats_are_whole_seconds_and_never_off() {
        for (millis, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (10_000, 10)] {
            assert_eq!(heartbeat_seconds(Duration::from_millis(millis)), seconds);
        }
        assert_eq!(heartbeat_seconds(Duration::from_secs(1_000_000)), u16::MAX);
    }

    #[test]
    fn no_login_is_in_the_uri() {
        let there = BrokerEndpoint {
            login: Login::Plain {
                user: "canary".to_owned(),
                password: "canary".into(),
            },
            ..endpoint(1)
        };
        assert!(!format!("{:?}", uri(&there)).contains("canary"));
        assert!(!format!("{:?}", options(&there)).contains("canary"));
        let starter = Credentials(there.login).auth_starter().unwrap();
        assert_eq!(starter.as_bytes(), b"\0canary\0canary");
    }
}
