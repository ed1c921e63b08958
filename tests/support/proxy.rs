//! A TCP proxy that misbehaves on demand: it delays, throttles, swallows, stalls, resets, cuts
//! or refuses, switchable while connections live.
//!
//! It works on bytes and knows no protocol. It cannot drop single packets: TCP's own
//! retransmission is the kernel's business.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::ports::Port;

/// What happens to the bytes of one direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// They pass.
    None,
    /// They arrive later by this long.
    Delay(Duration),
    /// At most so many bytes per second pass.
    Throttle(u32),
    /// They are taken and thrown away: no answer ever comes, and no reset either. The stream
    /// has a hole afterwards, so a swallowed connection is of no further use.
    Swallow,
    /// They are not even taken, as on a network that drops every packet; the sender's window
    /// fills up. They pass later, when the fault ends.
    Stall,
    /// So many bytes more pass, then the connection that carries the next one is reset; bytes
    /// pass again after that.
    CutAfter(u64),
}

/// Which way bytes flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From client to server.
    ToServer,
    /// From server to client.
    ToClient,
}

#[derive(Debug, Clone)]
struct Plan {
    to_server: Fault,
    to_client: Fault,
    /// Bytes that [`Fault::CutAfter`] still lets pass.
    budget: [Arc<AtomicU64>; 2],
    refuse: bool,
    /// Grows with every order to reset all connections.
    resets: u64,
}

impl Plan {
    fn fault(&self, way: Way) -> Fault {
        match way {
            Way::ToServer => self.to_server,
            Way::ToClient => self.to_client,
        }
    }
}

/// A running proxy; dropping it closes the listener and all connections.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    plan: watch::Sender<Plan>,
    live: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a port of its own and passes everything on to a port on 127.0.0.1.
    pub async fn start(target: u16) -> Self {
        let port = Port::take();
        let (plan, watched) = watch::channel(Plan {
            to_server: Fault::None,
            to_client: Fault::None,
            budget: [Arc::default(), Arc::default()],
            refuse: false,
            resets: 0,
        });
        let live = Arc::new(AtomicUsize::new(0));
        let listener = listen(port.address()).await;
        let accepting = tokio::spawn(accept(
            listener,
            SocketAddr::from(([127, 0, 0, 1], target)),
            watched,
            Arc::clone(&live),
        ));
        Self {
            port,
            plan,
            live,
            accepting,
        }
    }

    /// The port to connect to on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Sets the fault of both directions, for live and later connections.
    pub fn set(&self, fault: Fault) {
        self.set_way(Way::ToServer, fault);
        self.set_way(Way::ToClient, fault);
    }

    /// Sets the fault of one direction, for live and later connections.
    pub fn set_way(&self, way: Way, fault: Fault) {
        self.plan.send_modify(|plan| {
            if let Fault::CutAfter(bytes) = fault {
                plan.budget[way as usize] = Arc::new(AtomicU64::new(bytes));
            }
            match way {
                Way::ToServer => plan.to_server = fault,
                Way::ToClient => plan.to_client = fault,
            }
        });
    }

    /// Refuses new connections (ECONNREFUSED), or accepts them again. Returns at once; the
    /// listener follows within its next step.
    pub fn refuse(&self, refuse: bool) {
        self.plan.send_modify(|plan| plan.refuse = refuse);
    }

    /// Resets all live connections (RST to both sides).
    pub fn reset_all(&self) {
        self.plan.send_modify(|plan| plan.resets += 1);
    }

    /// How many connections are live.
    pub fn live(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The end of the plan is the signal for every connection's task.
        self.accepting.abort();
    }
}

async fn listen(address: SocketAddr) -> TcpListener {
    TcpListener::bind(address)
        .await
        .unwrap_or_else(|error| panic!("proxy cannot listen on {address}: {error}"))
}

async fn accept(
    listener: TcpListener,
    target: SocketAddr,
    mut plan: watch::Receiver<Plan>,
    live: Arc<AtomicUsize>,
) {
    let address = listener.local_addr().expect("it listens");
    let mut listener = Some(listener);
    loop {
        let refuse = plan.borrow_and_update().refuse;
        if refuse {
            // Only a closed listener refuses.
            listener = None;
        } else if listener.is_none() {
            listener = Some(listen(address).await);
        }
        let client = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = plan.changed() => if changed.is_err() { return },
            client = client => {
                let Ok((client, _)) = client else { continue };
                let (plan, live) = (plan.clone(), Arc::clone(&live));
                live.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    connection(client, target, plan).await;
                    live.fetch_sub(1, Ordering::SeqCst);
                });
            }
        }
    }
}

