//! `outbox-relay status`: what is in the outbox, who works on it, and what is in the way.

pub(super) mod json;
pub(super) mod text;

use std::io::Write;

use clap::Args;

use super::exit::Exit;
use super::servers;
use crate::config::Config;
use crate::store::postgres::status::status;

/// Show what is in the outbox, who works on it, and what is in the way.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outbox-relay status
  outbox-relay status --json | jq .oldest_due_age_seconds

Asks the database only; the broker need not be reachable. Counts are exact up to 10,000.

Exit codes: 0 told; 75 the database cannot be reached; 78 configuration.")]
pub struct Arguments {
    /// For scripts
    #[arg(long)]
    json: bool,
}

/// Looks and tells.
///
/// # Errors
/// When the database cannot be asked, or `out` cannot be written to.
pub async fn run(
    arguments: &Arguments,
    config: &Config,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<Exit> {
    let store = servers::store(config)?;
    let status = status(&store).await?;
    let told = if arguments.json {
        json::told(&store.outbox, &status)?
    } else {
        text::told(&store.outbox, &status, &config.quarantine.owner)
    };
    writeln!(out, "{}", told.trim_end())?;
    Ok(Exit::Done)
}

/// A relay that said nothing for three signs of life is taken for dead, or once its lease is over.
fn is_alive(instance: &crate::store::measures::Instance) -> bool {
    instance.silent_for <= instance.lease.min(crate::relay::HEARTBEAT * 3)
}
