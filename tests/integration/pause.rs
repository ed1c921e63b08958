//! `outbox-relay pause` and `resume` (F52): obeyed by a running relay, and on record.

use serde_json::Value;
use tokio_postgres::Client;

use crate::operator::{json, lines, operator, said};
use crate::outbox::{number, outbox, until};
use crate::queue::Queue;
use crate::support::rabbit::vhost;
use crate::support::relay::{Relay, Settings};

async fn write(admin: &Client, sql: &str) {
    let written = admin.batch_execute(sql).await;
    written.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

/// Rows to both exchanges, ten keys each.
async fn rows(admin: &Client, each: i64) {
    for exchange in ["paused", "flowing"] {
        let sql = format!(
            "INSERT INTO outbox.message (exchange, ordering_key, payload) \
             SELECT '{exchange}', '{exchange}' || g % 10, '1' FROM generate_series(1, {each}) g"
        );
        write(admin, &sql).await;
    }
}

const PENDING: &str = "SELECT count(*) FROM outbox.message WHERE sent_at IS NULL";

async fn in_order(queue: &mut Queue, ids: &[i64]) {
    let mut last = [0; 10];
    for _ in ids {
        let (id, _) = queue.next().await;
        let place = ids
            .iter()
            .position(|one| *one == id)
            .expect("a row of this exchange");
        let last = &mut last[(place + 1) % 10];
        assert!(*last < id, "{id} came after {last}");
        *last = id;
    }
}

async fn ids(admin: &Client, exchange: &str) -> Vec<i64> {
    let sql = "SELECT id FROM outbox.message WHERE exchange = $1 ORDER BY id";
    let rows = admin.query(sql, &[&exchange]).await.expect("ids");
    rows.iter().map(|row| row.get(0)).collect()
}

/// Reads later nothing has changed: that the others wait is no matter of luck.
async fn two_more_flow(admin: &Client, flowing: &mut Queue) {
    for _ in 0..2 {
        let one = "INSERT INTO outbox.message (exchange, payload) VALUES ('flowing', '1')";
        write(admin, one).await;
        flowing.next().await;
    }
}

#[tokio::test]
async fn one_exchange_waits_while_the_other_flows_and_then_follows_in_order() {
    let (database, admin) = outbox().await;
    let operator = operator(&database, &admin).await;
    let vhost = vhost().await;
    let mut paused = Queue::behind(&vhost.url, "paused", "p").await;
    let mut flowing = Queue::behind(&vhost.url, "flowing", "f").await;
    let relay = Relay::start(&Settings::new(&database.url, &vhost.url));
    relay.ready().await;
    let pause = [
        "pause",
        "--exchange",
        "paused",
        "--reason",
        "deploy",
        "--for",
        "1h",
    ];
    let (code, text) = said(&operator, &pause).await;
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("Paused exchange paused until "), "{text}");
    relay.printed("paused").await;
    rows(&admin, 500).await;
    let (held, others) = (ids(&admin, "paused").await, ids(&admin, "flowing").await);
    in_order(&mut flowing, &others).await;
    until(&admin, &format!("SELECT ({PENDING}) = 500")).await;
    two_more_flow(&admin, &mut flowing).await;
    let sent =
        "SELECT count(*) FROM outbox.message WHERE exchange = 'paused' AND sent_at IS NOT NULL";
    assert_eq!(number(&admin, sent).await, 0);
    let (_, status) = json(&operator_of(&database.url), &["status"]).await;
    assert_eq!(status["pauses"][0]["exchange"], "paused");
    assert_eq!(status["pauses"][0]["by"], "ann");

    let resume = ["resume", "--exchange", "paused", "--reason", "done"];
    assert_eq!(
        said(&operator, &resume).await,
        (0, "Resumed exchange paused.".to_owned())
    );
    in_order(&mut paused, &held).await;
    until(&admin, &format!("SELECT ({PENDING}) = 0")).await;
    relay.stop().await;
    let record = "SELECT concat_ws(' ', act, by_whom, reason, detail->>'exchange') \
         FROM outbox.audit ORDER BY audit_id";
    assert_eq!(
        lines(&admin, record).await,
        ["pause ann deploy paused", "resume ann done paused"]
    );
}

