//! The usual `process_*`, from `/proc` (proc(5)). What cannot be read is left out.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Looks at this process each time.
#[derive(Debug)]
pub(super) struct Process;

/// One look.
struct Seen {
    cpu_seconds: f64,
    resident: f64,
    virtual_size: f64,
    threads: f64,
    started: Option<f64>,
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(seen) = look() else {
            return Ok(());
        };
        let name = "process_cpu_seconds";
        let help = "Processor time, user and system.";
        let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(seen.cpu_seconds).encode(metric)?;
        for (name, help, value) in [
            (
                "process_resident_memory_bytes",
                "Memory in use.",
                Some(seen.resident),
            ),
            (
                "process_virtual_memory_bytes",
                "Address space in use.",
                Some(seen.virtual_size),
            ),
            ("process_threads", "Threads.", Some(seen.threads)),
            ("process_open_fds", "Open file descriptors.", open_files()),
            (
                "process_max_fds",
                "File descriptors that may be open.",
                most_files(),
            ),
            (
                "process_start_time_seconds",
                "When the process started, in seconds since 1970.",
                seen.started,
            ),
        ] {
            if let Some(value) = value {
                let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                ConstGauge::new(value).encode(metric)?;
            }
        }
        Ok(())
    }
}

#[allow(clippy::cast_precision_loss, reason = "metrics are floats")]
fn look() -> Option<Seen> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name, in parentheses, may hold blanks; what follows it is field 3.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let page = rustix::param::page_size() as f64;
    Some(Seen {
        cpu_seconds: (field(14)? + field(15)?) / ticks,
        threads: field(20)?,
        virtual_size: field(23)?,
        resident: field(24)? * page,
        started: boot_time()
            .zip(field(22))
            .map(|(boot, after)| boot + after / ticks),
    })
}

/// Seconds since 1970 at which the machine was started.
fn boot_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

#[allow(clippy::cast_precision_loss, reason = "metrics are floats")]
fn open_files() -> Option<f64> {
    // Looking opens one.
    let open = fs::read_dir("/proc/self/fd").ok()?.count();
    Some(open.saturating_sub(1) as f64)
}

#[allow(clippy::cast_precision_loss, reason = "metrics are floats")]
fn most_files() -> Option<f64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen() {
        let seen = look().expect("Linux");
        assert!(seen.resident > 1e6 && seen.resident < seen.virtual_size);
        assert!(seen.threads >= 1.0);
        let started = seen.started.expect("a boot time");
        assert!(started > 1.6e9, "{started}");
        let (open, most) = (open_files().expect("some"), most_files().expect("a limit"));
        assert!(open >= 3.0 && open < most, "{open} {most}");
    }
}
