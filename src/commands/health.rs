//! `outbox-relay health`: asks the running relay over its HTTP address, with a deadline.
//!
//! For container images without a shell. Answers by exit code: 0 well, 1 not well or no answer.

use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Exit;
use crate::config::Config;

/// More than any probe answers.
const LONGEST_ANSWER: u64 = 64 * 1024;

/// Ask the running relay how it is doing, for container probes.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outbox-relay health                    liveness, for HEALTHCHECK and liveness probes
  outbox-relay health --ready            readiness: do due rows make progress?
  outbox-relay health --timeout 500ms

Exit codes: 0 well; 1 not well, or no answer in time.")]
pub struct Arguments {
    /// Ask whether the process can still make progress; an outage of a server never fails it
    /// (default)
    #[arg(long, conflicts_with = "ready")]
    live: bool,
    /// Ask whether due rows make progress
    #[arg(long)]
    ready: bool,
    /// How long to wait for the answer
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = crate::config::parse_duration)]
    timeout: Duration,
    /// For scripts: also where nobody answers
    #[arg(long)]
    json: bool,
}

/// Of the JSON output; raised when a field changes its meaning or goes.
const VERSION: u32 = 1;

/// Asks, prints the answer, and tells by the exit code.
///
/// # Errors
/// When nobody answers in time at `http.listen`, or not in HTTP.
pub async fn run(
    arguments: &Arguments,
    config: &Config,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<Exit> {
    let path = if arguments.ready { "/readyz" } else { "/livez" };
    let address = reachable(config.http.listen);
    let asked = tokio::time::timeout(arguments.timeout, ask(address, path))
        .await
        .unwrap_or_else(|_| bail!("no answer within {} ms", arguments.timeout.as_millis()))
        .with_context(|| format!("the relay at http://{address}{path} (http.listen)"));
    let well = asked.as_ref().is_ok_and(|answer| answer.status == 200);
    if arguments.json {
        writeln!(out, "{:#}", object(well, &asked))?;
    } else {
        write!(out, "{}", asked?.body)?;
    }
    Ok(if well { Exit::Done } else { Exit::Failed })
}

/// `{"version": 1, "well": …, "answer": what the relay said, "error": why there is no answer}`.
fn object(well: bool, asked: &anyhow::Result<Answer>) -> Value {
    let (answer, error) = match asked {
        Ok(answer) => (serde_json::from_str::<Value>(&answer.body).ok(), None),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    json!({
        "version": VERSION,
        "well": well,
        "answer": answer,
        "error": error,
    })
}

struct Answer {
    status: u16,
    body: String,
}

/// A server that listens everywhere is asked on loopback.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let mut address = listen;
    if address.ip().is_unspecified() {
        match address {
            SocketAddr::V4(_) => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            SocketAddr::V6(_) => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        }
    }
    address
}

/// One request of HTTP/1.0, which needs no more of HTTP than this: the answer ends with the
/// connection and is never chunked (RFC 1945).
async fn ask(address: SocketAddr, path: &str) -> anyhow::Result<Answer> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream
        .take(LONGEST_ANSWER)
        .read_to_string(&mut answer)
        .await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("not HTTP")?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok(Answer {
        status: status.context("not HTTP")?,
        body: body.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::ops::{HttpServer, Site};
    use crate::runtime::condition::{Broker, Database};
    use crate::runtime::{Backlog, Clock, Health};

    fn arguments(ready: bool) -> Arguments {
        Arguments {
            live: !ready,
            ready,
            timeout: Duration::from_millis(500),
            json: false,
        }
    }

    async fn object_of(ready: bool, config: &Config) -> (Exit, Value) {
        let arguments = Arguments {
            json: true,
            ..arguments(ready)
        };
        let mut out = Vec::new();
        let exit = run(&arguments, config, &mut out).await.unwrap();
        (exit, serde_json::from_slice(&out).unwrap())
    }

    async fn asked(ready: bool, config: &Config) -> anyhow::Result<(Exit, String)> {
        let mut out = Vec::new();
        let exit = run(&arguments(ready), config, &mut out).await?;
        Ok((exit, String::from_utf8(out)?))
    }

    fn config(listen: SocketAddr) -> Config {
        let mut config = Config::default();
        config.http.listen = listen;
        config
    }

    #[tokio::test]
    async fn the_exit_code_is_the_relays_answer() {
        let health = Health::starting(Clock.now());
        let server = HttpServer::bind((Ipv4Addr::UNSPECIFIED, 0).into())
            .await
            .unwrap();
        let config = config(server.address().unwrap());
        let site = Arc::new(Site::new(health.clone(), Clock));
        tokio::spawn(server.serve(site, CancellationToken::new()));
        let (exit, said) = asked(false, &config).await.unwrap();
        assert_eq!((exit, said.as_str()), (Exit::Done, "{\"live\":true}\n"));
        let (exit, said) = asked(true, &config).await.unwrap();
        assert_eq!(exit, Exit::Failed);
        assert!(said.contains("\"ready\":false"), "{said}");
        health.database(Database::Connected);
        health.broker(Broker::Connected);
        health.backlog(Backlog::Nothing, Clock.now());
        assert_eq!(asked(true, &config).await.unwrap().0, Exit::Done);
        let (exit, object) = object_of(true, &config).await;
        assert_eq!((exit, &object["well"]), (Exit::Done, &true.into()));
        assert_eq!(object["answer"]["ready"], true);
    }

    #[tokio::test]
    async fn nobody_listening_is_told_with_the_address() {
        let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let error = asked(false, &config(address)).await.unwrap_err();
        let told = format!(
            "the relay at http://{address}/livez (http.listen): Connection refused (os error 111)"
        );
        assert_eq!(format!("{error:#}"), told);
        let (exit, object) = object_of(false, &config(address)).await;
        assert_eq!(exit, Exit::Failed);
        assert_eq!(
            object,
            json!({ "version": 1, "well": false, "answer": null, "error": told })
        );
    }

    #[tokio::test]
    async fn a_listener_that_says_nothing_is_given_up() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = silent.local_addr().unwrap();
        let error = asked(true, &config(address)).await.unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            format!("the relay at http://{address}/readyz (http.listen): no answer within 500 ms")
        );
    }
}
