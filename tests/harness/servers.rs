//! Private servers start, break, come back and leave nothing behind.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{BasicGetOptions, BasicPublishOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Connection, ConnectionProperties};
use rustix::process::Pid;
use tokio::time::{sleep, timeout};

use crate::support::PATIENCE;
use crate::support::postgres::{self, Postgres};
use crate::support::process::Family;
use crate::support::rabbit::{self, Rabbit};

async fn broker(url: &str) -> Connection {
    let connecting = Connection::connect(url, ConnectionProperties::default());
    timeout(PATIENCE, connecting)
        .await
        .expect("in time")
        .expect("the broker accepts")
}

#[tokio::test]
async fn every_test_has_a_database_of_its_own() {
    let (one, two) = (postgres::database().await, postgres::database().await);
    let client = one.connect().await;
    client
        .batch_execute("CREATE TABLE t (x int)")
        .await
        .unwrap();
    let other = two.connect().await;
    assert!(other.batch_execute("SELECT * FROM t").await.is_err());
}

#[tokio::test]
async fn a_killed_postgres_comes_back_with_what_was_committed() {
    let mut server = Postgres::start().await;
    let database = server.create_database().await;
    let client = database.connect().await;
    client
        .batch_execute("CREATE TABLE t (x int); INSERT INTO t VALUES (7)")
        .await
        .unwrap();
    server.kill();
    assert!(client.query_one("SELECT x FROM t", &[]).await.is_err());
    server.start_again().await;
    let row = database
        .connect()
        .await
        .query_one("SELECT x FROM t", &[])
        .await
        .unwrap();
    assert_eq!(row.get::<_, i32>(0), 7);
    server.restart().await;
    database.connect().await;
}

#[tokio::test]
async fn a_paused_postgres_says_nothing_until_it_is_resumed() {
    let server = Postgres::start().await;
    let client = server.create_database().await.connect().await;
    server.pause();
    let asked = client.query_one("SELECT 1", &[]);
    tokio::pin!(asked);
    assert!(
        timeout(Duration::from_millis(300), &mut asked)
            .await
            .is_err()
    );
    server.resume();
    timeout(PATIENCE, asked).await.expect("in time").unwrap();
}

#[tokio::test]
async fn every_test_has_a_virtual_host_of_its_own() {
    let (one, two) = (rabbit::vhost().await, rabbit::vhost().await);
    for vhost in [&one, &two] {
        let channel = broker(&vhost.url).await.create_channel().await.unwrap();
        let options = QueueDeclareOptions {
            exclusive: true,
            ..QueueDeclareOptions::default()
        };
        // Exclusive: in one virtual host the second declaration would be refused.
        channel
            .queue_declare(rabbit::unique("q").into(), options, FieldTable::default())
            .await
            .unwrap();
    }
    // A broker given from outside has one virtual host for all; names keep tests apart there.
    if std::env::var_os("OUTBOX_RELAY_TEST_BROKER_URL").is_none() {
        assert_ne!(one.name, two.name);
    }
}

#[tokio::test]
async fn a_killed_broker_comes_back_with_its_durable_messages() {
    let mut server = Rabbit::start().await;
    let vhost = server.create_vhost().await;
    let channel = broker(&vhost.url).await.create_channel().await.unwrap();
    channel
        .confirm_select(lapin::options::ConfirmSelectOptions::default())
        .await
        .unwrap();
    let durable = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    channel
        .queue_declare("q".into(), durable, FieldTable::default())
        .await
        .unwrap();
    let properties = BasicProperties::default().with_delivery_mode(2);
    let confirm = channel
        .basic_publish(
            "".into(),
            "q".into(),
            BasicPublishOptions::default(),
            b"hello",
            properties,
        )
        .await
        .unwrap();
    confirm.await.unwrap();
    // RabbitMQ flushes the definition of a queue by and by; that it does not is not looked at here.
    server.remember_queues().await;
    server.kill();
    server.start_again().await;
    let channel = broker(&vhost.url).await.create_channel().await.unwrap();
    let message = channel
        .basic_get("q".into(), BasicGetOptions::default())
        .await
        .unwrap();
    assert_eq!(message.expect("it is still there").delivery.data, b"hello");
}

#[tokio::test]
async fn a_broker_obeys_its_administrator() {
    let server = Rabbit::start().await;
    let connection = broker(&server.url()).await;
    assert_eq!(server.connections().await, 1);
    server.raise_memory_alarm().await;
    let alarms = server.eval("rabbit_alarm:get_alarms()").await;
    assert!(alarms.contains("memory"), "{alarms}");
    server.clear_memory_alarm().await;
    assert_eq!(server.eval("rabbit_alarm:get_alarms()").await, "[]");
    let mut events = connection.events_listener();
    server.close_all_connections().await;
    let closed = async {
        while connection.status().connected() {
            events.next().await;
        }
    };
    timeout(PATIENCE, closed).await.expect("the client notices");
    server.add_user("reader", "secret").await;
    server
        .set_permissions("reader", "/", ["^$", "^$", ".*"])
        .await;
    server.change_password("reader", "other").await;
    let users = server.ctl(&["list_permissions"]).await;
    assert!(users.contains("reader"), "{users}");
    broker(&format!(
        "amqp://reader:other@127.0.0.1:{}/%2f",
        server.port()
    ))
    .await;
}

#[tokio::test]
async fn a_dropped_server_leaves_no_process_and_no_folder() {
    let (postgres, rabbit) = (Postgres::start().await, Rabbit::start().await);
    let client = postgres.create_database().await.connect().await;
    let folder = postgres.socket_folder();
    let families = [Family::of(postgres.pid()), Family::of(rabbit.pid())];
    for family in &families {
        assert!(family.pids().len() > 3, "a server and its children");
    }
    drop((postgres, rabbit));
    for family in &families {
        family.await_end();
    }
    assert!(!Path::new(&folder).exists());
    assert!(client.simple_query("SELECT 1").await.is_err());
}

/// What a test binary that is killed leaves behind is seen from outside: this test starts
/// itself again as that binary.
#[tokio::test]
async fn nothing_outlives_a_killed_test_process() {
    if std::env::var_os("OUTBOX_RELAY_TEST_VICTIM").is_some() {
        let (postgres, rabbit) = (Postgres::start().await, Rabbit::start().await);
        postgres.pause();
        let (folder, pids) = (postgres.socket_folder(), [postgres.pid(), rabbit.pid()]);
        println!("victim {} {} {}", folder.display(), pids[0], pids[1]);
        std::future::pending::<()>().await;
    }
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg("servers::nothing_outlives_a_killed_test_process")
        .env("OUTBOX_RELAY_TEST_VICTIM", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let said = lines
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("victim ").map(str::to_owned))
        .expect("the victim starts its servers");
    let said: Vec<&str> = said.split(' ').collect();
    let families: Vec<Family> = said[1..]
        .iter()
        .map(|pid| Family::of(Pid::from_raw(pid.parse().unwrap()).unwrap()))
        .collect();
    victim.kill().unwrap();
    victim.wait().unwrap();
    for family in &families {
        assert!(family.pids().len() > 3, "a server and its children");
        family.await_end();
    }
    let gone = async {
        while Path::new(said[0]).exists() {
            // A folder is removed by another process, which has no other word for it.
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, gone)
        .await
        .expect("its folder is removed");
}
