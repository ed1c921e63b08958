//! The TCP connection to a broker: opened by us, so that it has deadlines and can be shut.

use std::io;
use std::net::Shutdown;
use std::time::Duration;

use socket2::{SockRef, Socket, TcpKeepalive};
use tokio::net::TcpStream;

/// Opens a connection to the first of the host's addresses that accepts. Has no deadline of
/// its own.
///
/// # Errors
/// What the operating system said for the last address.
pub(super) async fn open(host: &str, port: u16, heartbeat: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    // Heartbeats notice a silent peer after two intervals, but only while the client library's
    // timers run; the kernel notices by itself when sent bytes are not acknowledged (tcp(7)).
    let keepalive = TcpKeepalive::new()
        .with_time(heartbeat)
        .with_interval(heartbeat);
    socket.set_tcp_keepalive(&keepalive.with_retries(2))?;
    socket.set_tcp_user_timeout(Some(2 * heartbeat))?;
    Ok(stream)
}

/// Shuts a connection down when it goes out of scope. lapin reads and writes in a thread of its
/// own, which otherwise lives for as long as a silent peer does; shutting the socket ends it,
/// whatever it waits for.
#[derive(Debug)]
pub(super) struct ShutOnDrop(Socket);

impl ShutOnDrop {
    /// # Errors
    /// If the descriptor cannot be duplicated.
    pub(super) fn of(stream: &TcpStream) -> io::Result<Self> {
        SockRef::from(stream).try_clone().map(Self)
    }

    /// Shuts it now.
    pub(super) fn shut(&self) {
        // Refused only if the peer has gone already, which is what is wanted.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl Drop for ShutOnDrop {
    fn drop(&mut self) {
        self.shut();
    }
}
