//! The TCP connection to a broker: opened by us, so that it has deadlines and can be shut.

use std::io;
use std::net::Shutdown;
use std::time::Duration;

use socket2::{SockRef, Socket, TcpKeepalive};
use tokio::net::TcpStream;

/// Linux takes up to 32,767 s.
const LONGEST_KEEPALIVE: Duration = Duration::from_secs(3600);

/// Opens a connection to the first of the host's addresses that accepts. Has no deadline of
/// its own.
///
/// # Errors
/// What the operating system said for the last address.
pub(super) async fn open(host: &str, port: u16, heartbeat: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    // AMQP heartbeats notice a silent peer after two intervals; keepalives do so where they
    // cannot, while nothing runs our timers. TCP_USER_TIMEOUT is left alone: it also ends a
    // connection whose peer answers but does not read (tcp(7)), and that is just what RabbitMQ
    // does for as long as an alarm lasts.
    let interval = heartbeat.clamp(Duration::from_secs(1), LONGEST_KEEPALIVE);
    let keepalive = TcpKeepalive::new()
        .with_time(interval)
        .with_interval(interval);
    socket.set_tcp_keepalive(&keepalive.with_retries(2))?;
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
