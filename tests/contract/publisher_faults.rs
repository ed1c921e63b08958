//! Servers that are silent, frozen or out of memory: every wait ends, and says which it was.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use outbox_relay::broker::{AmqpLink, Broker, BrokerError, Channel, Link, LinkState, LossCause};
use outbox_relay::config::{BrokerEndpoint, BrokerTls, Certificates};
use outbox_relay::message::{Body, Publication, RowId};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::time::{Instant, timeout};

use crate::on_rabbitmq::{OnRabbitMq, broker, endpoint};
use crate::publisher::{is_confirmed, judged, lost};
use crate::rows::{of, publication, row};
use crate::support::PATIENCE;
use crate::support::proxy::{Fault, Proxy};
use crate::support::rabbit::Rabbit;

const SHORT: Duration = Duration::from_secs(1);

fn impatient(port: u16) -> BrokerEndpoint {
    BrokerEndpoint {
        connect_timeout: SHORT,
        ..endpoint(port, "/")
    }
}

/// The step that a connect ended in, which it did at its deadline.
async fn timed_out_step(there: BrokerEndpoint) -> &'static str {
    let begun = Instant::now();
    let there = broker(vec![there], PATIENCE);
    let ended = timeout(PATIENCE, there.connect()).await.expect("bounded");
    let error = ended.err().expect("no answer");
    assert!(begun.elapsed() >= SHORT);
    let BrokerError::Timeout {
        step, seconds: 1, ..
    } = &error
    else {
        panic!("{error}")
    };
    step
}

#[tokio::test]
async fn a_server_that_says_nothing_is_given_up_and_its_socket_closed() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("a port");
    let port = listener.local_addr().expect("it listens").port();
    assert_eq!(timed_out_step(impatient(port)).await, "AMQP handshake");
    let encrypted = BrokerEndpoint {
        tls: Some(BrokerTls {
            server_name: "localhost".to_owned(),
            certificates: Certificates {
                ca_file: Some(crate::publisher_tls::authority().path()),
                cert_file: None,
                key_file: None,
            },
        }),
        ..impatient(port)
    };
    assert_eq!(timed_out_step(encrypted).await, "TLS handshake");
    // What we were sent ends: nobody holds the other ends any more.
    for _ in 0..2 {
        let (mut stream, _) = listener.accept().await.expect("both came");
        let mut received = Vec::new();
        let end = timeout(PATIENCE, stream.read_to_end(&mut received)).await;
        end.expect("the socket was closed").expect("in good order");
    }
}

#[tokio::test]
async fn a_host_that_does_not_accept_is_given_up() {
    // A full backlog: the kernel drops what comes, as a dead host would.
    let listener = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).expect("a socket");
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    listener.bind(&any.into()).expect("a port");
    listener.listen(0).expect("it listens");
    let there = listener
        .local_addr()
        .expect("bound")
        .as_socket()
        .expect("IPv4");
    let mut accepted = Vec::new();
    while let Ok(Ok(stream)) = timeout(SHORT / 4, tokio::net::TcpStream::connect(there)).await {
        accepted.push(stream);
        assert!(accepted.len() < 100, "the backlog is full at some time");
    }
    assert_eq!(timed_out_step(impatient(there.port())).await, "TCP connect");
}

#[tokio::test]
async fn a_frozen_broker_is_noticed_by_confirms_and_by_heartbeats() {
    let rabbit = Rabbit::start().await;
    let patient = |heartbeat| BrokerEndpoint {
        heartbeat: Duration::from_secs(heartbeat),
        ..impatient(rabbit.port())
    };
    let by_confirms = broker(vec![patient(60)], SHORT)
        .connect()
        .await
        .expect("let in");
    let by_heartbeats = broker(vec![patient(1)], PATIENCE)
        .connect()
        .await
        .expect("let in");
    let mut impatient_channel = by_confirms.open_channel().await.expect("a channel");
    let mut patient_channel = by_heartbeats.open_channel().await.expect("a channel");
    rabbit.pause();
    let frozen = Instant::now();
    impatient_channel
        .publish(vec![publication(1, "", "q")])
        .await;
    patient_channel.publish(vec![publication(2, "", "q")]).await;

    let (_, silent) = lost(&mut impatient_channel).await;
    assert_eq!(
        silent.cause,
        LossCause::Silent {
            later_confirmed: false
        }
    );
    assert_eq!(silent.unknown, [RowId(1)]);
    assert_eq!(*by_confirms.state().borrow(), LinkState::Open);

    let (_, dead) = lost(&mut patient_channel).await;
    assert!(
        matches!(dead.cause, LossCause::Connection { .. }),
        "{dead:?}"
    );
    assert_eq!(dead.unknown, [RowId(2)]);
    assert!(
        frozen.elapsed() < Duration::from_secs(4),
        "within three heartbeats, and a little"
    );

    everything_else_ends_too(by_confirms).await;
    assert_eq!(
        timed_out_step(impatient(rabbit.port())).await,
        "AMQP handshake"
    );
    rabbit.resume();
}

