//! `outbox-relay check`: looks at both servers and tells what would keep rows from being sent.
//!
//! Facts come from `store::postgres::facts`, the schema's catalog and the broker; judging them is
//! pure (`server`, `outbox`, `broker`). Changes nothing. One message is published, to no queue at all, to
//! see that the broker takes and confirms.

mod broker;
mod database;
mod finding;
mod hindrances;
mod outbox;
mod own;
mod queues;
mod report;
mod server;

use std::io::Write;

use clap::Args;

use super::exit::Exit;
use super::servers;
use crate::config::Config;
use finding::{Finding, State};

/// Look at both servers and tell what would keep rows from being sent.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outbox-relay check
  outbox-relay check --queue billing.0 --queue billing.1
  outbox-relay check --json | jq '.checks[] | select(.state != \"ok\")'

Changes nothing. One message that no queue is meant to get is published to the default exchange,
to see that the broker takes and confirms.

Exit codes: 0 nothing failed (there may be warnings); 1 something failed; 75 a server could not
be reached, and nothing else failed; 78 configuration.")]
pub struct Arguments {
    /// Also look at a queue that consumers read: does it drop what comes back too often? May be
    /// repeated. The broker logs each look as a refused declaration
    #[arg(long, value_name = "NAME")]
    queue: Vec<String>,
    /// For scripts
    #[arg(long)]
    json: bool,
}

/// Looks, prints what was found, and tells by the exit code.
///
/// # Errors
/// When `out` cannot be written to, or a name in the configuration cannot be used.
pub async fn run(
    arguments: &Arguments,
    config: &Config,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<Exit> {
    let store = servers::store(config)?;
    let (database, broker) = tokio::join!(database::look(&store, config), broker::look(config));
    let mut findings = database.findings;
    findings.extend(broker.findings);
    if let (Some(destinations), Some(link)) = (&database.destinations, &broker.link) {
        findings.extend(broker::exchanges(link, destinations, &config.relay).await);
    }
    if let Some(link) = &broker.link {
        findings.extend(queues::look(link, &arguments.queue).await);
    }
    broker::leave(broker.link).await;
    let text = if arguments.json {
        report::json(&findings)?
    } else {
        report::text(&findings)
    };
    writeln!(out, "{text}")?;
    Ok(exit(&findings))
}

/// What can be mended comes before what may be waited for.
fn exit(findings: &[Finding]) -> Exit {
    let any = |state| findings.iter().any(|finding| finding.state == state);
    if any(State::Failed) {
        Exit::Failed
    } else if any(State::Unreachable) {
        Exit::Unreachable
    } else {
        Exit::Done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_that_of_what_can_be_mended() {
        let ok = Finding::ok("a", "");
        let warning = Finding::warning("b", "", "");
        let failed = Finding::failed("c", "", "");
        let unreachable = Finding {
            state: State::Unreachable,
            ..ok.clone()
        };
        assert_eq!(exit(&[ok.clone(), warning.clone()]), Exit::Done);
        assert_eq!(exit(&[warning, unreachable.clone()]), Exit::Unreachable);
        assert_eq!(exit(&[unreachable, failed, ok]), Exit::Failed);
    }
}
