//! The binary: arguments, configuration, telemetry, runtime, command, exit code; nothing else.

use std::io;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use outbox_relay::commands::{Arguments, Exit, Start};
use outbox_relay::ops::Telemetry;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let exit = run(arguments).unwrap_or_else(|error| {
        // Whoever reads our output has seen enough of it, as `head` has.
        if is_broken_pipe(&error) {
            return Exit::Done;
        }
        eprintln!("outbox-relay: {error:#}");
        Exit::from(&error)
    });
    exit.into()
}

fn run(arguments: Arguments) -> anyhow::Result<Exit> {
    let sources = arguments.sources();
    let loaded = arguments.load(&sources)?;
    let telemetry = Telemetry::install(&loaded.config.log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("outbox-relay")
        .build()
        .context("cannot start the runtime")?;
    let start = Start {
        sources,
        loaded,
        telemetry,
        out: &mut io::stdout(),
        err: &mut io::stderr(),
    };
    runtime.block_on(arguments.command.execute(start))
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|io| io.kind() == io::ErrorKind::BrokenPipe)
}
