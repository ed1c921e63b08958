//! What runs the program's tasks.

use std::io;

use tokio::runtime::{Builder, Runtime};

/// One thread for all of them: the relay's tasks wait for two servers and for each other, and
/// hand every row on several times. Between threads each such step would wake one that sleeps,
/// on processors that broker and database may need. The client of the broker has its own thread
/// for its socket.
///
/// # Errors
/// The system refuses what a runtime needs.
pub fn executor() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}
