//! A connection to the broker whose incoming frames are made readable before lapin sees them.
//!
//! Bodies pass as they come; a frame of interest is held until it is whole. What is sent is not
//! looked at. Above TLS, as it has to be.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures_util::Stream as Ticks;
use futures_util::io::{AsyncRead, AsyncWrite};

use super::connect::Stream;
use super::mend::{self, HEAD};

/// What is read at once.
const PIECE: usize = 64 * 1024;
/// No frame of interest is longer: we ask for 128 KiB at most. One that claims to be is not held.
const LONGEST: usize = 1024 * 1024;

/// A connection.
pub(super) struct Readable {
    inner: Stream,
    frames: Frames,
    piece: Box<[u8]>,
}

impl Readable {
    pub(super) fn new(inner: Stream) -> Self {
        Self {
            inner,
            frames: Frames::default(),
            piece: vec![0; PIECE].into_boxed_slice(),
        }
    }
}

impl AsyncRead for Readable {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let Self {
            inner,
            frames,
            piece,
        } = self.get_mut();
        if into.is_empty() {
            return Poll::Ready(Ok(0));
        }
        loop {
            let given = frames.give(into);
            if given > 0 {
                return Poll::Ready(Ok(given));
            }
            let read = ready!(Pin::new(&mut *inner).poll_read(context, piece))?;
            if read == 0 {
                // An incomplete frame is of no use to anybody.
                return Poll::Ready(Ok(0));
            }
            frames.take(piece.get(..read).unwrap_or_default());
        }
    }
}

impl AsyncWrite for Readable {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_close(context)
    }
}

/// Bytes on their way in.
#[derive(Debug, Default)]
struct Frames {
    /// Received, not handed on yet.
    held: Vec<u8>,
    /// From here on they are handed on.
    given: usize,
    /// Up to here they are mended.
    mended: usize,
    /// How much more is to pass without a look.
    passing: usize,
}

impl Frames {
    fn take(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
        loop {
            let new = self.held.len() - self.mended;
            let passed = self.passing.min(new);
            self.mended += passed;
            self.passing -= passed;
            let Some(next) = self.held.get_mut(self.mended..) else {
                return;
            };
            let Some(length) = length_of(next) else {
                return;
            };
            if mend::is_of_interest(next.first().copied().unwrap_or(0)) && length <= LONGEST {
                let Some(frame) = next.get_mut(..length) else {
                    return;
                };
                mend::mend(frame);
            }
            self.passing = length;
        }
    }

    fn give(&mut self, into: &mut [u8]) -> usize {
        let ready = self.held.get(self.given..self.mended).unwrap_or_default();
        let count = ready.len().min(into.len());
        if let (Some(into), Some(ready)) = (into.get_mut(..count), ready.get(..count)) {
            into.copy_from_slice(ready);
        }
        self.given += count;
        if self.given == self.mended {
            self.held.drain(..self.given);
            (self.given, self.mended) = (0, 0);
        }
        count
    }
}

/// The length of the frame that begins here, with its head and its end.
fn length_of(bytes: &[u8]) -> Option<usize> {
    let length = bytes.get(3..HEAD)?.try_into().ok()?;
    let length = usize::try_from(u32::from_be_bytes(length)).ok()?;
    Some(HEAD + length + 1)
}

/// What lapin runs on: tokio, with connections that are readable.
pub(super) type Kit = RuntimeParts<Tokio, Readables>;

/// For the runtime that we are called in.
pub(super) fn runtime() -> Runtime<Kit> {
    let tokio = Tokio::current();
    Runtime::new(RuntimeParts::new(tokio.clone(), Readables(tokio)))
}

/// Clocks and sockets are tokio's.
#[derive(Clone, Debug)]
pub(super) struct Readables(Tokio);

impl Reactor for Readables {
    type TcpStream = Readable;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: io::Read + io::Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        self.0.register(socket)
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }

    fn interval(&self, duration: Duration) -> impl Ticks<Item = Instant> + Send + 'static {
        self.0.interval(duration)
    }

    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let connecting = self.0.tcp_connect_addr(address);
        async move { Ok(Readable::new(Stream::Plain(connecting.await?))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        [&[kind, 0, 1], length.as_slice(), payload, &[0xce]].concat()
    }

    /// A header with a message id.
    fn header(id: &[u8]) -> Vec<u8> {
        let length = u8::try_from(id.len()).expect("short");
        let mut payload = vec![0, 60];
        payload.extend([0; 10]);
        payload.extend([0, 0x80, length]);
        payload.extend(id);
        frame(2, &payload)
    }

    /// However the bytes are cut into pieces, the same comes out.
    #[test]
    fn frames_are_mended_however_they_arrive() {
        let body = frame(3, &[0xff; 300]);
        let wire = [
            header(b"\xff\xff"),
            body.clone(),
            header(b"ok"),
            body.clone(),
        ]
        .concat();
        let readable = [header(b"\0\0"), body.clone(), header(b"ok"), body].concat();
        for size in [1, 2, 7, 8, 100, wire.len()] {
            for room in [1, 64, 4096] {
                let (mut frames, mut got) = (Frames::default(), Vec::new());
                let mut into = vec![0; room];
                for piece in wire.chunks(size) {
                    frames.take(piece);
                    loop {
                        let given = frames.give(&mut into);
                        if given == 0 {
                            break;
                        }
                        got.extend_from_slice(&into[..given]);
                    }
                }
                assert_eq!(got, readable, "pieces of {size}, room for {room}");
                assert!(frames.held.is_empty());
            }
        }
    }

    #[test]
    fn a_body_passes_before_it_is_whole() {
        let mut frames = Frames::default();
        frames.take(&frame(3, &[7; 300])[..200]);
        assert_eq!(frames.give(&mut [0; 4096]), 200);
    }
}
