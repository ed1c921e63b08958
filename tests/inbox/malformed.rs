//! Messages that nobody can work on: each is kept once under an identity of its own, whatever is
//! wrong with it, and what is behind it goes on.

use std::collections::BTreeSet;
use std::path::PathBuf;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, ByteArray, FieldTable};
use outbox_relay::store::postgres::connect::open;
use outbox_relay::store::postgres::schema::{Subject, migrate_subject};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio_postgres::Client;

use crate::entries::{ask, claimed, entry, inbox, number, target};
use crate::examples::{examples, installed, with_program};
use crate::faults::port_of;
use crate::support::postgres::connect;
use crate::world::{Counts, World};

fn identified(id: &str) -> BasicProperties {
    BasicProperties::default()
        .with_message_id(id.into())
        .with_delivery_mode(2)
}

fn headers(name: &str, value: AMQPValue) -> FieldTable {
    let mut headers = FieldTable::default();
    headers.insert(name.into(), value);
    headers
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// What no client library sends: each is replaced on its way by as many bytes. Texts that are not
/// UTF-8, and a byte array whose content is a list, and is called one.
const PATCHES: [(&[u8], &[u8]); 4] = [
    (b"{id-no-text}", b"{\xff\xfe-no-text}"),
    (b"{another-id}", b"{\xfe\xff-ther-id}"),
    (b"{type-no-text}", b"{type-\xc3\x28-text}"),
    (b"\x04deepx", b"\x04deepA"),
];

/// The way to a broker by which [`PATCHES`] are made.
async fn patched(amqp: &str) -> String {
    let broker = port_of(amqp);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let broker = TcpStream::connect(("127.0.0.1", broker)).await;
            let (from_client, to_client) = client.into_split();
            let (from_broker, to_broker) = broker.expect("a broker").into_split();
            tokio::spawn(pass(from_client, to_broker, true));
            tokio::spawn(pass(from_broker, to_client, false));
        }
    });
    amqp.replacen(&format!(":{broker}"), &format!(":{port}"), 1)
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, patches: bool) {
    let mut bytes = vec![0; 256 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if patches {
            for (what, by) in PATCHES {
                for at in 0..(count + 1).saturating_sub(what.len()) {
                    if bytes[at..count].starts_with(what) {
                        bytes[at..at + what.len()].copy_from_slice(by);
                    }
                }
            }
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            break;
        }
    }
}

/// A list in a list in a list …, as AMQP writes it.
fn nested(levels: usize) -> Vec<u8> {
    let mut list = Vec::new();
    for _ in 0..levels {
        let length = u32::try_from(list.len()).expect("short").to_be_bytes();
        list = [b"A", length.as_slice(), &list].concat();
    }
    list
}

/// A world whose own messages are patched on their way.
async fn world_of_patches() -> World {
    let mut world = World::new().await;
    let direct = std::mem::take(&mut world.amqp);
    world.amqp = patched(&direct).await;
    let mut world = world.with_new_channel().await;
    world.amqp = direct;
    world
}

/// Publishes all kinds, and says which identities are usable, and how many are not.
async fn publish_all_kinds(world: &World) -> BTreeSet<&'static str> {
    let anonymous = BasicProperties::default();
    world.publish_with(anonymous, b"no id").await;
    for id in ["", "a\0b", "{id-no-text}", "{another-id}"] {
        let body = format!("{{\"id\": {id:?}}}");
        world.publish_with(identified(id), body.as_bytes()).await;
    }
    let key = |value| headers("x-outbox-key", value);
    for (id, value) in [
        ("key-is-a-list", AMQPValue::FieldArray(Vec::new().into())),
        ("key-is-a-boolean", AMQPValue::Boolean(true)),
        (
            "key-is-a-table",
            AMQPValue::FieldTable(FieldTable::default()),
        ),
    ] {
        // The same body: only their ids tell them apart.
        let properties = identified(id).with_headers(key(value));
        world.publish_with(properties, b"{}").await;
    }
    ["key-is-a-boolean", "key-is-a-list", "key-is-a-table"].into()
}

/// What can be worked on, although it looks odd.
async fn publish_odd_ones(world: &World, levels: usize) {
    let order = br#"{"amount": 1}"#;
    let odd = identified("type").with_type("{type-no-text}".into());
    world.publish_with(odd, order).await;
    let deep = headers(
        "deep",
        AMQPValue::ByteArray(ByteArray::from(nested(levels))),
    );
    let deep = identified("deep").with_headers(deep);
    world.publish_with(deep, order).await;
    let long = headers("x-outbox-key", text(&"k".repeat(2000)));
    let long = identified("key-is-long").with_headers(long);
    world.publish_with(long, order).await;
    world.publish_with(identified("last"), order).await;
}

async fn malformed(client: &Client) -> BTreeSet<String> {
    let sql = "SELECT message_id FROM inbox.message WHERE state = 'dead' AND payload IS NOT NULL \
               AND reason_class = 'malformed' AND attempt = 0";
    let rows = ask(client, sql, &[]).await;
    rows.iter().map(|row| row.get(0)).collect()
}

