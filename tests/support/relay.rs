//! The `outbox-relay` program as a real process: configured by environment, watched over HTTP
//! and by its output, stopped or killed like any daemon.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::PATIENCE;
use super::leash::{Leashed, Program};
use super::ports::Port;
use super::scratch::Scratch;

/// How often a page is asked for while waiting for what it says to change.
const LOOK: Duration = Duration::from_millis(20);

/// How to start the program.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    env: Vec<(String, String)>,
}

impl Settings {
    /// The two servers and a short lease, so that a killed relay is soon replaced; everything else
    /// at its default.
    pub fn new(database: &str, broker: &str) -> Self {
        Self::default()
            .with("OUTBOX_RELAY__DATABASE__URL", database)
            .with("OUTBOX_RELAY__BROKER__URL", broker)
            .with("OUTBOX_RELAY__RELAY__LEASE", "2s")
    }

    /// One more environment variable, such as `OUTBOX_RELAY__RELAY__BATCH_SIZE`; the last one
    /// of a name wins. Nothing is inherited from the tests' own environment.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// A running `outbox-relay run`.
#[derive(Debug)]
pub struct Relay {
    process: Leashed,
    http: Port,
    _folder: Scratch,
}

impl Relay {
    /// Starts the daemon; it is not ready yet.
    pub fn start(settings: &Settings) -> Self {
        Self::start_with(settings, &["run"])
    }

    /// Starts it with other arguments, such as `run --until-empty`.
    pub fn start_with(settings: &Settings, arguments: &[&str]) -> Self {
        let http = Port::take();
        let listen = format!("127.0.0.1:{}", http.number());
        let settings = settings.clone().with("OUTBOX_RELAY__HTTP__LISTEN", &listen);
        let folder = Scratch::new("relay");
        Self {
            process: launch(folder.path(), &settings, arguments),
            http,
            _folder: folder,
        }
    }

    /// The address of its HTTP pages.
    pub fn http_port(&self) -> u16 {
        self.http.number()
    }

    /// Its process number.
    pub fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// What it has printed, standard output and error together.
    pub fn output(&self) -> Vec<String> {
        self.process.output().lines()
    }

    /// How many warnings and errors it has printed.
    pub fn warnings(&self) -> usize {
        let output = self.output();
        let loud = |line: &&String| line.contains(" WARN ") || line.contains(" ERROR ");
        output.iter().filter(loud).count()
    }

    /// Its resident memory, in bytes (proc(5), status).
    ///
    /// # Panics
    /// If it has ended.
    pub fn resident(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// The most it was resident at any time, in bytes.
    ///
    /// # Panics
    /// If it has ended.
    pub fn peak(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, field: &str) -> u64 {
        let path = format!("/proc/{}/status", self.pid().as_raw_nonzero());
        let status = std::fs::read_to_string(path).expect("it lives");
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
        let kilobytes: u64 = kilobytes.expect(field).parse().expect("a number");
        kilobytes * 1024
    }

    /// Waits until it has printed a line that holds `text`.
    ///
    /// # Panics
    /// If it ends before, or does not.
    pub async fn printed(&self, text: &str) {
        self.process.printed(text, 0, PATIENCE).await;
    }

    /// Asks for a page: status code and body; `None` while nobody answers.
    pub async fn get(&self, path: &str) -> Option<(u16, String)> {
        timeout(Duration::from_secs(5), get(self.http.number(), path))
            .await
            .ok()?
            .ok()
    }

    /// Waits until `/readyz` says 200.
    ///
    /// # Panics
    /// If it ends before, or does not become ready.
    pub async fn ready(&self) {
        self.answers("/readyz", 200).await;
    }

    /// Waits until a page answers with this status code.
    ///
    /// # Panics
    /// If the program ends before, or the page does not.
    pub async fn answers(&self, path: &str, code: u16) {
        let mut last = None;
        let answered = async {
            while last.as_ref().is_none_or(|(seen, _)| *seen != code) {
                if self.process.exit_status().is_some() {
                    return false;
                }
                // Probes are asked, as a supervisor asks them.
                sleep(LOOK).await;
                last = self.get(path).await;
            }
            true
        };
        let outcome = timeout(PATIENCE, answered).await;
        assert!(
            outcome == Ok(true),
            "{path} never answered {code}, but {last:?}; exit {:?}; last words:\n{}",
            self.process.exit_status(),
            self.process.output().tail()
        );
    }

    /// Waits until `/readyz` says one of these of the progress of due rows, and that it is not ready.
    ///
    /// # Panics
    /// If it never does.
    pub async fn does_not_progress(&self, states: &[&str]) {
        let mut last = None;
        let told = |state: &&str| format!("\"state\":\"{state}\"");
        let told: Vec<_> = states.iter().map(told).collect();
        let said = async {
            loop {
                last = self.get("/readyz").await;
                if let Some((503, page)) = &last
                    && let Some((_, progress)) = page.split_once("\"progress\":")
                    && told.iter().any(|told| progress.contains(told))
                {
                    return;
                }
                // Probes are asked, as a supervisor asks them.
                sleep(LOOK).await;
            }
        };
        let outcome = timeout(PATIENCE, said).await;
        assert!(outcome.is_ok(), "never {states:?}, but {last:?}");
    }

    /// SIGTERM; returns at once.
    pub fn terminate(&self) {
        self.process.signal(Signal::TERM);
    }

    /// Any signal to it, such as SIGHUP.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits for it to end.
    ///
    /// # Panics
    /// If it does not.
    pub async fn ended(&self) -> ExitStatus {
        let status = self.process.ended(PATIENCE).await;
        self.process.all_printed(PATIENCE).await;
        status
    }

    /// Its exit status, if it has ended.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.process.exit_status()
    }

