//! Observations of lapin that `broker::amqp` is built around. If one of these fails after an
//! upgrade, lapin has changed: read the module that is named, it may become simpler.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use async_compat::CompatExt;
use futures_util::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::tcp::AsyncTcpStream;
use lapin::uri::AMQPUri;
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::support::PATIENCE;
use crate::support::scripted_broker::{ScriptedBroker, Session};

async fn connect(port: u16) -> Connection {
    let url = format!("amqp://127.0.0.1:{port}/%2f");
    let connected = Connection::connect(&url, ConnectionProperties::default());
    timeout(PATIENCE, connected)
        .await
        .expect("in time")
        .expect("let in")
}

async fn confirming_channel(connection: &Connection, session: &mut Session) -> Channel {
    let opening = async {
        let channel = connection.create_channel().await.expect("a channel");
        let select = channel.confirm_select(ConfirmSelectOptions::default());
        select.await.expect("confirm mode");
        channel
    };
    tokio::select! {
        channel = opening => channel,
        published = session.published() => panic!("{published:?}"),
    }
}

async fn publish(channel: &Channel, body: &[u8]) -> lapin::Result<Confirmation> {
    let mandatory = BasicPublishOptions {
        mandatory: true,
        immediate: false,
    };
    let properties = BasicProperties::default();
    let published = channel.basic_publish("".into(), "q".into(), mandatory, body, properties);
    published.await?.await
}

/// Fact 1, see `broker::amqp::judge`: without the rule there, row `a` would be marked as sent
/// though no queue has it.
#[tokio::test]
async fn a_returned_message_rides_on_whichever_confirm_comes_next() {
    let scripted = ScriptedBroker::start().await;
    let (connection, mut session) = tokio::join!(connect(scripted.port()), scripted.accept());
    let channel = confirming_channel(&connection, &mut session).await;
    let script = async {
        let messages = session.published_many(2).await;
        session.return_message(&messages[0]);
        session.ack(messages[1].channel, messages[1].tag, false);
        session.ack(messages[0].channel, messages[0].tag, false);
        session.flush().await;
    };
    let (a, b) = (publish(&channel, b"a"), publish(&channel, b"b"));
    let (a, b, ()) = tokio::join!(a, b, script);
    assert_eq!(a.expect("acked"), Confirmation::Ack(None), "a was returned");
    let carried = b.expect("acked").take_message().expect("a's return");
    assert_eq!(carried.data, b"a");
}

/// Fact 2, see `broker::amqp::channel`: the broker nacks what says "no", and some who said
/// "yes" are told so.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_channel_cloned_between_tasks_mixes_up_confirms() {
    let scripted = ScriptedBroker::start().await;
    let (connection, mut session) = tokio::join!(connect(scripted.port()), scripted.accept());
    let channel = confirming_channel(&connection, &mut session).await;
    tokio::spawn(async move {
        while let Some(message) = session.published().await {
            match message.body.as_slice() {
                b"yes" => session.ack(message.channel, message.tag, false),
                _ => session.nack(message.channel, message.tag, false),
            }
            if session.is_idle() {
                session.flush().await;
            }
        }
    });
    let begun = Instant::now();
    let mut mixed_up = 0;
    while mixed_up == 0 {
        // 138 of 12,000 were seen; not one in minutes means that it does not happen any more.
        assert!(
            begun.elapsed() < PATIENCE,
            "lapin keeps cloned channels' confirms apart"
        );
        let tasks = (0..4).map(|task| {
            let channel = channel.clone();
            tokio::spawn(async move {
                misled(&channel, if task % 2 == 0 { b"yes" } else { b"no!" }).await
            })
        });
        mixed_up += join_all(tasks)
            .await
            .into_iter()
            .map(|t| t.expect("no panic"))
            .sum::<usize>();
    }
}

/// How many of a thousand messages got another's answer.
async fn misled(channel: &Channel, body: &'static [u8; 3]) -> usize {
    let answers = join_all((0..1000).map(|_| publish(channel, body))).await;
    let wrong = |answer: &lapin::Result<Confirmation>| {
        answer.as_ref().expect("answered").is_ack() != (body == b"yes")
    };
    answers.iter().filter(|answer| wrong(answer)).count()
}

/// Fact 3, see `broker::amqp::in_flight`: how often lapin's thread has to be woken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn awaiting_each_publish_wakes_lapin_for_each_and_polling_them_together_does_not() {
    const MESSAGES: usize = 5000;
    let scripted = ScriptedBroker::start().await;
    let watched = connect_watched(scripted.port());
    let ((connection, thread), mut session) = tokio::join!(watched, scripted.accept());
    let channel = confirming_channel(&connection, &mut session).await;
    tokio::spawn(session.serve());
    let one = || {
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        channel.basic_publish("".into(), "q".into(), options, &[b'x'; 512], properties)
    };
    let begin = sleeps(thread);
    for _ in 0..MESSAGES {
        drop(one().await.expect("written"));
    }
    let between = sleeps(thread);
    for written in join_all((0..MESSAGES).map(|_| one())).await {
        drop(written.expect("written"));
    }
    let (one_by_one, together) = (between - begin, sleeps(thread) - between);
    assert!(
        one_by_one > 2 * together,
        "{one_by_one} one by one, {together} together"
    );
}

/// How often a thread of ours has gone to sleep.
fn sleeps(thread: i32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status"));
    let status = status.expect("it lives");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.expect("the kernel counts")
        .trim()
        .parse()
        .expect("a number")
}

/// A connection and its thread's number: lapin calls the connector in that thread.
async fn connect_watched(port: u16) -> (Connection, i32) {
    let number = Arc::new(AtomicI32::new(0));
    let told = Arc::clone(&number);
    let open = async move |_, _| {
        told.store(
            rustix::thread::gettid().as_raw_nonzero().get(),
            Ordering::SeqCst,
        );
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        Ok(AsyncTcpStream::Plain(stream.compat()))
    };
    let runtime = lapin::runtime::default_runtime().expect("tokio");
    let options = ConnectionProperties::default();
    let connected = Connection::connector(AMQPUri::default(), runtime, open, options);
    let connection = timeout(PATIENCE, connected)
        .await
        .expect("in time")
        .expect("let in");
    (connection, number.load(Ordering::SeqCst))
}