/// One connection from accept to end.
async fn connection(mut client: TcpStream, target: SocketAddr, plan: watch::Receiver<Plan>) {
    let Ok(mut server) = TcpStream::connect(target).await else {
        reset(&client);
        return;
    };
    // Small frames must not wait for each other's acknowledgement here.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let mut control = plan.clone();
    let resets = control.borrow_and_update().resets;
    let passed = {
        let (client_read, client_write) = client.split();
        let (server_read, server_write) = server.split();
        let both = async {
            tokio::try_join!(
                carry(client_read, server_write, Way::ToServer, plan.clone()),
                carry(server_read, client_write, Way::ToClient, plan.clone()),
            )
        };
        tokio::select! {
            done = both => done.is_ok(),
            _ = control.wait_for(|plan| plan.resets != resets) => false,
        }
    };
    if !passed {
        reset(&client);
        reset(&server);
    }
}

/// Makes the coming drop a RST.
fn reset(stream: &TcpStream) {
    // An already closed stream has nothing to reset.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// Carries one direction to its end; an error means that the connection is to be reset.
async fn carry(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    way: Way,
    plan: watch::Receiver<Plan>,
) -> io::Result<()> {
    // Bytes on their way, with the time of their arrival; bounded, so that a slow receiver
    // is felt by the sender.
    let (sender, mut receiver) = mpsc::channel::<(Instant, Bytes)>(256);
    let mut incoming = plan.clone();
    let read = async move {
        loop {
            pause_while_stalled(&mut incoming, way).await?;
            let mut chunk = BytesMut::with_capacity(16 * 1024);
            if from.read_buf(&mut chunk).await? == 0 {
                return Ok::<_, io::Error>(());
            }
            let delay = match incoming.borrow().fault(way) {
                Fault::Delay(delay) => delay,
                Fault::None
                | Fault::Throttle(_)
                | Fault::Swallow
                | Fault::Stall
                | Fault::CutAfter(_) => Duration::ZERO,
            };
            if sender
                .send((Instant::now() + delay, chunk.freeze()))
                .await
                .is_err()
            {
                return Ok(());
            }
        }
    };
    let mut outgoing = plan;
    let write = async move {
        while let Some((due, chunk)) = receiver.recv().await {
            // The delay is what this way is there for.
            sleep_until(due).await;
            forward(&mut to, &chunk, way, &mut outgoing).await?;
        }
        to.shutdown().await
    };
    tokio::try_join!(read, write).map(|_| ())
}

/// Waits as long as nothing may pass.
async fn pause_while_stalled(plan: &mut watch::Receiver<Plan>, way: Way) -> io::Result<()> {
    plan.wait_for(|plan| plan.fault(way) != Fault::Stall)
        .await
        .map(|_| ())
        .map_err(|_| io::ErrorKind::ConnectionAborted.into())
}

async fn forward(
    to: &mut WriteHalf<'_>,
    chunk: &[u8],
    way: Way,
    plan: &mut watch::Receiver<Plan>,
) -> io::Result<()> {
    pause_while_stalled(plan, way).await?;
    let (fault, budget) = {
        let plan = plan.borrow();
        (plan.fault(way), Arc::clone(&plan.budget[way as usize]))
    };
    match fault {
        Fault::None | Fault::Delay(_) | Fault::Stall => to.write_all(chunk).await,
        Fault::Swallow => Ok(()),
        Fault::Throttle(rate) => {
            // In tenths of a second, so that small frames still flow.
            let step = (rate / 10).max(1) as usize;
            for piece in chunk.chunks(step) {
                to.write_all(piece).await?;
                // The fault itself.
                sleep(Duration::from_secs_f64(
                    piece.len() as f64 / f64::from(rate),
                ))
                .await;
            }
            Ok(())
        }
        Fault::CutAfter(_) => {
            let before = budget
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                    Some(match left {
                        u64::MAX => u64::MAX,
                        left if left >= chunk.len() as u64 => left - chunk.len() as u64,
                        // Spent: the cut happens once.
                        _ => u64::MAX,
                    })
                })
                .unwrap_or(u64::MAX);
            if before >= chunk.len() as u64 {
                return to.write_all(chunk).await;
            }
            let rest = usize::try_from(before).expect("less than the chunk");
            to.write_all(&chunk[..rest]).await?;
            // The last bytes must leave before the reset overtakes them.
            to.flush().await?;
            Err(io::ErrorKind::ConnectionReset.into())
        }
    }
}
