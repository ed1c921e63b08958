//! An AMQP broker that answers what the test says, in the order the test says: for what a real
//! one cannot be made to do on demand.
//!
//! It opens connections and channels by itself, declares nothing, and routes nothing.

use std::collections::{HashMap, VecDeque};
use std::io::Cursor;
use std::net::Ipv4Addr;

use amq_protocol::frame::parsing::parse_frame;
use amq_protocol::frame::{AMQPContentHeader, AMQPFrame, gen_frame};
use amq_protocol::protocol::basic::{self, AMQPProperties};
use amq_protocol::protocol::{AMQPClass, channel, confirm, connection};
use amq_protocol::types::FieldTable;
use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::PATIENCE;

const FRAME_MAX: u32 = 131_072;
/// The class number of `basic` in content headers.
const BASIC: u16 = 60;

/// Listens on a port of its own.
#[derive(Debug)]
pub struct ScriptedBroker {
    listener: TcpListener,
}

/// A client's connection, open.
#[derive(Debug)]
pub struct Session {
    stream: TcpStream,
    /// Received and not parsed.
    received: BytesMut,
    /// To be sent with the next flush.
    sending: Vec<u8>,
    channels: HashMap<u16, Incoming>,
    published: VecDeque<Published>,
}

#[derive(Debug, Default)]
struct Incoming {
    last_tag: u64,
    method: Option<basic::Publish>,
    header: Option<AMQPContentHeader>,
    body: Vec<u8>,
}

/// A message that a client published.
#[derive(Debug, Clone)]
pub struct Published {
    /// On which channel.
    pub channel: u16,
    /// Its delivery tag on that channel.
    pub tag: u64,
    /// Exchange, routing key, flags.
    pub method: basic::Publish,
    /// Properties and headers.
    pub properties: AMQPProperties,
    /// The payload.
    pub body: Vec<u8>,
}

impl ScriptedBroker {
    /// Starts to listen.
    pub async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a free port");
        Self { listener }
    }

    /// 127.0.0.1's port.
    pub fn port(&self) -> u16 {
        self.listener.local_addr().expect("it listens").port()
    }

    /// Waits for a client and lets it in, whoever it says it is.
    pub async fn accept(&self) -> Session {
        let accepted = timeout(PATIENCE, self.listener.accept()).await;
        let (stream, _) = accepted.expect("a client in time").expect("a client");
        stream.set_nodelay(true).expect("a socket");
        let mut session = Session {
            stream,
            received: BytesMut::new(),
            sending: Vec::new(),
            channels: HashMap::new(),
            published: VecDeque::new(),
        };
        session.handshake().await;
        session
    }
}

impl Session {
    async fn handshake(&mut self) {
        let greeting = self.next_frame().await;
        assert!(matches!(greeting, Some(AMQPFrame::ProtocolHeader(_))));
        self.connection(connection::AMQPMethod::Start(connection::Start {
            version_major: 0,
            version_minor: 9,
            server_properties: FieldTable::default(),
            mechanisms: "PLAIN EXTERNAL".into(),
            locales: "en_US".into(),
        }));
        self.flush().await;
        self.expect_connection("start-ok").await;
        self.connection(connection::AMQPMethod::Tune(connection::Tune {
            channel_max: 2047,
            frame_max: FRAME_MAX,
            heartbeat: 0,
        }));
        self.flush().await;
        self.expect_connection("tune-ok").await;
        self.expect_connection("open").await;
        let open_ok = connection::OpenOk {};
        self.connection(connection::AMQPMethod::OpenOk(open_ok));
        self.flush().await;
    }

    async fn expect_connection(&mut self, step: &str) {
        let frame = self.next_frame().await;
        let Some(AMQPFrame::Method(0, AMQPClass::Connection(_))) = frame else {
            panic!("{step} expected, not {frame:?}");
        };
    }

    /// The next message that the client publishes; opens channels on the way. `None` when the
    /// client is gone.
    pub async fn published(&mut self) -> Option<Published> {
        loop {
            if let Some(published) = self.published.pop_front() {
                return Some(published);
            }
            let frame = self.next_frame().await?;
            self.take(frame).await;
        }
    }

    /// Has everything that was received been looked at?
    pub fn is_idle(&self) -> bool {
        self.published.is_empty() && self.received.is_empty()
    }

    /// As many messages as said.
    pub async fn published_many(&mut self, count: usize) -> Vec<Published> {
        let mut all = Vec::with_capacity(count);
        while all.len() < count {
            all.push(self.published().await.expect("the client stays"));
        }
        all
    }

    /// Serves channels until the client is gone.
    pub async fn serve(mut self) {
        while self.published().await.is_some() {}
    }

    /// Acknowledges a message, or all up to it.
    pub fn ack(&mut self, channel: u16, delivery_tag: u64, multiple: bool) {
        let ack = basic::Ack {
            delivery_tag,
            multiple,
        };
        self.basic(channel, basic::AMQPMethod::Ack(ack));
    }

    /// Refuses a message, or all up to it.
    pub fn nack(&mut self, channel: u16, delivery_tag: u64, multiple: bool) {
        let nack = basic::Nack {
            delivery_tag,
            multiple,
            requeue: false,
        };
        self.basic(channel, basic::AMQPMethod::Nack(nack));
    }

