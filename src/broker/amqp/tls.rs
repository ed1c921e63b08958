//! TLS towards the broker: always verified, with the roots, the client certificate and the
//! server name of the configuration.
//!
//! Files are read every time, so that a certificate can be rotated without a restart.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::config::Certificates;

/// Builds the TLS client. Blocks on reading files: call it where blocking is allowed.
///
/// # Errors
/// A sentence that names the setting and the file that cannot be used.
pub(super) fn client_config(certificates: &Certificates) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots(certificates.ca_file.as_deref())?);
    match (&certificates.cert_file, &certificates.key_file) {
        (Some(cert), Some(key)) => {
            let chain = read_chain("cert_file", cert)?;
            builder
                .with_client_auth_cert(chain, read_key(key)?)
                .map_err(|error| {
                    let (cert, key) = (cert.display(), key.display());
                    format!("broker.cert_file {cert} with broker.key_file {key}: {error}")
                })
        }
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(_), None) => Err("broker.key_file is missing: broker.cert_file is set".to_owned()),
        (None, Some(_)) => Err("broker.cert_file is missing: broker.key_file is set".to_owned()),
    }
}

fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    let Some(path) = ca_file else {
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if store.is_empty() {
            return Err("the operating system has no trusted certificates: install \
                        ca-certificates or name the authority's PEM file in broker.ca_file"
                .to_owned());
        }
        return Ok(store);
    };
    for certificate in read_chain("ca_file", path)? {
        store
            .add(certificate)
            .map_err(|error| format!("broker.ca_file {}: {error}", path.display()))?;
    }
    Ok(store)
}

fn read_chain(setting: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let failed = |error| format!("broker.{setting} {}: {error}", path.display());
    let found = CertificateDer::pem_file_iter(path)
        .map_err(failed)?
        .collect::<Result<Vec<_>, _>>()
        .map_err(failed)?;
    if found.is_empty() {
        let path = path.display();
        return Err(format!(
            "broker.{setting} {path}: no CERTIFICATE section (PEM expected)"
        ));
    }
    Ok(found)
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| {
        let path = path.display();
        format!("broker.key_file {path}: {error} (an unencrypted PEM private key is expected)")
    })
}