async fn everything_else_ends_too(link: AmqpLink) {
    let asked = link.exchange_exists("any").await;
    assert!(
        matches!(asked, Err(BrokerError::Timeout { .. })),
        "{asked:?}"
    );
    let opened = link.open_channel().await.err().expect("no answer");
    assert!(matches!(opened, BrokerError::Timeout { .. }), "{opened}");
    let closing = timeout(PATIENCE, link.close()).await;
    closing.expect("bounded");
}

#[tokio::test]
async fn a_network_that_silently_drops_everything_is_noticed_by_heartbeats() {
    let stage = OnRabbitMq::start().await;
    let proxy = Proxy::start(stage.port()).await;
    let there = BrokerEndpoint {
        heartbeat: Duration::from_secs(1),
        ..endpoint(proxy.port(), &stage.vhost.name)
    };
    let link = broker(vec![there], PATIENCE)
        .connect()
        .await
        .expect("let in");
    let mut channel = link.open_channel().await.expect("a channel");
    proxy.set(Fault::Stall);
    let cut = Instant::now();
    channel.publish(vec![publication(1, "", "q")]).await;
    let (_, lost) = lost(&mut channel).await;
    assert!(
        matches!(lost.cause, LossCause::Connection { .. }),
        "{lost:?}"
    );
    assert_eq!(lost.unknown, [RowId(1)]);
    assert!(
        cut.elapsed() < Duration::from_secs(4),
        "within three heartbeats, and a little"
    );
}

#[tokio::test]
async fn a_memory_alarm_is_seen_and_survived() {
    let rabbit = Rabbit::start().await;
    // What a busy machine does not miss.
    let (heartbeat, confirm) = (Duration::from_secs(2), Duration::from_secs(5));
    let there = BrokerEndpoint {
        heartbeat,
        ..endpoint(rabbit.port(), "/")
    };
    let there = broker(vec![there], confirm);
    let link = there.connect().await.expect("let in");
    let other = there.connect().await.expect("let in");
    let mut channel = link.open_channel().await.expect("a channel");
    let mut other_channel = other.open_channel().await.expect("a channel");
    rabbit.raise_memory_alarm().await;
    // Connections are blocked when they publish; nobody reads what they say then.
    channel.publish((0..100).map(large).collect()).await;
    other_channel
        .publish(vec![publication(1, "", "nowhere")])
        .await;
    for link in [&link, &other] {
        let mut state = link.state();
        let blocked = state.wait_for(|state| matches!(state, LinkState::Blocked(_)));
        let state = timeout(PATIENCE, blocked)
            .await
            .expect("in time")
            .expect("open")
            .clone();
        assert_eq!(state, LinkState::Blocked("low on memory".to_owned()));
    }
    // Longer than it would take to miss confirms, heartbeats, or acknowledgements of what is
    // stuck in the socket.
    let early = timeout(5 * heartbeat, channel.judged()).await;
    assert!(early.is_err(), "no confirm, and none missed: {early:?}");
    let asked = timeout(2 * confirm, link.exchange_exists("any")).await;
    assert!(asked.is_err(), "no answer, and none missed: {asked:?}");
    timeout(PATIENCE, other.close()).await.expect("bounded");
    rabbit.clear_memory_alarm().await;
    let judged = judged(&mut channel, 100).await;
    assert!(
        judged.values().all(|outcome| !is_confirmed(outcome)),
        "unroutable: {judged:?}"
    );
    assert_eq!(*link.state().borrow(), LinkState::Open);
    assert!(!link.exchange_exists("any").await.expect("an answer"));
}

/// So large that a hundred fill the socket's buffers when nobody reads.
fn large(id: i64) -> Arc<Publication> {
    let mut row = row(id, "", "nowhere");
    row.payload = Body::Bytes(vec![b'x'; 200_000].into());
    of(&row)
}
