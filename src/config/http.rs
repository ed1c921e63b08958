//! `[http]`: probes, metrics and the status page.

use std::net::{Ipv4Addr, SocketAddr};

use super::reader::{Reader, accept};

/// The keys of `[http]`.
#[derive(Clone, Debug)]
pub struct HttpSection {
    /// `listen`: address and port.
    pub listen: SocketAddr,
}

impl Default for HttpSection {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9845)),
        }
    }
}

impl HttpSection {
    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        Self {
            listen: reader.value("http.listen", Self::default().listen, accept),
        }
    }
}