/// The monitor's part is played by the owner: status is no act.
fn operator_of(url: &str) -> Settings {
    Settings::new(url, "amqp://localhost")
}

#[tokio::test]
async fn while_everything_is_paused_the_relay_is_ready_and_nothing_is_sent() {
    let (database, admin) = outbox().await;
    let operator = operator(&database, &admin).await;
    let vhost = vhost().await;
    let mut queue = Queue::behind(&vhost.url, "flowing", "f").await;
    assert_eq!(
        said(&operator, &["pause", "--reason", "upgrade"]).await.0,
        0
    );
    let settings = Settings::new(&database.url, &vhost.url);
    rows(&admin, 50).await;
    write(&admin, "UPDATE outbox.message SET exchange = 'flowing'").await;
    let relay = Relay::start_with(&settings, &["run", "--until-empty"]);
    relay.printed("paused: everything").await;
    assert!(relay.ended().await.success(), "{:?}", relay.output());
    let relay = Relay::start(&settings);
    relay.ready().await;
    relay.printed("upgrade").await;
    let (code, body) = relay.get("/readyz").await.expect("an answer");
    let page: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(code, 200);
    assert_eq!(page["progress"]["state"], "paused", "{body}");
    assert_eq!(number(&admin, PENDING).await, 100);
    let (code, text) = said(
        &operator,
        &["resume", "--exchange", "flowing", "--reason", "x"],
    )
    .await;
    assert_eq!(code, 1);
    assert!(text.contains("Still paused: everything."), "{text}");
    assert_eq!(
        said(&operator, &["resume", "--all", "--reason", "done"])
            .await
            .0,
        0
    );
    for _ in 0..100 {
        queue.next().await;
    }
    until(&admin, &format!("SELECT ({PENDING}) = 0")).await;
    relay.stop().await;
}

#[tokio::test]
async fn a_pause_ends_by_itself() {
    let (database, admin) = outbox().await;
    let operator = operator(&database, &admin).await;
    let vhost = vhost().await;
    let mut queue = Queue::behind(&vhost.url, "flowing", "f").await;
    let settings = Settings::new(&database.url, &vhost.url);
    let pause = [
        "pause",
        "--exchange",
        "flowing",
        "--reason",
        "moment",
        "--for",
        "4s",
    ];
    assert_eq!(said(&operator, &pause).await.0, 0);
    write(
        &admin,
        "INSERT INTO outbox.message (exchange, payload) VALUES ('flowing', '1')",
    )
    .await;
    let relay = Relay::start(&settings);
    queue.next().await;
    until(&admin, &format!("SELECT ({PENDING}) = 0")).await;
    let late = "SELECT count(*) FROM outbox.message, outbox.pause WHERE sent_at >= until";
    assert_eq!(number(&admin, late).await, 1, "not before its end");
    relay.stop().await;
}

/// The pause of a misspelt exchange holds nothing back, which its author has to hear.
#[tokio::test]
async fn an_exchange_that_no_row_names_is_paused_with_a_warning() {
    let (database, admin) = outbox().await;
    let operator = operator(&database, &admin).await;
    let sent =
        "INSERT INTO outbox.message (exchange, payload, sent_at) VALUES ('orders', '1', now())";
    write(&admin, sent).await;
    for (exchange, warned) in [
        ("orders", false),
        ("", false),
        ("ordrs", true),
        ("mail", true),
    ] {
        let pause = ["pause", "--reason", "moving", "--exchange", exchange];
        let (code, text) = said(&operator, &pause).await;
        assert_eq!((code, text.contains("warning")), (0, warned), "{text}");
        assert!(text.contains("Paused"), "{text}");
        assert_eq!(
            text.contains("Did you mean orders?"),
            exchange == "ordrs",
            "{text}"
        );
    }
    // Scripts get it on the standard error output only.
    let (code, told) = json(
        &operator,
        &["pause", "--reason", "moving", "--exchange", "ordrs"],
    )
    .await;
    assert_eq!((code, &told["exchange"]), (0, &Value::from("ordrs")));
}
