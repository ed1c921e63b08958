//! The guide's autoscaling: what it asks for is there, and it fits the topology beside it.

use std::time::Duration;

use outbox_relay::inbox::{Metrics, Observer};
use prometheus_client::registry::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use yaml_rust2::{Yaml, YamlLoader};

use crate::support::PATIENCE;
use crate::support::ports::Port;
use crate::topology::{Publisher, billing};

const GUIDE: &str = include_str!("../../docs/consuming.md");

/// The guide's manifest.
fn scaled() -> Yaml {
    let block = GUIDE.split("```yaml\n").nth(1).expect("a manifest");
    let block = block.split("```").next().expect("its end");
    let mut documents = YamlLoader::load_from_str(block).expect("YAML");
    documents.remove(0)
}

fn query(scaled: &Yaml) -> String {
    let trigger = &scaled["spec"]["triggers"][0];
    assert_eq!(trigger["type"].as_str(), Some("prometheus"));
    assert_eq!(trigger["metricType"].as_str(), Some("Value"));
    let threshold = trigger["metadata"]["threshold"].as_str();
    threshold
        .expect("a text, as KEDA wants it")
        .parse::<f64>()
        .expect("a number");
    let query = trigger["metadata"]["query"].as_str();
    query.expect("a query").to_owned()
}

#[test]
fn the_guide_asks_for_as_many_replicas_as_there_are_queues() {
    let scaled = scaled();
    assert_eq!(scaled["kind"].as_str(), Some("ScaledObject"));
    let command = GUIDE.lines().find(|line| line.contains("topology --print"));
    let queues = command
        .and_then(|line| line.split("--partitions ").nth(1))
        .and_then(|rest| rest.split(' ').next())
        .and_then(|number| number.parse().ok());
    assert_eq!(scaled["spec"]["maxReplicaCount"].as_i64(), queues);
    assert!(queues.is_some());
}

#[test]
fn the_guide_counts_what_consumers_count() {
    let mut registry = Registry::default();
    Metrics::register(&mut registry).completed("billing", None);
    let mut page = String::new();
    prometheus_client::encoding::text::encode(&mut page, &registry).expect("text");
    let query = query(&scaled());
    let counter = "outbox_inbox_completed_total{consumer=\"billing\"";
    assert!(query.contains(counter), "{query}");
    assert!(page.contains(counter), "{page}");
}

async fn page(port: u16, path: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)).await else {
        return String::new();
    };
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("asked");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Quorum queues report it, one line for each of the topology's; the dead letters' queue is none
/// of them.
#[tokio::test(flavor = "multi_thread")]
async fn the_guide_asks_the_broker_for_what_it_tells_of_quorum_queues() {
    let query = query(&scaled());
    let asked = "rabbitmq_detailed_queue_messages{queue=~\"billing[.][0-9]+\"}";
    assert!(query.contains(asked), "{query}");
    let family = "/metrics/detailed?family=queue_coarse_metrics";
    assert!(GUIDE.contains(family));
    let (rabbit, port) = (billing().await, Port::take());
    let number = port.number();
    let enabled = format!(
        "application:load(rabbitmq_prometheus), \
         application:set_env(rabbitmq_prometheus, tcp_config, \
           [{{port, {number}}}, {{ip, \"127.0.0.1\"}}]), \
         {{ok, File}} = application:get_env(rabbit, enabled_plugins_file), \
         ok = file:write_file(File, \
           <<\"[rabbitmq_consistent_hash_exchange, rabbitmq_prometheus].\">>), \
         rabbit_plugins:ensure(File)"
    );
    rabbit.eval(&enabled).await;
    let publisher = Publisher::connect(&rabbit.url()).await;
    for message in 0..10 {
        publisher
            .publish(&format!("m{message}"), &format!("k{message}"))
            .await;
    }
    // Queues report every few seconds.
    let mut last = String::new();
    let counted = async {
        loop {
            last = page(number, family).await;
            let waiting = |line: &&str| {
                line.starts_with("rabbitmq_detailed_queue_messages{")
                    && line.contains("queue=\"billing.")
                    && !line.contains("billing.dead")
            };
            let values = last.lines().filter(waiting);
            let values = values.filter_map(|line| line.rsplit(' ').next()?.parse::<u32>().ok());
            if values.sum::<u32>() == 10 {
                return;
            }
            // The broker renews these figures at its own interval.
            sleep(Duration::from_millis(200)).await;
        }
    };
    let told = timeout(PATIENCE, counted).await.is_ok();
    assert!(told, "{last}");
}
