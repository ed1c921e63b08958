//! TLS towards PostgreSQL with the meaning that libpq gives to `sslmode`.
//!
//! Builds a rustls configuration, nothing else. Files are read every time, so that a
//! certificate can be rotated without a restart. Source: PostgreSQL manual, "SSL Support"
//! (libpq-ssl), table "SSL Mode Descriptions".

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
};

use crate::config::{Certificates, SslMode};
use crate::store::error::{Fault, StoreError};

/// Builds the TLS client. Blocks on reading files: call it where blocking is allowed.
///
/// # Errors
/// [`StoreError::Settings`] names the setting and the file that cannot be used.
pub fn client_config(mode: SslMode, files: &Certificates) -> Result<ClientConfig, StoreError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = verifier(mode, files.ca_file.as_deref(), &provider)?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("sslmode", &error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    match (&files.cert_file, &files.key_file) {
        (Some(cert), Some(key)) => builder
            .with_client_auth_cert(certificates("cert_file", cert)?, private_key(key)?)
            .map_err(|error| {
                let files = format!("{} and {}", cert.display(), key.display());
                unusable("cert_file, key_file", &format!("{files}: {error}"))
            }),
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(_), None) => Err(unusable("key_file", "missing: cert_file is set")),
        (None, Some(_)) => Err(unusable("cert_file", "missing: key_file is set")),
    }
}

fn verifier(
    mode: SslMode,
    ca_file: Option<&Path>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, StoreError> {
    let trust_chain = |roots| {
        Arc::new(Lenient {
            roots: Some(roots),
            provider: Arc::clone(provider),
        })
    };
    match mode {
        SslMode::VerifyFull => {
            let roots = Arc::new(roots(ca_file)?);
            let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider))
                .build()
                .map_err(|error| unusable("ca_file", &error.to_string()))?;
            Ok(verifier)
        }
        SslMode::VerifyCa => Ok(trust_chain(roots(ca_file)?)),
        SslMode::Require if ca_file.is_some() => Ok(trust_chain(roots(ca_file)?)),
        SslMode::Require | SslMode::Prefer | SslMode::Allow | SslMode::Disable => {
            Ok(Arc::new(Lenient {
                roots: None,
                provider: Arc::clone(provider),
            }))
        }
    }
}

fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, StoreError> {
    let mut store = RootCertStore::empty();
    let Some(path) = ca_file else {
        let found = rustls_native_certs::load_native_certs();
        store.add_parsable_certificates(found.certs);
        return if store.is_empty() {
            let reason = "missing, and the operating system has no trusted certificates: \
                          install ca-certificates or name the CA's PEM file";
            Err(unusable("ca_file", reason))
        } else {
            Ok(store)
        };
    };
    for certificate in certificates("ca_file", path)? {
        store
            .add(certificate)
            .map_err(|error| unusable("ca_file", &format!("{}: {error}", path.display())))?;
    }
    Ok(store)
}

fn certificates(
    setting: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let read = |error| unusable(setting, &format!("{}: {error}", path.display()));
    let found = CertificateDer::pem_file_iter(path)
        .map_err(read)?
        .collect::<Result<Vec<_>, _>>()
        .map_err(read)?;
    if found.is_empty() {
        let reason = format!("{}: no CERTIFICATE section (PEM expected)", path.display());
        return Err(unusable(setting, &reason));
    }
    Ok(found)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, StoreError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| {
        let reason = format!(
            "{}: {error} (an unencrypted PEM private key is expected)",
            path.display()
        );
        unusable("key_file", &reason)
    })
}

fn unusable(setting: &str, reason: &str) -> StoreError {
    StoreError::Settings(Fault::new(format!("database.{setting}"), reason))
}

/// What to do about a refused handshake, in words; `None` where nothing better is known.
#[must_use]
pub fn remedy(error: &Error) -> Option<&'static str> {
    use CertificateError as Reason;
    if let Error::AlertReceived(alert) = error {
        return Some(if matches!(alert, AlertDescription::CertificateRequired) {
            "the server wants a client certificate: set database.cert_file and database.key_file"
        } else {
            "the server refused the handshake: it may have no TLS version or cipher in common \
             with the relay, or it does not accept the client's certificate (database.cert_file)"
        });
    }
    let Error::InvalidCertificate(reason) = error else {
        return None;
    };
    // Bad signature: an authority of the same name, but another key.
    if matches!(reason, Reason::UnknownIssuer | Reason::BadSignature) {
        Some(
            "the server's certificate is not signed by a trusted CA: name the CA's PEM file \
             in database.ca_file",
        )
    } else if matches!(reason, Reason::Expired | Reason::ExpiredContext { .. }) {
        Some("the server's certificate has expired: renew it")
    } else if matches!(
        reason,
        Reason::NotValidYet | Reason::NotValidYetContext { .. }
    ) {
        Some("the server's certificate is not valid yet: compare the clocks")
    } else if matches!(
        reason,
        Reason::NotValidForName | Reason::NotValidForNameContext { .. }
    ) {
        Some(
            "the server's certificate is for another name: connect by a name it holds \
             (subject alternative names only), or accept any name by sslmode verify-ca",
        )
    } else {
        None
    }
}

