//! `outbox-relay topology --print`: RabbitMQ definitions for consuming a stream in parallel, each
//! key in order.
//!
//! A consistent-hash exchange spreads keys over N quorum queues, each with a single active consumer
//! (RabbitMQ manual, "Consistent Hashing Exchange", "Single Active Consumer"). A quorum queue with
//! a delivery limit drops what comes back too often unless it has a dead-letter exchange, so there
//! is one, with a queue that keeps everything.

use std::io::{self, Write};

use clap::Args;
use serde_json::{Value, json};

use super::exit::Exit;

/// Print RabbitMQ definitions for partitioned consumption
///
/// Import them with `rabbitmqctl import_definitions FILE` or over the management API. The plugin
/// rabbitmq_consistent_hash_exchange must be enabled.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  outbox-relay topology --print --name billing --partitions 8 > billing.json
  outbox-relay topology --print --name billing --source orders --binding 'order.#'

Changing the number of queues later moves keys between queues: stop publishing, let the queues
drain, then import the new definitions.")]
pub struct Arguments {
    /// Print the definitions
    #[arg(long, required = true)]
    print: bool,
    /// What the exchange is called; queues are NAME.0, NAME.1 …
    #[arg(long, default_value = "outbox", value_parser = name)]
    name: String,
    /// How many queues
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    partitions: u16,
    /// Exchange to take messages from; without it, publish to NAME itself
    #[arg(long, value_name = "EXCHANGE", value_parser = name)]
    source: Option<String>,
    /// Routing key of the binding to the source
    #[arg(long, value_name = "KEY", default_value = "#")]
    binding: String,
    /// Returns to a queue before a message is dead-lettered
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    delivery_limit: u16,
    /// Virtual host
    #[arg(long, default_value = "/")]
    vhost: String,
}

/// Names stay well below AMQP's 255 bytes, so that the derived ones fit, too.
fn name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 200 || text.starts_with("amq.") {
        return Err("expected 1 to 200 bytes that do not begin with amq.".to_owned());
    }
    Ok(text.to_owned())
}

/// Prints.
///
/// # Errors
/// Only if `out` cannot be written to.
pub fn run(arguments: &Arguments, out: &mut (dyn Write + Send)) -> io::Result<Exit> {
    let definitions = serde_json::to_string_pretty(&definitions(arguments))?;
    writeln!(out, "{definitions}")?;
    Ok(Exit::Done)
}

fn definitions(arguments: &Arguments) -> Value {
    let name = &arguments.name;
    let dead = format!("{name}.dead");
    let vhost = Vhost(&arguments.vhost);
    let names = (0..arguments.partitions).map(|number| format!("{name}.{number}"));
    let names: Vec<_> = names.collect();
    let partition = json!({
        "x-queue-type": "quorum",
        "x-single-active-consumer": true,
        "x-delivery-limit": arguments.delivery_limit,
        "x-dead-letter-exchange": dead,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    });
    let partitions = names.iter().map(|one| vhost.queue(one, &partition));
    let mut queues: Vec<_> = partitions.collect();
    queues.push(vhost.queue(&dead, &json!({ "x-queue-type": "quorum" })));
    // The binding's key is a weight: the same for all.
    let bound = names
        .iter()
        .map(|one| vhost.binding(name, one, "queue", "1"));
    let mut bindings: Vec<_> = bound.collect();
    bindings.push(vhost.binding(&dead, &dead, "queue", ""));
    if let Some(source) = &arguments.source {
        bindings.push(vhost.binding(source, name, "exchange", &arguments.binding));
    }
    let by_key = json!({ "hash-header": "x-outbox-key" });
    json!({
        "exchanges": [
            vhost.exchange(name, "x-consistent-hash", &by_key),
            vhost.exchange(&dead, "fanout", &json!({})),
        ],
        "queues": queues,
        "bindings": bindings,
    })
}

/// Where everything is.
struct Vhost<'a>(&'a str);

impl Vhost<'_> {
    fn exchange(&self, name: &str, kind: &str, arguments: &Value) -> Value {
        json!({
            "name": name, "vhost": self.0, "type": kind, "durable": true, "auto_delete": false,
            "internal": false, "arguments": arguments,
        })
    }

    fn queue(&self, name: &str, arguments: &Value) -> Value {
        json!({
            "name": name, "vhost": self.0, "durable": true, "auto_delete": false,
            "arguments": arguments,
        })
    }

    fn binding(&self, source: &str, destination: &str, kind: &str, key: &str) -> Value {
        json!({
            "source": source, "vhost": self.0, "destination": destination,
            "destination_type": kind, "routing_key": key, "arguments": {},
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments() -> Arguments {
        Arguments {
            print: true,
            name: "billing".to_owned(),
            partitions: 3,
            source: Some("orders".to_owned()),
            binding: "order.#".to_owned(),
            delivery_limit: 20,
            vhost: "/".to_owned(),
        }
    }

    #[test]
    fn every_queue_is_bound_with_the_same_weight_and_none_drops_silently() {
        let definitions = definitions(&arguments());
        let queues = definitions["queues"].as_array().expect("queues");
        assert_eq!(queues.len(), 4);
        for queue in &queues[..3] {
            let arguments = &queue["arguments"];
            assert_eq!(arguments["x-queue-type"], "quorum");
            assert_eq!(arguments["x-single-active-consumer"], true);
            assert_eq!(arguments["x-delivery-limit"], 20);
            assert_eq!(arguments["x-dead-letter-exchange"], "billing.dead");
        }
        let bindings = definitions["bindings"].as_array().expect("bindings");
        let weights: Vec<_> = bindings
            .iter()
            .filter(|one| one["source"] == "billing")
            .map(|one| &one["routing_key"])
            .collect();
        assert_eq!(weights, ["1", "1", "1"]);
        let header = &definitions["exchanges"][0]["arguments"]["hash-header"];
        assert_eq!(header, "x-outbox-key");
    }

    #[test]
    fn names_that_rabbitmq_keeps_for_itself_are_refused() {
        assert!(name("amq.direct").is_err() && name("").is_err());
        assert_eq!(name("billing"), Ok("billing".to_owned()));
    }
}
