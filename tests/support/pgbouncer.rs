//! A private PgBouncer in front of a private PostgreSQL.

use std::ffi::OsStr;
use std::fs;

use super::PATIENCE;
use super::leash::{Leashed, Program};
use super::places::{Places, needed};
use super::ports::Port;
use super::scratch::{Scratch, UNPRIVILEGED, is_root};

/// A running pooler.
#[derive(Debug)]
pub struct PgBouncer {
    _process: Leashed,
    port: Port,
    _folder: Scratch,
}

impl PgBouncer {
    /// Starts one in this mode (`session`, `transaction`, `statement`); `None` if it is to be
    /// left out.
    pub async fn start(postgres: u16, mode: &str) -> Option<Self> {
        let places = Places::known();
        let program = needed("pgbouncer", places.pgbouncer.as_ref())?;
        let (port, folder) = (Port::take(), Scratch::new("pgbouncer"));
        let settings = format!(
            "[databases]\n\
             * = host=127.0.0.1 port={postgres} user=postgres\n\
             [pgbouncer]\n\
             listen_addr = 127.0.0.1\n\
             listen_port = {}\n\
             unix_socket_dir =\n\
             auth_type = any\n\
             pool_mode = {mode}\n",
            port.number()
        );
        let file = folder.join("pgbouncer.ini");
        fs::write(&file, settings).expect("own folder");
        if is_root() {
            let nobody = Some(UNPRIVILEGED);
            std::os::unix::fs::chown(&file, nobody, nobody).expect("root may chown");
        }
        let command: [&OsStr; 2] = [program.as_ref(), file.as_ref()];
        let process = Leashed::start(&Program {
            name: "PgBouncer",
            folder: folder.path(),
            unprivileged: is_root(),
            command: &command,
            env: &[("LD_LIBRARY_PATH", places.pgbouncer_libs.clone())],
        });
        process.printed("process up", 0, PATIENCE).await;
        Some(Self {
            _process: process,
            port,
            _folder: folder,
        })
    }

    /// 127.0.0.1's port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }
}
