//! The real publisher over TLS: whom it trusts, as whom it shows itself.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use outbox_relay::broker::{Broker, BrokerError, Channel, Link};
use outbox_relay::config::{BrokerEndpoint, BrokerTls, Certificates, Login};
use outbox_relay::message::RowId;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::on_rabbitmq::{broker, endpoint};
use crate::publisher::{is_confirmed, judged};
use crate::rows::publication;
use crate::support::PATIENCE;
use crate::support::rabbit::Rabbit;
use crate::support::scripted_broker::ScriptedBroker;

/// A certificate authority and what it has signed, in files.
pub struct Authority {
    folder: TempDir,
}

/// The one of these tests.
pub fn authority() -> &'static Authority {
    static AUTHORITY: OnceLock<Authority> = OnceLock::new();
    AUTHORITY.get_or_init(Authority::new)
}

impl Authority {
    fn new() -> Self {
        let authority = Self {
            folder: TempDir::new().expect("a folder"),
        };
        let stranger = authority.issuer("other");
        authority.sign(&stranger, "stranger", "relay", 2999);
        let issuer = authority.issuer("ca");
        authority.sign(&issuer, "broker.test", "broker.test", 2999);
        authority.sign(&issuer, "expired", "broker.test", 2001);
        authority.sign(&issuer, "relay", "relay", 2999);
        authority.sign(&issuer, "former", "relay", 2001);
        authority
    }

    fn issuer(&self, name: &str) -> Issuer<'static, KeyPair> {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&key).expect("a certificate");
        self.write(&format!("{name}.pem"), &certificate.pem());
        Issuer::new(params, key)
    }

    fn sign(&self, issuer: &Issuer<'static, KeyPair>, file: &str, name: &str, until: i32) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let certificate = params.signed_by(&key, issuer).expect("a certificate");
        self.write(&format!("{file}.pem"), &certificate.pem());
        self.write(&format!("{file}.key"), &key.serialize_pem());
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.file(name), content).expect("own folder");
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The authority's own certificate.
    pub fn path(&self) -> PathBuf {
        self.file("ca.pem")
    }
}

fn chain(path: &Path) -> Vec<CertificateDer<'static>> {
    let certificates = CertificateDer::pem_file_iter(path).expect("a file");
    certificates
        .map(|certificate| certificate.expect("PEM"))
        .collect()
}

/// A door in front of a broker that speaks TLS, shows the certificate in that file and lets in who
/// shows one. Returns its port.
async fn tls_in_front_of(port: u16, shown: &str) -> u16 {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(chain(&authority().path()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .expect("a verifier");
    let key =
        PrivateKeyDer::from_pem_file(authority().file(&format!("{shown}.key"))).expect("a key");
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("known versions")
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain(&authority().file(&format!("{shown}.pem"))), key)
        .expect("a matching pair");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let here = listener.local_addr().expect("it listens").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut outside) = acceptor.accept(stream).await else {
                    return;
                };
                let inside = TcpStream::connect(("127.0.0.1", port)).await;
                let mut inside = inside.expect("the broker listens");
                // Ends with the connection, however that ends.
                let _ = tokio::io::copy_bidirectional(&mut outside, &mut inside).await;
            });
        }
    });
    here
}

fn encrypted(port: u16) -> BrokerEndpoint {
    BrokerEndpoint {
        tls: Some(BrokerTls {
            server_name: "broker.test".to_owned(),
            certificates: Certificates {
                ca_file: Some(authority().path()),
                cert_file: Some(authority().file("relay.pem")),
                key_file: Some(authority().file("relay.key")),
            },
        }),
        login: Login::External,
        ..endpoint(port, "/")
    }
}

#[tokio::test]
async fn a_client_certificate_and_the_right_name_let_us_in() {
    let scripted = ScriptedBroker::start().await;
    let there = encrypted(tls_in_front_of(scripted.port(), "broker.test").await);
    let publisher = broker(vec![there], PATIENCE);
    let (link, mut session) = tokio::join!(publisher.connect(), scripted.accept());
    let link = link.expect("let in");
    let opened = tokio::select! {
        opened = link.open_channel() => opened,
        published = session.published() => panic!("{published:?}"),
    };
    let mut channel = opened.expect("a channel");
    channel.publish(vec![publication(1, "", "q")]).await;
    let message = session.published().await.expect("published");
    session.ack(message.channel, message.tag, false);
    session.flush().await;
    assert!(is_confirmed(&judged(&mut channel, 1).await[&RowId(1)]));
}

/// What a connect fails with.
async fn error_of(there: BrokerEndpoint) -> BrokerError {
    let there = BrokerEndpoint {
        connect_timeout: PATIENCE,
        ..there
    };
    let refused = broker(vec![there], PATIENCE).connect().await;
    refused.err().expect("refused")
}

