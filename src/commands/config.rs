//! `outbox-relay config`: every key with its effective value and origin, secrets masked, and what
//! the addresses come to.

use std::io::Write;

use clap::Args;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde_json::{Value, json};

use super::Exit;
use crate::config::{BrokerAccess, Config, DatabaseAccess, Effective, Loaded, Origin, TargetError};

/// Of the `--json` output; raised when a field changes its meaning or goes.
const JSON_VERSION: u32 = 1;

/// Show the effective configuration and where each value came from; secrets are masked.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  outbox-relay config
  outbox-relay --config ./relay.toml config --json
  OUTBOX_RELAY__RELAY__BATCH_SIZE=100 outbox-relay config

Exit codes: 0 the configuration is sound; 78 it is not (all faults are told).")]
pub struct Arguments {
    /// For scripts
    #[arg(long)]
    json: bool,
}

/// Prints the configuration.
///
/// # Errors
/// When `out` cannot be written to.
pub fn run(
    arguments: &Arguments,
    loaded: &Loaded,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<Exit> {
    let servers = Servers::of(&loaded.config);
    let text = if arguments.json {
        let object = object(loaded, &servers);
        serde_json::to_string_pretty(&object)?
    } else {
        table(loaded, &servers)
    };
    writeln!(out, "{text}")?;
    Ok(Exit::Done)
}

/// What the two address sections come to, or why they come to nothing.
struct Servers {
    database: Result<DatabaseAccess, TargetError>,
    broker: Result<BrokerAccess, TargetError>,
}

impl Servers {
    fn of(config: &Config) -> Self {
        Self {
            database: config.database_target().resolve(),
            broker: config.broker_target().resolve(),
        }
    }

    fn postgresql(&self) -> String {
        match &self.database {
            Err(error) => format!("not usable: {error}"),
            Ok(access) => {
                let endpoints: Vec<_> = access.endpoints.iter().map(ToString::to_string).collect();
                let all_local = access.endpoints.iter().all(|e| e.host.is_local());
                let user = access.user.as_deref().unwrap_or("(operating system user)");
                let dbname = access.dbname.as_deref().unwrap_or(user);
                format!(
                    "{}; database {dbname}, user {user}; sslmode {}{}",
                    endpoints.join(", "),
                    access.sslmode.word(),
                    if all_local { ", on this machine" } else { "" },
                )
            }
        }
    }

    fn rabbitmq(&self) -> String {
        match &self.broker {
            Err(error) => format!("not usable: {error}"),
            Ok(access) => {
                let endpoints: Vec<_> = access
                    .endpoints
                    .iter()
                    .map(|endpoint| match &endpoint.tls {
                        Some(tls) => format!("{endpoint} by TLS as {}", tls.server_name),
                        None => format!("{endpoint} in plain text"),
                    })
                    .collect();
                endpoints.join(", ")
            }
        }
    }

    fn warnings(&self) -> Vec<String> {
        let database = self.database.iter().flat_map(DatabaseAccess::weaknesses);
        let broker = self.broker.iter().flat_map(BrokerAccess::weaknesses);
        database.chain(broker).collect()
    }
}

fn table(loaded: &Loaded, servers: &Servers) -> String {
    let mut text = match &loaded.file {
        Some(path) => format!("File: {}\n", path.display()),
        None => "File: none\n".to_owned(),
    };
    let mut section = "";
    let mut table = Table::new();
    table.load_style(NOTHING);
    for line in &loaded.effective {
        let (its, name) = line.key.split_once('.').unwrap_or(("", line.key));
        if its != section {
            section = its;
            table.add_row([format!("\n[{its}]")]);
        }
        let origin = line.value.as_ref().map(|_| line.origin.to_string());
        table.add_row([name.to_owned(), shown(line), origin.unwrap_or_default()]);
    }
    for line in table.lines() {
        text.push_str(line.trim_end().strip_prefix(' ').unwrap_or_default());
        text.push('\n');
    }
    text.push_str(&format!(
        "\nPostgreSQL: {}\nRabbitMQ: {}",
        servers.postgresql(),
        servers.rabbitmq()
    ));
    for warning in servers.warnings() {
        text.push_str(&format!("\nWarning: {warning}"));
    }
    text
}

fn shown(line: &Effective) -> String {
    match &line.value {
        None => "-".to_owned(),
        Some(empty) if empty.is_empty() => "(empty)".to_owned(),
        Some(value) => value.clone(),
    }
}

fn object(loaded: &Loaded, servers: &Servers) -> Value {
    let settings: Vec<Value> = loaded
        .effective
        .iter()
        .map(|line| {
            let place = (line.origin != Origin::Default).then(|| line.origin.to_string());
            json!({
                "key": line.key,
                "value": line.value,
                "secret": line.secret,
                "origin": { "kind": line.origin.kind(), "place": place },
            })
        })
        .collect();
    json!({
        "version": JSON_VERSION,
        "file": loaded.file,
        "settings": settings,
        "postgresql": servers.postgresql(),
        "rabbitmq": servers.rabbitmq(),
        "warnings": servers.warnings(),
    })
}
