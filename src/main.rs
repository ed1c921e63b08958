//! The binary: arguments, configuration, telemetry, runtime, command, exit code; nothing else.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use outbox_relay::commands::{Arguments, Exit, Output, Start};
use outbox_relay::ops::Telemetry;
use outbox_relay::runtime::executor;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let exit = run(arguments).unwrap_or_else(|error| {
        // Where nobody reads it there is nobody to tell.
        let _ = writeln!(io::stderr(), "outbox-relay: {error:#}");
        Exit::from(&error)
    });
    exit.into()
}

fn run(arguments: Arguments) -> anyhow::Result<Exit> {
    let sources = arguments.sources();
    let loaded = arguments.load(&sources)?;
    let telemetry = Telemetry::install(&loaded.config.log)?;
    let runtime = executor().context("cannot start the runtime")?;
    let mut out = Output::new(io::stdout());
    let start = Start {
        sources,
        loaded,
        telemetry,
        out: &mut out,
        err: &mut Output::new(io::stderr()),
    };
    let done = runtime.block_on(arguments.command.execute(start));
    // A look-up of a name may hang in the system for long; it is of no use any more.
    runtime.shutdown_background();
    out.flush().context("cannot write the output")?;
    done
}
