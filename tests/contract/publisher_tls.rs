//! The real publisher over TLS: whom it trusts, as whom it shows itself.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use outbox_relay::broker::{Broker, BrokerError, Channel, Link};
use outbox_relay::config::{BrokerEndpoint, BrokerTls, Certificates, Login};
use outbox_relay::message::RowId;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::on_rabbitmq::{broker, endpoint};
use crate::publisher::{is_confirmed, judged};
use crate::rows::publication;
use crate::support::PATIENCE;
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
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a certificate");
        authority.write("ca.pem", &certificate.pem());
        let issuer = Issuer::new(params, key);
        for name in ["broker.test", "relay"] {
            let key = KeyPair::generate().expect("a key");
            let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
            let certificate = params.signed_by(&key, &issuer).expect("a certificate");
            authority.write(&format!("{name}.pem"), &certificate.pem());
            authority.write(&format!("{name}.key"), &key.serialize_pem());
        }
        authority
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

/// A door in front of a broker that speaks TLS as `broker.test` and lets in who shows a
/// certificate. Returns its port.
async fn tls_in_front_of(port: u16) -> u16 {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(chain(&authority().path()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .expect("a verifier");
    let key = PrivateKeyDer::from_pem_file(authority().file("broker.test.key")).expect("a key");
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("known versions")
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain(&authority().file("broker.test.pem")), key)
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
    let there = encrypted(tls_in_front_of(scripted.port()).await);
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

/// What a connect fails with, and that it fails in the TLS handshake or the file for it.
async fn refusal(change: impl FnOnce(&mut BrokerTls)) -> String {
    let scripted = ScriptedBroker::start().await;
    let mut there = encrypted(tls_in_front_of(scripted.port()).await);
    there.connect_timeout = Duration::from_secs(10);
    change(there.tls.as_mut().expect("set above"));
    let refused = broker(vec![there], PATIENCE).connect().await;
    let error = refused.err().expect("refused");
    let BrokerError::Failed { step, reason, .. } = &error else {
        panic!("{error}")
    };
    format!("{step}: {reason}")
}

#[tokio::test]
async fn the_brokers_name_and_authority_are_verified() {
    let name = refusal(|tls| tls.server_name = "other.test".to_owned()).await;
    assert!(
        name.starts_with("TLS handshake: ") && name.contains("other.test"),
        "{name}"
    );
    // The operating system's authorities do not know ours.
    let unknown = refusal(|tls| tls.certificates.ca_file = None).await;
    assert!(unknown.starts_with("TLS handshake: "), "{unknown}");
}

#[tokio::test]
async fn an_unusable_file_is_named_with_its_setting() {
    let missing = PathBuf::from("/nonexistent/ca.pem");
    let text = refusal(|tls| tls.certificates.ca_file = Some(missing)).await;
    assert!(
        text.contains("broker.ca_file /nonexistent/ca.pem"),
        "{text}"
    );
    let text = refusal(|tls| tls.certificates.key_file = None).await;
    assert!(text.contains("broker.key_file is missing"), "{text}");
    let swapped = authority().file("relay.key");
    let text = refusal(|tls| tls.certificates.cert_file = Some(swapped)).await;
    assert!(text.contains("no CERTIFICATE section"), "{text}");
    let other = authority().file("broker.test.key");
    let text = refusal(|tls| tls.certificates.key_file = Some(other)).await;
    assert!(
        text.contains("broker.cert_file") && text.contains("broker.key_file"),
        "{text}"
    );
}