/// What makes it right, as `check` shows it. The log's text ends with it.
fn remedy_of(error: &BrokerError) -> &str {
    let BrokerError::Misfit { remedy, .. } = error else {
        panic!("{error}")
    };
    assert!(error.to_string().ends_with(remedy), "{error}");
    assert!(!error.found().contains(remedy), "{error}");
    remedy
}

/// What a door with that certificate refuses the relay for.
async fn refusal(shown: &str, change: impl FnOnce(&mut BrokerTls)) -> BrokerError {
    let scripted = ScriptedBroker::start().await;
    let mut there = encrypted(tls_in_front_of(scripted.port(), shown).await);
    change(there.tls.as_mut().expect("set above"));
    error_of(there).await
}

#[tokio::test]
async fn the_brokers_certificate_is_verified_and_each_fault_names_its_setting() {
    let name = refusal("broker.test", |tls| {
        tls.server_name = "other.test".to_owned();
    })
    .await;
    assert!(name.found().contains("other.test"), "{name}");
    assert!(remedy_of(&name).contains("broker.server_name"), "{name}");
    // The operating system's authorities do not know ours.
    let unknown = refusal("broker.test", |tls| tls.certificates.ca_file = None).await;
    assert!(remedy_of(&unknown).contains("broker.ca_file"), "{unknown}");
    let other = Some(authority().file("other.pem"));
    let unknown = refusal("broker.test", |tls| tls.certificates.ca_file = other).await;
    assert!(remedy_of(&unknown).contains("broker.ca_file"), "{unknown}");
    let expired = refusal("expired", |_| ()).await;
    assert!(remedy_of(&expired).contains("renew it"), "{expired}");
    for error in [name, unknown, expired] {
        assert!(error.found().contains(": TLS handshake: "), "{error}");
    }
}

#[tokio::test]
async fn a_client_certificate_that_is_not_taken_is_named_with_its_setting() {
    let none = refusal("broker.test", |tls| {
        tls.certificates.cert_file = None;
        tls.certificates.key_file = None;
    })
    .await;
    assert!(remedy_of(&none).contains("broker.cert_file"), "{none}");
    for file in ["stranger", "former"] {
        let error = refusal("broker.test", |tls| {
            tls.certificates.cert_file = Some(authority().file(&format!("{file}.pem")));
            tls.certificates.key_file = Some(authority().file(&format!("{file}.key")));
        })
        .await;
        let remedy = remedy_of(&error);
        assert!(remedy.contains("broker.cert_file"), "{file}: {error}");
        assert!(remedy.contains("broker.key_file"), "{file}: {error}");
    }
}

#[tokio::test]
async fn a_port_that_speaks_something_else_is_told_from_a_broker_that_is_down() {
    let rabbit = Rabbit::start().await;
    let plain = error_of(encrypted(rabbit.port())).await;
    let remedy = remedy_of(&plain);
    assert!(remedy.contains("does not speak TLS"), "{plain}");
    assert!(remedy.contains("amqp://"), "{plain}");
    let scripted = ScriptedBroker::start().await;
    let door = tls_in_front_of(scripted.port(), "broker.test").await;
    let tls = error_of(endpoint(door, "/")).await;
    assert!(remedy_of(&tls).contains("amqps://"), "{tls}");
    let web = error_of(endpoint(web_server().await, "/")).await;
    let remedy = remedy_of(&web);
    assert!(remedy.contains("does not speak AMQP"), "{web}");
    assert!(remedy.contains("broker.url"), "{web}");
}

/// Answers whatever is asked as web servers answer what they do not understand.
async fn web_server() -> u16 {
    const ANSWER: &[u8] = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let here = listener.local_addr().expect("it listens").port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut asked = [0; 8];
            stream.read_exact(&mut asked).await.expect("eight bytes");
            stream.write_all(ANSWER).await.expect("it reads");
        }
    });
    here
}

#[tokio::test]
async fn an_unusable_file_is_named_with_its_setting() {
    let refusal = async |change: fn(&mut Certificates)| {
        let error = refusal("broker.test", |tls| change(&mut tls.certificates)).await;
        assert!(matches!(error, BrokerError::Settings { .. }), "{error}");
        error.to_string()
    };
    let text = refusal(|files| files.ca_file = Some("/nonexistent/ca.pem".into())).await;
    assert!(
        text.contains("broker.ca_file /nonexistent/ca.pem"),
        "{text}"
    );
    let text = refusal(|files| files.key_file = None).await;
    assert!(text.contains("broker.key_file is missing"), "{text}");
    let text = refusal(|files| files.cert_file = Some(authority().file("relay.key"))).await;
    assert!(text.contains("no CERTIFICATE section"), "{text}");
    let text = refusal(|files| files.key_file = Some(authority().file("broker.test.key"))).await;
    assert!(
        text.contains("broker.cert_file") && text.contains("broker.key_file"),
        "{text}"
    );
}
