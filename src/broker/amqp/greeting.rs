//! What a broker says of itself before anybody logs in, for `outbox-relay check`.
//!
//! lapin reads the server's properties and does not pass them on, so this asks once more, over a
//! connection of its own that ends after the broker's first word.

use std::io::{self, ErrorKind};

use amq_protocol::frame::AMQPFrame;
use amq_protocol::frame::parsing::parse_frame;
use amq_protocol::protocol::{AMQPClass, connection};
use async_compat::{Compat, CompatExt};
use bytes::BytesMut;
use lapin::tcp::AsyncTcpStream;
use lapin::types::{AMQPValue, FieldTable};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::connect::{Steps, Stream, encrypt};
use super::socket;
use crate::broker::{BrokerError, TCP_CONNECT};
use crate::config::BrokerEndpoint;

/// AMQP 0-9-1 §4.2.2.
const PROTOCOL_HEADER: &[u8] = b"AMQP\x00\x00\x09\x01";

/// More than any greeting takes: before tuning, a frame is at most 4096 bytes, but RabbitMQ does
/// not hold itself to that.
const LONGEST: usize = 64 * 1024;

/// A broker's first word (`connection.start`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Greeting {
    /// `RabbitMQ`.
    pub product: String,
    /// `3.10.8`.
    pub version: String,
    /// The cluster's name.
    pub cluster: String,
    /// SASL mechanisms offered, separated by blanks.
    pub mechanisms: String,
}

/// Connects to the endpoint, hears its greeting and leaves.
///
/// # Errors
/// [`BrokerError`] names the endpoint, the step and why.
pub(super) async fn greet(endpoint: &BrokerEndpoint) -> Result<Greeting, BrokerError> {
    let steps = Steps::towards(endpoint);
    let open = socket::open(&endpoint.host, endpoint.port, endpoint.heartbeat);
    let tcp = steps.take(TCP_CONNECT, open).await?;
    let plain = AsyncTcpStream::Plain(tcp.compat());
    let stream = match &endpoint.tls {
        Some(tls) => steps.take("TLS handshake", encrypt(plain, tls)).await?,
        None => plain,
    };
    steps.take("greeting", hear(Compat::new(stream))).await
}

async fn hear(mut stream: Compat<Stream>) -> io::Result<Greeting> {
    stream.write_all(PROTOCOL_HEADER).await?;
    stream.flush().await?;
    let mut received = BytesMut::new();
    let mut piece = [0; 4096];
    while received.len() < LONGEST {
        let read = stream.read(&mut piece).await?;
        if read == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        received.extend_from_slice(&piece[..read]);
        match parse_frame(&received[..]) {
            Ok((
                _,
                AMQPFrame::Method(_, AMQPClass::Connection(connection::AMQPMethod::Start(start))),
            )) => {
                return Ok(Greeting {
                    product: text(&start.server_properties, "product"),
                    version: text(&start.server_properties, "version"),
                    cluster: text(&start.server_properties, "cluster_name"),
                    mechanisms: start.mechanisms.to_string(),
                });
            }
            Err(error) if error.is_incomplete() => {}
            Ok(_) | Err(_) => {
                return Err(io::Error::new(ErrorKind::InvalidData, "another protocol"));
            }
        }
    }
    Err(io::Error::new(
        ErrorKind::InvalidData,
        "a greeting without end",
    ))
}

fn text(properties: &FieldTable, name: &str) -> String {
    match properties.inner().get(name) {
        Some(AMQPValue::LongString(text)) => text.to_string(),
        Some(AMQPValue::ShortString(text)) => text.to_string(),
        Some(_) | None => String::new(),
    }
}