/// What to do about a login that was refused before any password (SQLSTATE 28000): by an entry of
/// `pg_hba.conf`, or for want of one, or of the role. Which of them, only the server's translated
/// words say; how we came tells what they can be about. `known`: we showed a certificate.
#[must_use]
pub fn login_remedy(mode: SslMode, known: bool) -> &'static str {
    if matches!(mode, SslMode::Disable) {
        "if the server lets in encrypted connections only, set a stronger database.sslmode; \
         otherwise correct the login in [database], or pg_hba.conf on the server"
    } else if known {
        "if it is about the client's certificate, database.cert_file has to be of an authority \
         that the server trusts (ssl_ca_file) and, if it is the login, for this user; otherwise \
         correct the login in [database], or pg_hba.conf on the server"
    } else {
        "if the server asks for a client certificate, set database.cert_file and \
         database.key_file; otherwise correct the login and database.sslmode in [database], or \
         pg_hba.conf on the server"
    }
}

/// Accepts any name; with roots, only certificates that chain to one of them. Proof that the
/// server holds the certificate's key is demanded either way.
#[derive(Debug)]
struct Lenient {
    roots: Option<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(roots) = &self.roots {
            verify_server_cert_signed_by_trust_anchor(
                &ParsedCertificate::try_from(end_entity)?,
                roots,
                intermediates,
                now,
                self.provider.signature_verification_algorithms.all,
            )?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(mode: SslMode, files: &Certificates) -> String {
        client_config(mode, files)
            .expect_err("must be refused")
            .to_string()
    }

    #[test]
    fn a_missing_ca_file_is_named_with_its_setting() {
        let files = Certificates {
            ca_file: Some("/nonexistent/ca.pem".into()),
            ..Certificates::default()
        };
        let text = refusal(SslMode::VerifyFull, &files);
        assert!(text.contains("database.ca_file"), "{text}");
        assert!(text.contains("/nonexistent/ca.pem"), "{text}");
    }

    #[test]
    fn a_certificate_without_its_key_is_refused() {
        let files = Certificates {
            cert_file: Some("/nonexistent/client.pem".into()),
            ..Certificates::default()
        };
        let text = refusal(SslMode::Require, &files);
        let expected = "database.key_file: missing: cert_file is set";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn a_file_without_certificates_is_refused() {
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        std::fs::write(file.path(), "not a certificate").expect("write");
        let files = Certificates {
            ca_file: Some(file.path().to_owned()),
            ..Certificates::default()
        };
        for mode in [SslMode::VerifyCa, SslMode::VerifyFull, SslMode::Require] {
            let text = refusal(mode, &files);
            assert!(text.contains("no CERTIFICATE section"), "{mode:?}: {text}");
        }
    }

    #[test]
    fn each_refused_certificate_names_what_mends_it() {
        use CertificateError as Reason;
        let certificate = Error::InvalidCertificate;
        for (error, setting) in [
            (certificate(Reason::UnknownIssuer), "database.ca_file"),
            (certificate(Reason::Expired), "renew it"),
            (certificate(Reason::NotValidForName), "verify-ca"),
            (
                Error::AlertReceived(AlertDescription::CertificateRequired),
                "database.key_file",
            ),
            (
                Error::AlertReceived(AlertDescription::UnknownCA),
                "database.cert_file",
            ),
        ] {
            let told = remedy(&error).unwrap_or_default();
            assert!(told.contains(setting), "{error}: {told}");
        }
    }

    #[test]
    fn a_refused_login_names_the_settings_it_may_be_about() {
        let told = login_remedy(SslMode::Disable, false);
        assert!(told.contains("database.sslmode"), "{told}");
        let told = login_remedy(SslMode::VerifyFull, false);
        assert!(told.contains("set database.cert_file"), "{told}");
        let told = login_remedy(SslMode::VerifyFull, true);
        assert!(told.contains("ssl_ca_file"), "{told}");
    }

    #[test]
    fn modes_that_verify_nothing_need_no_files() {
        for mode in [SslMode::Allow, SslMode::Prefer, SslMode::Require] {
            assert!(
                client_config(mode, &Certificates::default()).is_ok(),
                "{mode:?}"
            );
        }
    }
}
