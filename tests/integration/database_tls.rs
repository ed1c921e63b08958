//! TLS towards a real PostgreSQL: whom the relay trusts in which `sslmode`, as whom it shows
//! itself, and that each fault has words of its own.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::{PermissionsExt, chown};

use outbox_relay::store::error::StoreError;
use outbox_relay::store::postgres::connect::open;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};

use crate::outbox::target;
use crate::support::postgres::{Options, Postgres};
use crate::support::scratch::{Scratch, UNPRIVILEGED, is_root};

/// Certificates in files that the server may read.
struct Folder(Scratch);

impl Folder {
    /// An authority `ca.pem`, a stranger `other.pem`, and certificates of the authority.
    fn new() -> Self {
        let folder = Self(Scratch::new("tls"));
        let stranger = folder.authority("other");
        folder.sign(&stranger, "stranger", "relay", 2999);
        let issuer = folder.authority("ca");
        folder.sign(&issuer, "good", "localhost", 2999);
        folder.sign(&issuer, "elsewhere", "db.example", 2999);
        folder.sign(&issuer, "expired", "localhost", 2001);
        folder.sign(&issuer, "client", "relay", 2999);
        folder
    }

    fn authority(&self, name: &str) -> Issuer<'static, KeyPair> {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&key).expect("a certificate");
        self.write(&format!("{name}.pem"), &certificate.pem());
        Issuer::new(params, key)
    }

    fn sign(&self, issuer: &Issuer<'static, KeyPair>, file: &str, host: &str, until: i32) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec![host.to_owned()]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, host);
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let certificate = params.signed_by(&key, issuer).expect("a certificate");
        self.write(&format!("{file}.pem"), &certificate.pem());
        self.write(&format!("{file}.key"), &key.serialize_pem());
    }

    fn write(&self, name: &str, content: &str) {
        let path = self.0.join(name);
        std::fs::write(&path, content).expect("own folder");
        set_permissions(&path, Permissions::from_mode(0o600)).expect("own file");
        if is_root() {
            chown(&path, Some(UNPRIVILEGED), Some(UNPRIVILEGED)).expect("root may chown");
        }
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    async fn server(&self, certificate: &str, access: &str) -> Postgres {
        self.write("hba", access);
        Postgres::start_with(Options {
            settings: vec![
                ("ssl", "on".to_owned()),
                ("ssl_cert_file", self.file(&format!("{certificate}.pem"))),
                ("ssl_key_file", self.file(&format!("{certificate}.key"))),
                ("ssl_ca_file", self.file("ca.pem")),
                ("hba_file", self.file("hba")),
            ],
            ..Options::default()
        })
        .await
    }
}

const ANYHOW: &str = "host all all 127.0.0.1/32 trust\n";
const ENCRYPTED: &str = "hostssl all all 127.0.0.1/32 trust\n";
const KNOWN_CLIENT: &str = "hostssl all all 127.0.0.1/32 trust clientcert=verify-ca\n";

/// Is the session encrypted? Or why is there none?
async fn tried(server: &Postgres, parameters: &str) -> Result<bool, StoreError> {
    let url = server.url("postgres").replacen("127.0.0.1", "localhost", 1);
    let url = format!("{url}?hostaddr=127.0.0.1&{parameters}");
    let session = open(&target(&url), "outbox-relay/test/1").await?;
    let sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let row = session.client.query_one(sql, &[]).await.expect("a row");
    Ok(row.get(0))
}

async fn refused(server: &Postgres, parameters: &str, words: &[&str]) {
    let told = match tried(server, parameters).await {
        Ok(_) => panic!("{parameters}: let in"),
        Err(error) => {
            let remedy = error
                .fault()
                .remedy
                .as_deref()
                .expect("a remedy of its own");
            assert!(!error.found().contains(remedy), "{error}");
            error.to_string()
        }
    };
    for word in words {
        assert!(told.contains(word), "{parameters}: {told}");
    }
}

