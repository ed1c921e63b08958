//! What only the broker in memory can be told to do; the rest is in the contract suite.

use std::time::{Duration, UNIX_EPOCH};

use tokio::time::timeout;

use super::*;
use crate::broker::{Broker, Channel, Link, LinkState, Outcome};
use crate::message::{Body, OutboxRow, RowId, Rules};

const SHORT: Duration = Duration::from_millis(100);

fn to(exchange: &str, routing_key: &str, id: i64) -> Arc<Publication> {
    let row = OutboxRow {
        id: RowId(id),
        message_id: format!("message-{id}"),
        exchange: exchange.to_owned(),
        routing_key: routing_key.to_owned(),
        ordering_key: None,
        payload: Body::Bytes("{}".into()),
        headers: None,
        message_type: None,
        correlation_id: None,
        content_type: None,
        properties: None,
        created_at: UNIX_EPOCH,
        attempts: 0,
    };
    let rules = Rules {
        login: None,
        ..crate::message::rules()
    };
    Arc::new(Publication::from_row(row, &rules).unwrap())
}

fn ids(publications: &[Arc<Publication>]) -> Vec<i64> {
    publications.iter().map(|p| p.id().0).collect()
}

async fn stage() -> (MemoryBroker, MemoryLink, MemoryChannel) {
    let broker = MemoryBroker::new();
    for queue in ["q", "slow"] {
        broker.declare_queue(queue);
        broker.bind("orders", queue, queue);
    }
    broker.set_confirm_timeout(SHORT);
    let link = broker.connect().await.unwrap();
    let channel = link.open_channel().await.unwrap();
    (broker, link, channel)
}

fn confirmed(judged: &[(RowId, Outcome)]) -> Vec<i64> {
    let confirmed = judged
        .iter()
        .filter(|(_, o)| matches!(o, Outcome::Confirmed(_)));
    confirmed.map(|(id, _)| id.0).collect()
}

#[tokio::test]
async fn a_stalled_queue_is_silent_until_it_is_not() {
    let (broker, _link, mut channel) = stage().await;
    broker.stall_queue("slow", true);
    channel
        .publish(vec![to("", "slow", 1), to("", "q", 2)])
        .await;
    assert_eq!(confirmed(&channel.judged().await.unwrap()), [2]);
    broker.stall_queue("slow", false);
    assert_eq!(confirmed(&channel.judged().await.unwrap()), [1]);

    broker.stall_queue("slow", true);
    channel
        .publish(vec![to("", "slow", 3), to("", "q", 4)])
        .await;
    assert_eq!(confirmed(&channel.judged().await.unwrap()), [4]);
    let lost = channel.judged().await.unwrap_err();
    assert_eq!(
        lost.cause,
        LossCause::Silent {
            later_confirmed: true
        }
    );
    assert_eq!(lost.unknown, [RowId(3)]);
    assert_eq!(ids(&broker.messages("slow")), [1, 3]);
}

#[tokio::test]
async fn held_confirms_come_when_they_are_released() {
    let (broker, _link, mut channel) = stage().await;
    broker.hold_confirms();
    channel.publish(vec![to("", "q", 1)]).await;
    assert!(timeout(SHORT / 2, channel.judged()).await.is_err());
    broker.release_confirms();
    assert_eq!(confirmed(&channel.judged().await.unwrap()), [1]);
}

#[tokio::test]
async fn a_lost_confirm_is_never_seen_though_the_message_arrived() {
    let (broker, _link, mut channel) = stage().await;
    broker.lose_confirms(1);
    channel.publish(vec![to("", "q", 1)]).await;
    let lost = channel.judged().await.unwrap_err();
    assert_eq!(
        lost.cause,
        LossCause::Silent {
            later_confirmed: false
        }
    );
    assert_eq!(ids(&broker.drain("q")), [1]);
    assert!(broker.messages("q").is_empty());
}

#[tokio::test]
async fn a_blocked_broker_takes_what_waited_in_order() {
    let (broker, link, mut channel) = stage().await;
    broker.block("low on memory");
    assert_eq!(
        *link.state().borrow(),
        LinkState::Blocked("low on memory".into())
    );
    channel.publish(vec![to("", "q", 1), to("", "q", 2)]).await;
    assert!(timeout(3 * SHORT, channel.judged()).await.is_err());
    assert_eq!(broker.publishes(), 0);
    broker.unblock();
    assert_eq!(confirmed(&channel.judged().await.unwrap()), [1, 2]);
    assert_eq!(ids(&broker.messages("q")), [1, 2]);
}

#[tokio::test]
async fn a_refused_exchange_costs_the_channel() {
    let (broker, link, mut channel) = stage().await;
    broker.refuse_writes("orders", true);
    channel
        .publish(vec![to("", "q", 1), to("orders", "q", 2), to("", "q", 3)])
        .await;
    let lost = channel.judged().await.unwrap_err();
    assert!(
        matches!(lost.cause, LossCause::Closed { code: 403, .. }),
        "{lost:?}"
    );
    assert_eq!(lost.unknown, [RowId(1), RowId(2), RowId(3)]);
    assert_eq!(
        ids(&broker.messages("q")),
        [1],
        "taken, and its confirm withheld"
    );
    broker.refuse_writes("orders", false);
    let mut channel = link.open_channel().await.unwrap();
    channel.publish(vec![to("orders", "q", 2)]).await;
    assert_eq!(confirmed(&channel.judged().await.unwrap()), [2]);
    broker.unbind("orders", "q", "q");
    channel.publish(vec![to("orders", "q", 4)]).await;
    assert_eq!(confirmed(&channel.judged().await.unwrap()), [0_i64; 0]);
}

#[tokio::test]
async fn channels_and_connections_can_be_closed_and_refused() {
    let (broker, link, mut channel) = stage().await;
    broker.close_channels(406, "PRECONDITION_FAILED");
    let lost = channel.judged().await.unwrap_err();
    assert!(
        matches!(lost.cause, LossCause::Closed { code: 406, .. }),
        "{lost:?}"
    );
    assert_eq!((broker.open_links(), broker.connects()), (1, 1));
    broker.cut("gone");
    assert_eq!(*link.state().borrow(), LinkState::Lost("gone".into()));
    broker.refuse_connects(Some("ACCESS_REFUSED"));
    let error = broker.connect().await.err().unwrap();
    assert!(error.to_string().contains("ACCESS_REFUSED"), "{error}");
    broker.refuse_connects(None);
    let again = broker.connect().await.unwrap();
    assert_eq!((broker.open_links(), broker.connects()), (1, 2));
    drop(again);
    assert_eq!(broker.open_links(), 0);
}
