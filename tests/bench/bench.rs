//! `make bench`: the relay's figures for its developers, on private servers.
//!
//! Each measure stands in a module of its own. What is compared takes turns, because machines are
//! noisy; medians and their ratios are told. A measurement: nothing is asserted but that
//! everything arrived. `--help` lists the measures and how to scale them.

#[path = "../support/mod.rs"]
mod support;

mod cost;
mod figure;
mod hot_key;
mod idle;
mod inside;
mod memory;
mod poll;
mod replicas;
mod report;
mod restart;
mod stage;
mod take_over;
mod tax;
mod timeline;
mod twin;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use figure::Figure;

/// How much is measured.
pub struct Scale {
    /// Rows of a table that has a past, or that waits.
    pub rows: i64,
    /// Runs of each kind.
    pub rounds: usize,
    /// How long a run takes that could go on for ever, and a lease.
    pub span: Duration,
}

/// The relay's figures, on private servers.
#[derive(Parser)]
struct Arguments {
    /// Measures to take; all if none is named
    measures: Vec<Measure>,
    /// Rows of a table that has a past, or that waits
    #[arg(long, env = "BENCH_ROWS", default_value_t = 200_000, value_parser = clap::value_parser!(i64).range(1_000..))]
    rows: i64,
    /// Runs of each kind; the median is told
    #[arg(long, env = "BENCH_ROUNDS", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Seconds of a run that could go on for ever, and of a lease
    #[arg(long, env = "BENCH_SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Write everything, each run included, to this file
    #[arg(long, env = "BENCH_JSON", value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What can be measured.
#[derive(Clone, Copy, ValueEnum)]
enum Measure {
    /// The outbox's price for the application's inserts
    InsertTax,
    /// Polls of a table with a past, pinned, with a backlog
    Poll,
    /// Rows of one ordering key
    HotKey,
    /// How long rows wait when a replica is killed
    TakeOver,
    /// The most memory a relay takes
    Memory,
    /// A relay that is started with a backlog
    Restart,
    /// Two and four relays beside one
    Replicas,
    /// Write-ahead log, dead tuples and statements of a message
    Cost,
    /// A relay that has nothing to do, its start, and its program's size
    Idle,
}

impl Measure {
    async fn take(self, scale: &Scale) -> Vec<Figure> {
        match self {
            Self::InsertTax => tax::measure(scale).await,
            Self::Poll => poll::measure(scale).await,
            Self::HotKey => hot_key::measure(scale).await,
            Self::TakeOver => take_over::measure(scale).await,
            Self::Memory => memory::measure(scale).await,
            Self::Restart => restart::measure(scale).await,
            Self::Replicas => replicas::measure(scale).await,
            Self::Cost => cost::measure(scale).await,
            Self::Idle => idle::measure(scale).await,
        }
    }
}

fn main() {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(run(&arguments));
}

async fn run(arguments: &Arguments) {
    let scale = Scale {
        rows: arguments.rows,
        rounds: arguments.rounds.into(),
        span: Duration::from_secs(arguments.seconds),
    };
    let measures = match &arguments.measures[..] {
        [] => Measure::value_variants(),
        chosen => chosen,
    };
    let mut figures = Vec::new();
    for measure in measures {
        figures.extend(Box::pin(measure.take(&scale)).await);
    }
    println!("\n{}\n\n{}", report::machine(), report::table(&figures));
    if let Some(path) = &arguments.json {
        let json = report::json(&figures, &scale);
        let written = std::fs::write(path, format!("{json:#}\n"));
        written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest of everything: that it measures, not what.
    #[tokio::test]
    async fn a_measure_brings_figures_with_their_runs() {
        let scale = Scale {
            rows: 1_000,
            rounds: 1,
            span: Duration::from_secs(1),
        };
        let figures = poll::measure(&scale).await;
        let json = report::json(&figures, &scale);
        let figures = json["figures"].as_array().expect("a list");
        assert_eq!(figures.len(), 3);
        for figure in figures {
            for runs in ["runs", "beside_runs"] {
                let runs = figure[runs].as_array().expect("a list");
                assert_eq!(runs.len(), 1, "{figure}");
                assert!(runs.iter().all(|run| run.as_f64() > Some(0.0)), "{figure}");
            }
        }
    }
}