    /// Returns a message as unroutable.
    pub fn return_message(&mut self, message: &Published) {
        let method = basic::Return {
            reply_code: 312,
            reply_text: "NO_ROUTE".into(),
            exchange: message.method.exchange.clone(),
            routing_key: message.method.routing_key.clone(),
        };
        self.basic(message.channel, basic::AMQPMethod::Return(method));
        self.send(&AMQPFrame::Header(
            message.channel,
            AMQPContentHeader {
                class_id: BASIC,
                body_size: message.body.len() as u64,
                properties: message.properties.clone(),
            },
        ));
        if !message.body.is_empty() {
            self.send(&AMQPFrame::Body(message.channel, message.body.clone()));
        }
    }

    /// Says that an alarm is raised.
    pub fn block(&mut self, reason: &str) {
        let blocked = connection::Blocked {
            reason: reason.into(),
        };
        self.connection(connection::AMQPMethod::Blocked(blocked));
    }

    /// Says that it is cleared.
    pub fn unblock(&mut self) {
        self.connection(connection::AMQPMethod::Unblocked(connection::Unblocked {}));
    }

    /// Sends what was said since the last flush, in one piece.
    pub async fn flush(&mut self) {
        let bytes = std::mem::take(&mut self.sending);
        // A client that is gone is seen by the next read.
        let _ = self.stream.write_all(&bytes).await;
    }

    fn basic(&mut self, channel: u16, method: basic::AMQPMethod) {
        self.send(&AMQPFrame::Method(channel, AMQPClass::Basic(method)));
    }

    fn connection(&mut self, method: connection::AMQPMethod) {
        self.send(&AMQPFrame::Method(0, AMQPClass::Connection(method)));
    }

    fn send(&mut self, frame: &AMQPFrame) {
        let mut buffer = [0; FRAME_MAX as usize];
        let encoded = gen_frame(frame)(Cursor::new(&mut buffer[..]).into());
        let (_, length) = encoded.expect("it encodes").into_inner();
        let length = usize::try_from(length).expect("within the buffer");
        self.sending.extend_from_slice(&buffer[..length]);
    }

    async fn take(&mut self, frame: AMQPFrame) {
        match frame {
            AMQPFrame::Method(number, AMQPClass::Channel(channel::AMQPMethod::Open(_))) => {
                self.channels.insert(number, Incoming::default());
                let ok = channel::AMQPMethod::OpenOk(channel::OpenOk {});
                self.answer(number, AMQPClass::Channel(ok)).await;
            }
            AMQPFrame::Method(number, AMQPClass::Channel(channel::AMQPMethod::Close(_))) => {
                self.channels.remove(&number);
                let ok = channel::AMQPMethod::CloseOk(channel::CloseOk {});
                self.answer(number, AMQPClass::Channel(ok)).await;
            }
            AMQPFrame::Method(number, AMQPClass::Confirm(_)) => {
                let ok = confirm::AMQPMethod::SelectOk(confirm::SelectOk {});
                self.answer(number, AMQPClass::Confirm(ok)).await;
            }
            AMQPFrame::Method(_, AMQPClass::Connection(connection::AMQPMethod::Close(_))) => {
                let ok = connection::AMQPMethod::CloseOk(connection::CloseOk {});
                self.answer(0, AMQPClass::Connection(ok)).await;
            }
            AMQPFrame::Method(n, AMQPClass::Basic(basic::AMQPMethod::Publish(method))) => {
                self.incoming(n).method = Some(method);
            }
            AMQPFrame::Header(number, header) => {
                self.incoming(number).header = Some(header);
                self.complete(number);
            }
            AMQPFrame::Body(number, body) => {
                self.incoming(number).body.extend(body);
                self.complete(number);
            }
            AMQPFrame::ProtocolHeader(_)
            | AMQPFrame::Method(..)
            | AMQPFrame::Heartbeat
            | AMQPFrame::InvalidHeartbeat(_) => {}
        }
    }

    async fn answer(&mut self, channel: u16, method: AMQPClass) {
        self.send(&AMQPFrame::Method(channel, method));
        self.flush().await;
    }

    fn incoming(&mut self, channel: u16) -> &mut Incoming {
        self.channels.get_mut(&channel).expect("an open channel")
    }

    fn complete(&mut self, channel: u16) {
        let incoming = self.incoming(channel);
        let size = incoming.header.as_ref().map(|header| header.body_size);
        if size != Some(incoming.body.len() as u64) {
            return;
        }
        incoming.last_tag += 1;
        let published = Published {
            channel,
            tag: incoming.last_tag,
            method: incoming.method.take().expect("a method before a header"),
            properties: incoming.header.take().expect("seen above").properties,
            body: std::mem::take(&mut incoming.body),
        };
        self.published.push_back(published);
    }

    async fn next_frame(&mut self) -> Option<AMQPFrame> {
        loop {
            match parse_frame(&self.received[..]) {
                Ok((rest, frame)) => {
                    let used = self.received.len() - rest.len();
                    self.received.advance(used);
                    return Some(frame);
                }
                Err(error) => assert!(error.is_incomplete(), "{error:?}"),
            }
            let read = timeout(PATIENCE, self.stream.read_buf(&mut self.received)).await;
            match read.expect("the client says something in time") {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }
}
