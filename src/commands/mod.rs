//! The command line: global flags, one file per command, and the exit codes.
//!
//! Commands are thin: arguments in, exit code out.

mod act;
pub mod bench;
mod calendar;
mod check;
pub mod completions;
pub mod config;
mod counted;
pub mod exit;
pub mod explain;
pub mod grants;
pub mod health;
pub mod inbox;
pub mod migrate;
mod output;
pub mod pause;
mod plain;
pub mod quarantine;
mod reload;
pub mod resend;
pub mod run;
mod servers;
pub mod status;
pub mod topology;
mod until_empty;

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::config::{Assignment, Faults, Loaded, Needs, Origin, Sources};
use crate::ops::Telemetry;

pub use exit::Exit;
pub use output::Output;

const AFTER_HELP: &str = "\
Examples:
  DATABASE_URL=postgres://relay@db/shop AMQP_URL=amqps://relay@mq outbox-relay config
  outbox-relay --config /etc/outbox-relay/outbox-relay.toml config
  outbox-relay --set relay.batch_size=100 --log-level debug config
  outbox-relay health --ready

Settings are taken from flags, variables (OUTBOX_RELAY__SECTION__KEY), the configuration file,
DATABASE_URL and AMQP_URL, and defaults, in this order.

Exit codes: 0 done; 1 a check failed or rows were refused; 2 usage; 75 servers unreachable;
78 configuration.";

/// Publishes committed rows of a PostgreSQL outbox table to RabbitMQ, and loses none.
#[derive(Debug, Parser)]
#[command(name = "outbox-relay", version, after_help = AFTER_HELP, max_term_width = 100)]
pub struct Arguments {
    /// Flags that every command takes.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Heads them in the help, apart from a command's own.
const EVERYWHERE: &str = "Options of every command";

/// Flags that every command takes.
#[derive(Args, Debug)]
pub struct Global {
    /// Configuration file [default: $OUTBOX_RELAY_CONFIG, else
    /// /etc/outbox-relay/outbox-relay.toml if it exists]
    #[arg(long, value_name = "FILE", global = true, help_heading = EVERYWHERE)]
    config: Option<PathBuf>,
    /// Set one key, for instance relay.batch_size=100; may be repeated. Not for secrets
    #[arg(long, value_name = "SECTION.KEY=VALUE", global = true, help_heading = EVERYWHERE)]
    set: Vec<String>,
    /// Set log.level: off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", global = true, help_heading = EVERYWHERE)]
    log_level: Option<String>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Publish committed rows until told to stop
    Run(run::Arguments),
    /// Look at both servers and tell what would keep rows from being sent
    Check(check::Arguments),
    /// Show what is in the outbox, who works on it, and what is in the way
    Status(status::Arguments),
    /// List, show, replay or discard the rows that were given up
    Quarantine(quarantine::Arguments),
    /// Look after the consumer half: entries, dead messages, replays
    Inbox(inbox::Arguments),
    /// Print RabbitMQ definitions for partitioned consumption
    ///
    /// Import them with `rabbitmqctl import_definitions FILE` or over the management API. The plugin
    /// rabbitmq_consistent_hash_exchange must be enabled.
    Topology(topology::Arguments),
    /// Measure the relay beside a bare publisher, on your servers
    Bench(bench::Arguments),
    /// Tell why a row is not sent, or when it was
    Explain(explain::Arguments),
    /// Stop publishing, to one exchange or to all, on every relay
    Pause(pause::PauseArguments),
    /// Go on publishing what was paused
    Resume(pause::ResumeArguments),
    /// Publish rows again that were sent and are still kept
    Resend(resend::Arguments),
    /// Create the outbox or bring it up to date
    ///
    /// Safe to run again, by two processes at once, and while applications use the table.
    Migrate(migrate::MigrateArgs),
    /// Print the least rights of each role as SQL
    ///
    /// The roles must exist; each option may be given several times.
    Grants(grants::GrantsArgs),
    /// Ask the running relay how it is doing, for container probes
    Health(health::Arguments),
    /// Show the effective configuration and where each value came from; secrets are masked
    Config(config::Arguments),
    /// Print the script that completes commands and options in a shell
    Completions(completions::Arguments),
}

/// What a command starts with.
pub struct Start<'a> {
    /// Where the settings came from, to be read again on demand.
    pub sources: Sources,
    /// The settings.
    pub loaded: Loaded,
    /// The running log.
    pub telemetry: Telemetry,
    /// For what was asked for.
    pub out: &'a mut (dyn Write + Send),
    /// For what there is to say about it.
    pub err: &'a mut (dyn Write + Send),
}

impl Command {
    /// The servers without which the command is senseless.
    fn needs(&self) -> Needs {
        match self {
            Self::Migrate(arguments) => Needs {
                database: !arguments.print,
                broker: false,
            },
            Self::Run(_) | Self::Check(_) | Self::Bench(_) => Needs {
                database: true,
                broker: true,
            },
            Self::Status(_)
            | Self::Quarantine(_)
            | Self::Inbox(_)
            | Self::Explain(_)
            | Self::Pause(_)
            | Self::Resume(_)
            | Self::Resend(_) => Needs {
                database: true,
                broker: false,
            },
            Self::Topology(_)
            | Self::Grants(_)
            | Self::Health(_)
            | Self::Config(_)
            | Self::Completions(_) => Needs::default(),
        }
    }

    /// The settings that the command's own flags make.
    fn assignments(&self) -> Vec<Assignment> {
        match self {
            Self::Migrate(arguments) => arguments.assignments(),
            Self::Grants(arguments) => arguments.assignments(),
            Self::Run(_)
            | Self::Check(_)
            | Self::Bench(_)
            | Self::Status(_)
            | Self::Quarantine(_)
            | Self::Inbox(_)
            | Self::Topology(_)
            | Self::Explain(_)
            | Self::Pause(_)
            | Self::Resume(_)
            | Self::Resend(_)
            | Self::Health(_)
            | Self::Config(_)
            | Self::Completions(_) => Vec::new(),
        }
    }

