//! A started program that cannot outlive its owner, its output, and the waits on both.
//!
//! Dropping it kills the program with all its descendants. Should the owner itself be killed,
//! `leash.sh` does so, and removes the program's folder.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::sync::watch;
use tokio::time::timeout;

use super::process::Family;
use super::scratch::UNPRIVILEGED;

const LEASH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/leash.sh");

/// Everything a program has printed, standard output and error together, line by line.
#[derive(Debug, Default)]
pub struct Output(Mutex<Vec<String>>);

impl Output {
    /// All lines so far.
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().expect("no panic while held").clone()
    }

    /// The last lines, for failure messages.
    pub fn tail(&self) -> String {
        let lines = self.0.lock().expect("no panic while held");
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

/// What to start, and how.
#[derive(Debug)]
pub struct Program<'a> {
    /// Said in failure messages.
    pub name: &'a str,
    /// The program's folder: its working folder and `HOME`; removed should we be killed.
    pub folder: &'a Path,
    /// Run as the unprivileged user; only root can.
    pub unprivileged: bool,
    /// Program and arguments.
    pub command: &'a [&'a OsStr],
    /// The whole environment, apart from `PATH`, `HOME` and the locale.
    pub env: &'a [(&'a str, String)],
}

/// A running program.
#[derive(Debug)]
pub struct Leashed {
    name: String,
    pid: Pid,
    leash: Option<ChildStdin>,
    output: Arc<Output>,
    printed: watch::Receiver<usize>,
    exited: watch::Receiver<Option<ExitStatus>>,
}

impl Leashed {
    /// Starts a program.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(program: &Program<'_>) -> Self {
        let mut command = Command::new("sh");
        command.arg(LEASH).arg(program.folder);
        if program.unprivileged {
            let user = UNPRIVILEGED.to_string();
            command.args(["setpriv", "--reuid", &user, "--regid", &user]);
            command.arg("--clear-groups");
        }
        command
            .args(program.command)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", program.folder)
            .env("LC_ALL", "C.UTF-8")
            .envs(program.env.iter().map(|(key, value)| (key, value)))
            .current_dir(program.folder)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", program.name));
        let output = Arc::new(Output::default());
        let (count, printed) = watch::channel(0);
        let count = Arc::new(count);
        let streams: [Box<dyn Read + Send>; 2] = [
            Box::new(child.stdout.take().expect("piped")),
            Box::new(child.stderr.take().expect("piped")),
        ];
        for stream in streams {
            let (output, count) = (Arc::clone(&output), Arc::clone(&count));
            std::thread::spawn(move || collect(stream, &output, &count));
        }
        let pid = Pid::from_child(&child);
        let leash = child.stdin.take();
        let (exit, exited) = watch::channel(None);
        std::thread::spawn(move || exit.send_replace(child.wait().ok()));
        Self {
            name: program.name.to_owned(),
            pid,
            leash,
            output,
            printed,
            exited,
        }
    }

    /// The program's process number.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// What it has printed.
    pub fn output(&self) -> &Arc<Output> {
        &self.output
    }

    /// Waits until it has printed a line that holds `text`, looking at lines from `since` on.
    ///
    /// # Panics
    /// If it exits before, or `patience` runs out.
    pub async fn printed(&self, text: &str, since: usize, patience: Duration) {
        let (mut printed, mut exited) = (self.printed.clone(), self.exited.clone());
        let seen = async {
            let mut from = since;
            loop {
                let gone = exited.borrow_and_update().is_some();
                let count = *printed.borrow_and_update();
                let lines = self.output.lines();
                if lines.iter().skip(from).any(|line| line.contains(text)) {
                    return true;
                }
                from = count;
                tokio::select! {
                    more = printed.changed() => if more.is_err() { return false },
                    _ = exited.changed(), if !gone => {}
                }
            }
        };
        let outcome = timeout(patience, seen).await;
        assert!(
            outcome == Ok(true),
            "{} {} before it said \"{text}\"; its last words:\n{}",
            self.name,
            if outcome.is_ok() {
                "ended"
            } else {
                "took too long"
            },
            self.output.tail()
        );
    }

    /// Its exit status, if it has ended.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        *self.exited.borrow()
    }

    /// Waits for it to end by itself.
    ///
    /// # Panics
    /// If `patience` runs out.
    pub async fn ended(&self, patience: Duration) -> ExitStatus {
        let mut exited = self.exited.clone();
        let end = timeout(patience, exited.wait_for(Option::is_some)).await;
        let Ok(status) = end else {
            panic!(
                "{} did not end within {patience:?}; its last words:\n{}",
                self.name,
                self.output.tail()
            );
        };
        status.expect("the waiter reports").expect("just seen")
    }

    /// Waits until both output streams have ended, which is after the program did.
    ///
    /// # Panics
    /// If `patience` runs out, for instance because a descendant holds a stream open.
    pub async fn all_printed(&self, patience: Duration) {
        let mut printed = self.printed.clone();
        let ends = async { while printed.changed().await.is_ok() {} };
        let outcome = timeout(patience, ends).await;
        assert!(outcome.is_ok(), "{}'s output does not end", self.name);
    }

    /// Sends a signal to the program alone.
    pub fn signal(&self, signal: Signal) {
        if self.exit_status().is_none() {
            // It may end at any moment; its number cannot be reused while it is on the leash.
            let _ = rustix::process::kill_process(self.pid, signal);
        }
    }

    /// SIGSTOP to the program and its descendants; returns when all stand still: connections
    /// are accepted by the kernel, nothing is answered.
    pub fn pause(&self) {
        Family::freeze(self.pid);
    }

    /// SIGCONT after [`Leashed::pause`].
    pub fn resume(&self) {
        Family::of(self.pid).signal(Signal::CONT);
    }

    /// SIGKILL to the program and its descendants; returns when all are gone.
    pub fn kill(&mut self) {
        let Some(mut leash) = self.leash.take() else {
            return;
        };
        if self.exit_status().is_none() {
            Family::kill(self.pid);
        }
        // Tells the watcher that the folder is still ours.
        let _ = leash.write_all(b"released\n");
    }
}

impl Drop for Leashed {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Takes over a stream line by line until it ends.
fn collect(stream: impl Read, output: &Output, count: &watch::Sender<usize>) {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    while matches!(stream.read_until(b'\n', &mut line), Ok(1..)) {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        let mut lines = output.0.lock().expect("no panic while held");
        lines.push(text);
        count.send_replace(lines.len());
        drop(lines);
        line.clear();
    }
}
