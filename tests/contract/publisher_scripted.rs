//! The real publisher against a broker that answers in every order AMQP allows.

use std::collections::BTreeMap;
use std::time::Duration;

use outbox_relay::broker::{AmqpLink, Broker, Channel, Link, LinkState, LossCause, Outcome};
use outbox_relay::message::RowId;
use tokio::time::timeout;

use crate::on_rabbitmq::{broker, endpoint};
use crate::publisher::{is_confirmed, judged, lost};
use crate::rows::publication;
use crate::support::PATIENCE;
use crate::support::scripted_broker::{Published, ScriptedBroker, Session};

async fn connected(confirm_timeout: Duration) -> (AmqpLink, Session) {
    let scripted = ScriptedBroker::start().await;
    let there = broker(vec![endpoint(scripted.port(), "/")], confirm_timeout);
    let (link, session) = tokio::join!(there.connect(), scripted.accept());
    (link.expect("let in"), session)
}

/// Opens a channel while the script serves it.
async fn channel(link: &AmqpLink, session: &mut Session) -> <AmqpLink as Link>::Channel {
    tokio::select! {
        opened = link.open_channel() => opened.expect("a channel"),
        published = session.published() => panic!("{published:?}"),
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % n as u64).expect("small")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Routed,
    Unroutable,
    Nacked,
}

fn fate_of(id: i64) -> Fate {
    match Random(u64::try_from(id).expect("positive")).below(10) {
        0..=2 => Fate::Unroutable,
        3..=4 => Fate::Nacked,
        _ => Fate::Routed,
    }
}

fn id_of(message: &Published) -> i64 {
    let body = std::str::from_utf8(&message.body).expect("text");
    body.trim_start_matches("{\"id\": ")
        .trim_end_matches('}')
        .parse()
        .expect("an id")
}

/// Answers messages: each return before its ack, but singly or together, in any order, and with
/// other messages' returns and answers between.
struct Script {
    random: Random,
    /// By delivery tag, unanswered.
    open: BTreeMap<u64, Published>,
}

impl Script {
    fn answer_some(&mut self, session: &mut Session) {
        match self.random.below(3) {
            0 => self.answer_one(session),
            1 => self.return_early(session),
            _ => self.answer_a_run(session),
        }
    }

    fn nth(&mut self) -> Option<u64> {
        let count = self.open.len();
        let place = (count > 0).then(|| self.random.below(count))?;
        self.open.keys().nth(place).copied()
    }

    fn answer_one(&mut self, session: &mut Session) {
        let Some(message) = self.nth().and_then(|tag| self.open.remove(&tag)) else {
            return;
        };
        match fate_of(id_of(&message)) {
            Fate::Unroutable => {
                session.return_message(&message);
                session.ack(message.channel, message.tag, false);
            }
            Fate::Routed => session.ack(message.channel, message.tag, false),
            Fate::Nacked => session.nack(message.channel, message.tag, false),
        }
    }

    /// A return long before its ack.
    fn return_early(&mut self, session: &mut Session) {
        let Some(tag) = self.nth() else {
            return;
        };
        let message = self.open[&tag].clone();
        if fate_of(id_of(&message)) == Fate::Unroutable {
            session.return_message(&message);
            self.open.remove(&tag);
            // Something else is answered between the two.
            self.answer_one(session);
            session.ack(message.channel, message.tag, false);
        }
    }

    /// With `multiple`: all up to a tag that share an answer.
    fn answer_a_run(&mut self, session: &mut Session) {
        let Some((_, first)) = self.open.first_key_value() else {
            return;
        };
        let nacked = fate_of(id_of(first)) == Fate::Nacked;
        let same = |m: &&Published| (fate_of(id_of(m)) == Fate::Nacked) == nacked;
        let run: Vec<Published> = self.open.values().take_while(same).cloned().collect();
        let length = 1 + self.random.below(run.len());
        for message in &run[..length] {
            if fate_of(id_of(message)) == Fate::Unroutable {
                session.return_message(message);
            }
            self.open.remove(&message.tag);
        }
        let last = &run[length - 1];
        match nacked {
            true => session.nack(last.channel, last.tag, true),
            false => session.ack(last.channel, last.tag, true),
        }
    }
}

/// F9, with returns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sent_set_is_exactly_the_acked_and_routed_set() {
    const TOTAL: i64 = 20_000;
    let (link, mut session) = connected(PATIENCE).await;
    let mut channel = channel(&link, &mut session).await;
    tokio::spawn(async move {
        let mut script = Script {
            random: Random(7),
            open: BTreeMap::new(),
        };
        while let Some(message) = session.published().await {
            script.open.insert(message.tag, message);
            // The window is larger than this, so that the client never waits for more.
            while script.open.len() > 60 {
                script.answer_some(&mut session);
                if script.random.below(4) == 0 {
                    session.flush().await;
                }
            }
            if session.is_idle() {
                while !script.open.is_empty() {
                    script.answer_some(&mut session);
                }
                session.flush().await;
            }
        }
    });
    let (mut next, mut open, mut done) = (0, 0, 0);
    while done < TOTAL {
        let mut batch = Vec::new();
        while next < TOTAL && open < 200 {
            batch.push(publication(next, "", "q"));
            (next, open) = (next + 1, open + 1);
        }
        channel.publish(batch).await;
        let judged = timeout(PATIENCE, channel.judged()).await.expect("in time");
        for (id, outcome) in judged.expect("the channel stays open") {
            let expected = match outcome {
                Outcome::Confirmed(_) => Fate::Routed,
                Outcome::Returned { .. } => Fate::Unroutable,
                Outcome::Nacked => Fate::Nacked,
            };
            assert_eq!(fate_of(id.0), expected, "{id}");
            (open, done) = (open - 1, done + 1);
        }
    }
}