    /// SIGTERM, and waits for a clean end.
    ///
    /// # Panics
    /// If it exits with anything but 0.
    pub async fn stop(self) {
        self.terminate();
        let status = self.ended().await;
        assert!(
            status.success(),
            "SIGTERM ended in {status}; last words:\n{}",
            self.process.output().tail()
        );
    }

    /// SIGKILL; returns when it is gone.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// SIGSTOP.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.process.resume();
    }
}

/// Its last words, for whoever reads why the test failed.
impl Drop for Relay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let words = self.process.output().tail();
            println!(
                "the relay's last words (exit {:?}):\n{words}",
                self.exit_status()
            );
        }
    }
}

/// Runs a one-shot command such as `migrate` to its end.
pub async fn run(settings: &Settings, arguments: &[&str]) -> (ExitStatus, Vec<String>) {
    let folder = Scratch::new("command");
    let process = launch(folder.path(), settings, arguments);
    let status = process.ended(PATIENCE).await;
    // The streams end after the process; both ends are awaited.
    process.all_printed(PATIENCE).await;
    (status, process.output().lines())
}

/// Creates the outbox in a database by the real `outbox-relay migrate`.
///
/// # Panics
/// If it fails.
pub async fn migrate(database: &str) {
    let arguments = ["migrate", "--database-url", database];
    let (status, output) = run(&Settings::default(), &arguments).await;
    assert!(status.success(), "migrate: {status}\n{}", output.join("\n"));
}

fn launch(folder: &Path, settings: &Settings, arguments: &[&str]) -> Leashed {
    let program = program();
    let mut command: Vec<&OsStr> = vec![program.as_ref()];
    command.extend(arguments.iter().map(AsRef::<OsStr>::as_ref));
    let env: Vec<(&str, String)> = settings
        .env
        .iter()
        .map(|(name, value)| (name.as_str(), value.clone()))
        .collect();
    Leashed::start(&Program {
        name: "outbox-relay",
        folder,
        unprivileged: false,
        command: &command,
        env: &env,
    })
}

/// The program under test: `OUTBOX_RELAY_TEST_PROGRAM`, else the one Cargo built for this
/// test, else the one beside this example.
pub fn program() -> PathBuf {
    if let Some(path) = std::env::var_os("OUTBOX_RELAY_TEST_PROGRAM") {
        return path.into();
    }
    if let Some(path) = option_env!("CARGO_BIN_EXE_outbox-relay") {
        return path.into();
    }
    let own = std::env::current_exe().expect("own path");
    let profile = own
        .parent()
        .and_then(Path::parent)
        .expect("target/<profile>/examples/");
    let path = profile.join("outbox-relay");
    assert!(
        path.exists(),
        "{} does not exist; build it first with `cargo build`, with the same profile",
        path.display()
    );
    path
}

/// One HTTP request, no client crate needed.
async fn get(port: u16, path: &str) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer);
    let invalid = || std::io::Error::from(std::io::ErrorKind::InvalidData);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(invalid)?;
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok((code.ok_or_else(invalid)?, body.to_owned()))
}
