//! One program run to its end: how long it took and what it cost.

use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use rustix::thread::{CpuSet, sched_setaffinity};
use tokio::time::Instant;

use crate::messages;

/// What a run took.
pub struct Measured {
    wall: Duration,
    cpu: Duration,
}

impl Measured {
    /// Messages per second.
    pub fn rate(&self) -> f64 {
        messages() as f64 / self.wall.as_secs_f64()
    }

    /// CPU time of a message in microseconds.
    pub fn cpu_each(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / messages() as f64
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.0} messages/s, {:.0} µs CPU each ({:.2} s)",
            self.rate(),
            self.cpu_each(),
            self.wall.as_secs_f64()
        )
    }
}

/// Runs a program from its start to its end, connecting included.
///
/// # Panics
/// If it fails.
pub async fn run(program: &Path, arguments: &[&str], env: &[(&str, &str)]) -> Measured {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let begun = Instant::now();
    let mut child = command.spawn().expect("the program can be started");
    let pid = Pid::from_child(&child);
    let waiting = tokio::task::spawn_blocking(move || {
        // It stays a zombie, whose times can be read, until it is waited for.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid), options).expect("an own child");
        let ended = Instant::now();
        let cpu = cpu_time(pid);
        (ended, cpu, child.wait().expect("an own child"))
    });
    let (ended, cpu, status) = waiting.await.expect("no panic");
    assert!(status.success(), "{}: {status}", program.display());
    let wall = ended.duration_since(begun);
    Measured { wall, cpu }
}

/// User and system time (proc(5), stat, fields 14 and 15), in the kernel's ticks of 10 ms.
fn cpu_time(pid: Pid) -> Duration {
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let stat = std::fs::read_to_string(path).expect("a zombie's stat");
    let (_, fields) = stat.rsplit_once(')').expect("a name in parentheses");
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.map(|t| t.parse::<u64>().expect("a number")).sum();
    Duration::from_millis(ticks * 10)
}

/// The middle one.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Keeps this process and what it starts from here on to one CPU, or a process that runs.
pub fn pin(process: Option<Pid>, cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    let Some(process) = process else {
        return sched_setaffinity(None, &set).expect("an own thread may be pinned");
    };
    let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
    for task in std::fs::read_dir(tasks).expect("it lives").flatten() {
        let number = task.file_name();
        let number = number.to_str().and_then(|number| number.parse().ok());
        let thread = Pid::from_raw(number.expect("a number")).expect("not zero");
        // It may have ended meanwhile.
        let _ = sched_setaffinity(Some(thread), &set);
    }
}
