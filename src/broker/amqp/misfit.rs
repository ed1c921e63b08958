//! What an error of the TLS or AMQP library means to whoever wrote the settings. Pure.
//!
//! Does not say that something failed, only what makes it right, where that is known.

use std::error::Error;
use std::io;

use lapin::ErrorKind;
use rustls::{AlertDescription, CertificateError};

const UNTRUSTED: &str = "the broker's certificate is not signed by an authority that the relay \
     trusts: name the authority's PEM file in broker.ca_file";
const EXPIRED: &str = "the broker's certificate has expired: renew it on the broker";
const NOT_YET: &str = "the broker's certificate is not valid yet: compare the clocks";
const OTHER_NAME: &str = "the broker's certificate is for another name: write one that it holds \
     (subject alternative names only) in broker.server_name, or connect by it";
const UNUSABLE: &str = "the broker's certificate cannot be used: give the broker another, or \
     correct broker.ca_file if it is not meant to be signed by an authority in there";
const WANTS_CLIENT: &str = "the broker asks for a client certificate: set broker.cert_file and \
     broker.key_file";
const REFUSES_CLIENT: &str = "the broker refused the handshake: it does not accept the client \
     certificate in broker.cert_file and broker.key_file, or wants one (missing, expired, or of \
     an authority that it does not trust), or has no TLS version or cipher in common with the relay";
const HUNG_UP_IN_TLS: &str = "the broker hung up on the encrypted connection: it may not accept the \
     client certificate in broker.cert_file and broker.key_file, or want one (missing, expired, or \
     of an authority that it does not trust); its log says more";
const NOT_TLS: &str = "the port does not speak TLS: write the broker's TLS port in broker.url \
     (5671 by custom), or amqp:// if it is not to be encrypted";
const HUNG_UP: &str = "the peer hung up before anybody logged in: if this is a TLS port, write \
     amqps:// in broker.url, or else the port of AMQP (5672 by custom)";
const NOT_AMQP: &str = "the port does not speak AMQP 0-9-1: correct host and port in broker.url \
     (5672 by custom), or write amqps:// there if it is the broker's TLS port (5671 by custom)";
const NOT_AMQPS: &str = "the port speaks TLS, but not AMQP 0-9-1: correct host and port in \
     broker.url (5671 by custom)";

/// What an attempt to connect failed with.
pub(super) enum Trouble {
    /// Settings that no broker could make work; a sentence that names them.
    Settings(String),
    /// What a library said.
    Met(Box<dyn Error + Send + Sync>),
}

impl<E: Error + Send + Sync + 'static> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self::Met(Box::new(error))
    }
}

/// What makes it right, with the setting's name; `None` where nothing better is known than what
/// the error says. `encrypted`: whether TLS was wanted.
pub(super) fn remedy(encrypted: bool, error: &(dyn Error + 'static)) -> Option<&'static str> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(lapin) = error.downcast_ref::<lapin::Error>()
            && matches!(lapin.kind(), ErrorKind::ParsingError(_))
        {
            return Some(not_amqp(encrypted));
        }
        if let Some(error) = error.downcast_ref::<io::Error>() {
            // `source` skips the TLS library's own error, which is told apart by type.
            let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
            return inner.map_or_else(|| of_wire(encrypted, error.kind()), of_tls);
        }
        cause = error.source();
    }
    None
}

fn of_tls(error: &rustls::Error) -> Option<&'static str> {
    if let rustls::Error::InvalidCertificate(reason) = error {
        return Some(of_certificate(reason));
    }
    if let rustls::Error::AlertReceived(alert) = error {
        let wants = matches!(alert, AlertDescription::CertificateRequired);
        return Some(if wants { WANTS_CLIENT } else { REFUSES_CLIENT });
    }
    matches!(error, rustls::Error::InvalidMessage(_)).then_some(NOT_TLS)
}

fn of_certificate(reason: &CertificateError) -> &'static str {
    use CertificateError as Reason;
    // Bad signature: an authority of the same name, but another key.
    if matches!(reason, Reason::UnknownIssuer | Reason::BadSignature) {
        UNTRUSTED
    } else if matches!(reason, Reason::Expired | Reason::ExpiredContext { .. }) {
        EXPIRED
    } else if matches!(
        reason,
        Reason::NotValidYet | Reason::NotValidYetContext { .. }
    ) {
        NOT_YET
    } else if matches!(
        reason,
        Reason::NotValidForName | Reason::NotValidForNameContext { .. }
    ) {
        OTHER_NAME
    } else {
        UNUSABLE
    }
}

fn of_wire(encrypted: bool, kind: io::ErrorKind) -> Option<&'static str> {
    if matches!(kind, io::ErrorKind::InvalidData) {
        return Some(not_amqp(encrypted));
    }
    let hung_up = matches!(
        kind,
        io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::BrokenPipe
    );
    hung_up.then_some(if encrypted { HUNG_UP_IN_TLS } else { HUNG_UP })
}

fn not_amqp(encrypted: bool) -> &'static str {
    if encrypted { NOT_AMQPS } else { NOT_AMQP }
}

#[cfg(test)]
mod tests {
    use rustls::InvalidMessage;

    use super::*;

    fn io(error: rustls::Error) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }

    #[test]
    fn what_tls_says_names_the_setting_that_makes_it_right() {
        use CertificateError as Reason;
        let certificate = rustls::Error::InvalidCertificate;
        for (error, setting) in [
            (certificate(Reason::UnknownIssuer), "broker.ca_file"),
            (certificate(Reason::BadSignature), "broker.ca_file"),
            (certificate(Reason::Expired), "renew it"),
            (certificate(Reason::NotValidYet), "compare the clocks"),
            (certificate(Reason::NotValidForName), "broker.server_name"),
            (certificate(Reason::Revoked), "another"),
            (
                rustls::Error::AlertReceived(AlertDescription::CertificateRequired),
                "set broker.cert_file and broker.key_file",
            ),
            (
                rustls::Error::AlertReceived(AlertDescription::UnknownCA),
                "broker.cert_file and broker.key_file",
            ),
            (
                rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType),
                "does not speak TLS",
            ),
        ] {
            let told = remedy(true, &io(error.clone())).unwrap_or_default();
            assert!(told.contains(setting), "{error}: {told}");
            // Met only when lapin read, as with TLS 1.3.
            let later = lapin::Error::from(io(error));
            assert_eq!(remedy(true, &later), Some(told));
        }
    }

    #[test]
    fn a_peer_that_hangs_up_is_one_thing_with_tls_and_another_without() {
        for kind in [
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::ConnectionAborted,
            io::ErrorKind::UnexpectedEof,
            io::ErrorKind::BrokenPipe,
        ] {
            let error = lapin::Error::from(io::Error::from(kind));
            let told = remedy(true, &error).unwrap_or_default();
            assert!(told.contains("broker.cert_file"), "{kind}: {told}");
            let told = remedy(false, &error).unwrap_or_default();
            assert!(told.contains("amqps://"), "{kind}: {told}");
        }
    }

    #[test]
    fn nobody_there_is_no_fault_of_the_settings_own_words() {
        for kind in [
            io::ErrorKind::ConnectionRefused,
            io::ErrorKind::HostUnreachable,
            io::ErrorKind::NotFound,
        ] {
            assert_eq!(remedy(true, &io::Error::from(kind)), None, "{kind}");
            assert_eq!(remedy(false, &io::Error::from(kind)), None, "{kind}");
        }
    }
}