    /// What there is to say it says itself, so that there need be no log.
    fn tells_all(&self) -> bool {
        match self {
            Self::Check(_)
            | Self::Quarantine(_)
            | Self::Explain(_)
            | Self::Pause(_)
            | Self::Resume(_)
            | Self::Resend(_)
            | Self::Inbox(_)
            | Self::Bench(_) => true,
            Self::Run(_)
            | Self::Status(_)
            | Self::Migrate(_)
            | Self::Grants(_)
            | Self::Topology(_)
            | Self::Health(_)
            | Self::Config(_)
            | Self::Completions(_) => false,
        }
    }

    /// Does it.
    ///
    /// # Errors
    /// Whatever ends the command early; [`Exit`] knows the exit code.
    pub async fn execute(self, start: Start<'_>) -> anyhow::Result<Exit> {
        if self.tells_all() {
            quiet(&start)?;
        }
        let config = &start.loaded.config;
        match self {
            Self::Run(arguments) => Box::pin(run::run(&arguments, start)).await,
            Self::Check(arguments) => Box::pin(check::run(&arguments, config, start.out)).await,
            Self::Status(arguments) => status::run(&arguments, config, start.out).await,
            Self::Quarantine(arguments) => {
                Box::pin(quarantine::run(&arguments, config, start.out, start.err)).await
            }
            Self::Inbox(arguments) => Box::pin(inbox::run(&arguments, config, start.out)).await,
            Self::Topology(arguments) => Ok(topology::run(&arguments, start.out)?),
            Self::Explain(arguments) => Box::pin(explain::run(&arguments, config, start.out)).await,
            Self::Pause(arguments) => {
                Box::pin(pause::pause(&arguments, config, start.out, start.err)).await
            }
            Self::Resume(arguments) => {
                Box::pin(pause::resume(&arguments, config, start.out, start.err)).await
            }
            Self::Resend(arguments) => {
                Box::pin(resend::run(&arguments, config, start.out, start.err)).await
            }
            Self::Migrate(arguments) => {
                Ok(migrate::migrate(&arguments, &start.sources, start.out, start.err).await?)
            }
            Self::Grants(arguments) => {
                Ok(grants::grants(&arguments, &start.sources, start.out, start.err).await?)
            }
            Self::Bench(arguments) => {
                Box::pin(bench::run(&arguments, config, start.out, start.err)).await
            }
            Self::Health(arguments) => health::run(&arguments, config, start.out).await,
            Self::Config(arguments) => config::run(&arguments, &start.loaded, start.out),
            Self::Completions(arguments) => Ok(completions::run(&arguments, start.out)?),
        }
    }
}

/// A command that tells everything itself does not log as well, unless it was asked to: the client
/// crates log at level ERROR what the command explains.
fn quiet(start: &Start<'_>) -> anyhow::Result<()> {
    let level = start
        .loaded
        .effective
        .iter()
        .find(|one| one.key == "log.level");
    if level.is_some_and(|level| level.origin == Origin::Default) {
        start.telemetry.set_level("off")?;
    }
    Ok(())
}

impl Arguments {
    /// Where the settings of this process come from. A `--set` without `=` sets nothing and is
    /// reported as the unknown key it is.
    #[must_use]
    pub fn sources(&self) -> Sources {
        let set = self.global.set.iter().map(|text| {
            let (key, value) = text.split_once('=').unwrap_or((text, ""));
            Assignment {
                flag: "--set".to_owned(),
                key: key.trim().to_owned(),
                value: value.to_owned(),
            }
        });
        let log_level = self.global.log_level.iter().map(|level| Assignment {
            flag: "--log-level".to_owned(),
            key: "log.level".to_owned(),
            value: level.clone(),
        });
        let flags = set.chain(log_level).chain(self.command.assignments());
        Sources::of_process(flags.collect(), self.global.config.clone())
    }

    /// Finds and judges the configuration, with what the command needs of it.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn load(&self, sources: &Sources) -> Result<Loaded, Faults> {
        sources.load(self.command.needs())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn global_flags_are_taken_before_and_after_the_command() {
        for line in [
            "outbox-relay --set relay.lease=5s --log-level debug config",
            "outbox-relay config --set relay.lease=5s --log-level debug",
        ] {
            let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
            let flags = arguments.sources().flags;
            let flags: Vec<_> = flags
                .iter()
                .map(|f| (f.key.as_str(), f.value.as_str()))
                .collect();
            assert_eq!(flags, [("relay.lease", "5s"), ("log.level", "debug")]);
        }
    }

    #[test]
    fn a_flag_that_sets_nothing_is_reported_without_its_value() {
        for (text, report) in [
            (
                "lease=5s",
                "--set: lease: unknown key; lease belongs into the section [relay]",
            ),
            (
                "relay.lease",
                "--set: relay.lease: \"\": not a duration: write a number and ms, s, m, h or d, such as 5s",
            ),
            (
                "relay.lose=canary",
                "--set: relay.lose: unknown key; did you mean relay.lease?",
            ),
            (
                "database.password=canary",
                "--set: database.password: a command line is visible to every user of the machine: use the environment, or the key's _file twin",
            ),
        ] {
            let line = ["outbox-relay", "config", "--set", text];
            let arguments = Arguments::try_parse_from(line).unwrap();
            let mut sources = arguments.sources();
            sources.environment.clear();
            let faults = arguments.load(&sources).unwrap_err();
            assert_eq!(faults.to_string(), format!("configuration: {report}"));
        }
    }
}
