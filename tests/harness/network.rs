//! The proxy does to connections what it says.

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

use crate::support::PATIENCE;
use crate::support::proxy::{Fault, Proxy, Way};

/// Long enough to notice an answer that comes; a test's only waits for nothing to happen.
const SILENCE: Duration = Duration::from_millis(300);

/// A server that sends back what it gets; its port.
async fn echo() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("a free port");
    let port = listener.local_addr().expect("it listens").port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                // Ends with the connection, however that ends.
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = write.shutdown().await;
            });
        }
    });
    port
}

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port()))
        .await
        .expect("the proxy accepts")
}

async fn ask(stream: &mut TcpStream, text: &str) -> std::io::Result<String> {
    stream.write_all(text.as_bytes()).await?;
    answer(stream, text.len()).await
}

async fn answer(stream: &mut TcpStream, length: usize) -> std::io::Result<String> {
    let mut buffer = vec![0; length];
    timeout(PATIENCE, stream.read_exact(&mut buffer))
        .await
        .expect("in time")?;
    Ok(String::from_utf8(buffer).expect("an echo of text"))
}

#[tokio::test]
async fn bytes_pass_and_a_half_close_passes_too() {
    let proxy = Proxy::start(echo().await).await;
    let mut stream = connect(&proxy).await;
    assert_eq!(ask(&mut stream, "hello").await.unwrap(), "hello");
    stream.write_all(b"bye").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "bye");
}

#[tokio::test]
async fn delay_delays_one_way_without_narrowing_it() {
    let proxy = Proxy::start(echo().await).await;
    let mut stream = connect(&proxy).await;
    proxy.set_way(Way::ToClient, Fault::Delay(Duration::from_millis(200)));
    let start = Instant::now();
    for _ in 0..50 {
        stream.write_all(b"0123456789").await.unwrap();
    }
    answer(&mut stream, 500).await.unwrap();
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(200), "{took:?}");
    assert!(
        took < Duration::from_secs(5),
        "{took:?}: one after the other"
    );
}

#[tokio::test]
async fn throttle_bounds_the_rate() {
    let proxy = Proxy::start(echo().await).await;
    let mut stream = connect(&proxy).await;
    proxy.set_way(Way::ToServer, Fault::Throttle(10_000));
    let start = Instant::now();
    ask(&mut stream, &"x".repeat(5_000)).await.unwrap();
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(400), "{took:?}");
}

#[tokio::test]
async fn swallow_is_silent_for_live_and_new_connections() {
    let proxy = Proxy::start(echo().await).await;
    let mut live = connect(&proxy).await;
    ask(&mut live, "hello").await.unwrap();
    proxy.set(Fault::Swallow);
    let mut new = connect(&proxy).await;
    for stream in [&mut live, &mut new] {
        stream.write_all(b"anyone?").await.unwrap();
        let heard = timeout(SILENCE, stream.read_u8()).await;
        assert!(heard.is_err(), "neither an answer nor a reset: {heard:?}");
    }
}

#[tokio::test]
async fn stall_loses_nothing_when_it_ends() {
    let proxy = Proxy::start(echo().await).await;
    let mut stream = connect(&proxy).await;
    ask(&mut stream, "hello").await.unwrap();
    proxy.set(Fault::Stall);
    stream.write_all(b"later").await.unwrap();
    assert!(timeout(SILENCE, stream.peek(&mut [0])).await.is_err());
    proxy.set(Fault::None);
    assert_eq!(answer(&mut stream, 5).await.unwrap(), "later");
}

#[tokio::test]
async fn reset_is_a_reset_and_new_connections_work() {
    let proxy = Proxy::start(echo().await).await;
    let mut stream = connect(&proxy).await;
    ask(&mut stream, "hello").await.unwrap();
    proxy.reset_all();
    let error = answer(&mut stream, 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    ask(&mut connect(&proxy).await, "again").await.unwrap();
}

#[tokio::test]
async fn cut_passes_exactly_so_many_bytes_once() {
    let proxy = Proxy::start(echo().await).await;
    let mut stream = connect(&proxy).await;
    proxy.set_way(Way::ToServer, Fault::CutAfter(7));
    assert_eq!(ask(&mut stream, "12345").await.unwrap(), "12345");
    stream.write_all(b"67890").await.unwrap();
    let error = answer(&mut stream, 5).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    ask(&mut connect(&proxy).await, "a longer text passes now")
        .await
        .unwrap();
}

#[tokio::test]
async fn refuse_refuses_until_it_is_lifted() {
    let proxy = Proxy::start(echo().await).await;
    let mut live = connect(&proxy).await;
    ask(&mut live, "hello").await.unwrap();
    let address = (Ipv4Addr::LOCALHOST, proxy.port());
    proxy.refuse(true);
    let refused = timeout(PATIENCE, async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    });
    refused.await.expect("the listener closes");
    assert_eq!(ask(&mut live, "still").await.unwrap(), "still");
    proxy.refuse(false);
    let accepted = timeout(PATIENCE, async {
        while TcpStream::connect(address).await.is_err() {
            tokio::task::yield_now().await;
        }
    });
    accepted.await.expect("the listener opens again");
}
