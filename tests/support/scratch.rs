//! A folder with a random name that goes away with its owner, usable by the unprivileged user
//! that servers run as when the tests run as root.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Debian's and everyone's `nobody`; a number, because small images may lack the name.
pub const UNPRIVILEGED: u32 = 65_534;

/// Are we root, whom PostgreSQL refuses to serve?
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A temporary folder.
#[derive(Debug)]
pub struct Scratch(TempDir);

impl Scratch {
    /// A new folder below the system's temporary folder.
    pub fn new(purpose: &str) -> Self {
        let folder = tempfile::Builder::new()
            .prefix(&format!("outbox-relay-{purpose}-"))
            .tempdir()
            .unwrap_or_else(|error| panic!("no temporary folder for {purpose}: {error}"));
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700))
            .expect("own folder");
        if is_root() {
            chown(folder.path(), Some(UNPRIVILEGED), Some(UNPRIVILEGED)).expect("root may chown");
        }
        Self(folder)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A path inside it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}