fn is_all(kept: &BTreeSet<String>, identified: &BTreeSet<&str>) {
    let own: BTreeSet<_> = kept.iter().map(String::as_str).collect();
    assert!(own.is_superset(identified), "{kept:?}");
    let without = kept.iter().filter(|id| id.starts_with("invalid:")).count();
    assert_eq!((without, kept.len()), (5, 5 + identified.len()), "{kept:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_is_dead_once_under_its_own_identity_and_stops_nobody() {
    let world = world_of_patches().await;
    let mut identified = BTreeSet::new();
    for _ in 0..2 {
        identified = publish_all_kinds(&world).await;
    }
    publish_odd_ones(&world, 5000).await;
    let consumer = world.leased(world.settings(), async |message| {
        Ok(Some(json!({"type": message.kind()})))
    });
    world.are("done", 4).await;
    world.are("dead", 8).await;
    let counts = std::sync::Arc::clone(&consumer.counts);
    consumer.stop().await;
    assert_eq!(Counts::get(&counts.handled), 4);
    assert_eq!(Counts::get(&counts.redelivered), 0, "nothing went back");
    is_all(&malformed(&world.client).await, &identified);
    let result = &entry(&world.client, "type").await["result"];
    assert_eq!(result, &json!({"type": "{type-?(-text}"}));
    world.invariants(12).await;
}

async fn in_another_language(language: &'static str, command: fn(PathBuf) -> [PathBuf; 2]) {
    let Some(folder) = installed(language).await else {
        return;
    };
    let world = world_of_patches().await;
    let booking = "CREATE TABLE booking (message_id text, amount bigint)";
    world.client.batch_execute(booking).await.expect("a table");
    let identified = publish_all_kinds(&world).await;
    let nul = BasicProperties::default()
        .with_message_id("header-with-nul".into())
        .with_headers(headers("h", text("a\0b")));
    world.publish_with(nul, b"{}").await;
    let nonsense = r#"{"amount": "a\u0000b"}"#;
    world
        .publish_with(self::identified("nonsense"), nonsense.as_bytes())
        .await;
    // How deep a client library reads is its own affair.
    publish_odd_ones(&world, 50).await;
    with_program(&world, &command(folder), "60s", async || {
        world.are("done", 4).await;
        world.are("dead", 10).await;
    })
    .await;
    let mut kept = malformed(&world.client).await;
    assert!(kept.remove("header-with-nul"), "{kept:?}");
    is_all(&kept, &identified);
    assert_eq!(
        entry(&world.client, "nonsense").await["reason_class"],
        "permanent"
    );
    world.invariants(14).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_python_too() {
    in_another_language("python", |folder| {
        [
            folder.join("venv/bin/python"),
            examples().join("consumer.py"),
        ]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_node_too() {
    in_another_language("node", |folder| {
        ["node".into(), folder.join("node/consumer.mjs")]
    })
    .await;
}

/// A database in an encoding that does not have every character.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_database_cannot_hold_is_dead_and_the_next_one_is_worked_on() {
    let world = World::new().await;
    let name = format!("{}_latin", world.database.name);
    let create = format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'");
    world.client.batch_execute(&create).await.expect("LATIN1");
    let url = world.database.url.replace(&world.database.name, &name);
    let session = open(&target(&url), "outbox-relay/test/1").await;
    let made = migrate_subject(&session.expect("a session"), &Subject::inbox(), &mut |_| ()).await;
    made.expect("an inbox");
    let japanese = identified("plain").with_headers(headers("h", text("日本")));
    world.publish_with(japanese, b"1").await;
    world.publish_with(identified("日本"), b"2").await;
    world.publish_with(identified("last"), b"3").await;
    let consumer = world.leased_on(&url, &world.amqp, world.settings(), async |message| {
        assert_eq!(message.message_id, "last");
        if message.attempt == 1 {
            return Err(outbox_relay::inbox::Failure::temporary("日本"));
        }
        Ok(None)
    });
    consumer.counts.reaches(&consumer.counts.completed, 1).await;
    consumer.stop().await;
    let client = connect(&url).await;
    let kept = malformed(&client).await;
    assert!(kept.contains("plain") && kept.len() == 2, "{kept:?}");
    assert_eq!(world.ready().await, 0);
    drop(client);
}

/// The outbox permits keys of any length that a header can have.
#[tokio::test]
async fn a_key_of_any_length_keeps_its_order() {
    let (_database, client) = inbox().await;
    // Text that does not compress: an index on it could hold neither key.
    let key = "SELECT string_agg(encode(sha256(n::text::bytea), 'hex'), '') \
               FROM generate_series(1, $1::int4) AS n";
    for blocks in [42, 1800] {
        let key: String = ask(&client, key, &[&blocks]).await[0].get(0);
        let first = format!("first {blocks}");
        let owner = claimed(&client, &first, Some(&key)).await;
        let (second, other) = (format!("second {blocks}"), format!("other {blocks}"));
        let claim = crate::entries::claim(&client, &second, Some(&key)).await;
        assert_eq!(claim.outcome, "waiting");
        claimed(&client, &other, Some(&format!("{key}x"))).await;
        assert!(crate::entries::complete(&client, &first, owner).await);
        assert_eq!(crate::entries::due_ids(&client).await, [second]);
    }
}

/// A copy with something wrong about it takes nothing away from the message.
#[tokio::test]
async fn a_copy_that_is_refused_leaves_the_message_as_it_is() {
    let (_database, client) = inbox().await;
    let refuse = "SELECT inbox.refuse('payments', 'm', 'x', 'no key')";
    let owner = claimed(&client, "m", None).await;
    let said: String = ask(&client, refuse, &[]).await[0].get(0);
    assert_eq!(said, "processing");
    assert!(crate::entries::complete(&client, "m", owner).await);
    let said: String = ask(&client, refuse, &[]).await[0].get(0);
    assert_eq!(said, "done");
    let refused = "SELECT count(*) FROM generate_series(1, 3) AS n, LATERAL inbox.refuse( \
                   'payments', NULL, 'x', 'no id', routing_key => (n % 2)::text) AS said \
                   WHERE said = 'refused'";
    assert_eq!(
        number(&client, refused).await,
        2,
        "copies are one entry, others are not"
    );
}