#[tokio::test]
async fn silence_after_later_confirms_is_told_apart_from_silence_of_all() {
    for answered in [true, false] {
        let (link, mut session) = connected(Duration::from_millis(300)).await;
        let mut channel = channel(&link, &mut session).await;
        channel
            .publish((1..=3).map(|id| publication(id, "", "q")).collect())
            .await;
        let wait = lost(&mut channel);
        let script = async {
            let messages = session.published_many(3).await;
            session.ack(messages[0].channel, messages[0].tag, false);
            if answered {
                session.ack(messages[2].channel, messages[2].tag, false);
            }
            session.flush().await;
        };
        let ((judged, lost), ()) = tokio::join!(wait, script);
        assert!(judged.values().all(is_confirmed), "{judged:?}");
        assert_eq!(
            lost.cause,
            LossCause::Silent {
                later_confirmed: answered
            }
        );
        let unknown: &[RowId] = if answered {
            &[RowId(2)]
        } else {
            &[RowId(2), RowId(3)]
        };
        assert_eq!(lost.unknown, unknown);
        assert_eq!(*link.state().borrow(), LinkState::Open);
    }
}

#[tokio::test]
async fn while_the_broker_blocks_confirms_may_take_any_time() {
    let confirm_timeout = Duration::from_millis(300);
    let (link, mut session) = connected(confirm_timeout).await;
    let mut channel = channel(&link, &mut session).await;
    channel.publish(vec![publication(1, "", "q")]).await;
    let message = session.published_many(1).await.remove(0);
    session.block("low on memory");
    session.flush().await;
    let mut state = link.state();
    let blocked = LinkState::Blocked("low on memory".to_owned());
    timeout(PATIENCE, state.wait_for(|s| *s == blocked))
        .await
        .unwrap()
        .unwrap();
    let early = timeout(4 * confirm_timeout, channel.judged()).await;
    assert!(early.is_err(), "{early:?}");
    session.unblock();
    session.flush().await;
    timeout(PATIENCE, state.wait_for(|s| *s == LinkState::Open))
        .await
        .unwrap()
        .unwrap();
    session.ack(message.channel, message.tag, false);
    session.flush().await;
    assert!(is_confirmed(&judged(&mut channel, 1).await[&RowId(1)]));
}

#[tokio::test]
async fn a_return_of_somebody_elses_message_is_never_guessed_at() {
    let (link, mut session) = connected(PATIENCE).await;
    let mut channel = channel(&link, &mut session).await;
    channel
        .publish(vec![publication(1, "", "q"), publication(2, "", "q")])
        .await;
    let wait = lost(&mut channel);
    let script = async {
        let mut messages = session.published_many(2).await;
        messages[0].properties = Default::default();
        session.return_message(&messages[0]);
        session.ack(messages[1].channel, messages[1].tag, true);
        session.flush().await;
    };
    let ((judged, lost), ()) = tokio::join!(wait, script);
    assert!(judged.is_empty(), "{judged:?}");
    assert!(
        matches!(lost.cause, LossCause::Connection { .. }),
        "{lost:?}"
    );
    assert_eq!(lost.unknown, [RowId(1), RowId(2)]);
}

#[tokio::test]
async fn publishing_hands_a_slow_connection_no_more_than_it_takes() {
    let (link, mut session) = connected(PATIENCE).await;
    let mut channel = channel(&link, &mut session).await;
    // The script reads nothing; kernel buffers and lapin's own take some megabytes.
    let large = |id| {
        let mut row = crate::rows::row(id, "", "q");
        let payload = vec![b'x'; 1024 * 1024];
        row.payload = outbox_relay::message::Body::Bytes(payload.into());
        crate::rows::of(&row)
    };
    let batch: Vec<_> = (0..200).map(large).collect();
    channel.publish(batch.clone()).await;
    let early = timeout(Duration::from_millis(500), channel.judged()).await;
    assert!(early.is_err(), "{early:?}");
    // Whoever was not handed over is still referenced by the channel.
    let waiting = batch
        .iter()
        .filter(|p| std::sync::Arc::strong_count(p) > 1)
        .count();
    assert!(waiting > 150, "{waiting} of 200 wait");
    tokio::spawn(async move {
        let mut count = 0;
        while let Some(message) = session.published().await {
            count += 1;
            session.ack(message.channel, message.tag, false);
            session.flush().await;
        }
        count
    });
    let judged = judged(&mut channel, 200).await;
    assert!(judged.values().all(is_confirmed), "{judged:?}");
}