#[tokio::test]
async fn a_certificate_of_the_trusted_authority_for_the_host_passes_in_every_mode_with_tls() {
    let folder = Folder::new();
    let server = folder.server("good", ANYHOW).await;
    let ca = folder.file("ca.pem");
    for (mode, encrypted) in [
        ("verify-full", true),
        ("verify-ca", true),
        ("require", true),
        ("prefer", true),
        ("allow", false),
    ] {
        let parameters = format!("sslmode={mode}&sslrootcert={ca}");
        assert_eq!(tried(&server, &parameters).await, Ok(encrypted), "{mode}");
    }
    assert_eq!(tried(&server, "sslmode=disable").await, Ok(false));
    let unused = format!("sslmode=disable&sslrootcert={ca}");
    let told = tried(&server, &unused).await.unwrap_err().to_string();
    assert!(told.contains("certificates are given"), "{told}");
}

#[tokio::test]
async fn another_authority_is_refused_wherever_one_is_named() {
    let folder = Folder::new();
    let server = folder.server("good", ANYHOW).await;
    let other = folder.file("other.pem");
    for mode in ["verify-full", "verify-ca", "require"] {
        let parameters = format!("sslmode={mode}&sslrootcert={other}");
        let words = ["not signed by a trusted CA", "database.ca_file"];
        refused(&server, &parameters, &words).await;
    }
    assert_eq!(tried(&server, "sslmode=require").await, Ok(true));
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused_by_verify_full_only() {
    let folder = Folder::new();
    let server = folder.server("elsewhere", ANYHOW).await;
    let ca = folder.file("ca.pem");
    let words = ["for another name", "db.example", "verify-ca"];
    refused(
        &server,
        &format!("sslmode=verify-full&sslrootcert={ca}"),
        &words,
    )
    .await;
    let parameters = format!("sslmode=verify-ca&sslrootcert={ca}");
    assert_eq!(tried(&server, &parameters).await, Ok(true));
}

#[tokio::test]
async fn an_expired_certificate_is_refused_as_such() {
    let folder = Folder::new();
    let server = folder.server("expired", ANYHOW).await;
    let ca = folder.file("ca.pem");
    for mode in ["verify-full", "verify-ca"] {
        let parameters = format!("sslmode={mode}&sslrootcert={ca}");
        refused(&server, &parameters, &["has expired: renew it"]).await;
    }
}

#[tokio::test]
async fn a_server_that_wants_to_know_the_client_is_shown_its_certificate() {
    let folder = Folder::new();
    let server = folder.server("good", KNOWN_CLIENT).await;
    let anonymous = format!("sslmode=verify-full&sslrootcert={}", folder.file("ca.pem"));
    refused(&server, &anonymous, &["set database.cert_file", "28000"]).await;
    let (cert, key) = (folder.file("client.pem"), folder.file("client.key"));
    let known = format!("{anonymous}&sslcert={cert}&sslkey={key}");
    assert_eq!(tried(&server, &known).await, Ok(true));
    let (cert, key) = (folder.file("stranger.pem"), folder.file("stranger.key"));
    let stranger = format!("{anonymous}&sslcert={cert}&sslkey={key}");
    let words = [
        "does not accept the client's certificate",
        "database.cert_file",
    ];
    refused(&server, &stranger, &words).await;
}

#[tokio::test]
async fn a_server_that_insists_on_tls_gets_it_where_the_mode_leaves_it_open() {
    let folder = Folder::new();
    let server = folder.server("good", ENCRYPTED).await;
    assert_eq!(tried(&server, "sslmode=allow").await, Ok(true));
    assert_eq!(tried(&server, "sslmode=prefer").await, Ok(true));
    refused(&server, "sslmode=disable", &["database.sslmode", "28000"]).await;
}

#[tokio::test]
async fn a_server_without_tls_is_told_with_both_ways_out() {
    let server = Postgres::start().await;
    let words = ["does not support TLS", "ssl = on", "sslmode"];
    refused(&server, "sslmode=require", &words).await;
}
