//! Private PostgreSQL clusters that are thrown away: one shared by the tests of a binary, with
//! a database each, and own ones for tests that stop, kill or freeze their server.
//!
//! A cluster is a copy of a template that `initdb` made once. It listens on 127.0.0.1 and on a
//! Unix socket, trusts everyone, and by default does not flush to disk: killing the *process*
//! loses nothing that way, killing the machine would.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal};
use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls};

use super::PATIENCE;
use super::leash::{Leashed, Program};
use super::places::Places;
use super::ports::Port;
use super::scratch::{Scratch, UNPRIVILEGED, is_root};

/// The superuser of every private cluster; no password.
const USER: &str = "postgres";

/// How a private cluster differs from the usual one.
#[derive(Debug, Default, Clone)]
pub struct Options {
    /// Flush to disk as in production.
    pub durable: bool,
    /// Further settings, such as `("statement_timeout", "100ms")`; the last one wins.
    pub settings: Vec<(&'static str, String)>,
    /// The server's environment.
    pub env: Vec<(&'static str, String)>,
}

/// A private cluster and its server.
#[derive(Debug)]
pub struct Postgres {
    // The server goes first, then its folder.
    server: Leashed,
    options: Options,
    folder: Scratch,
    port: Port,
}

impl Postgres {
    /// Starts a cluster with the usual settings.
    pub async fn start() -> Self {
        Self::start_with(Options::default()).await
    }

    /// Starts a cluster.
    ///
    /// # Panics
    /// If it does not become ready, with its log.
    pub async fn start_with(options: Options) -> Self {
        let folder = tokio::task::spawn_blocking(prepare_folder)
            .await
            .expect("preparation panicked, see above");
        let port = Port::take();
        let server = launch(folder.path(), &port, &options);
        let cluster = Self {
            server,
            options,
            folder,
            port,
        };
        cluster.ready().await;
        cluster
    }

    /// 127.0.0.1's port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The folder of the Unix socket.
    pub fn socket_folder(&self) -> PathBuf {
        self.folder.join("socket")
    }

    /// A URL over TCP.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{database}", self.port())
    }

    /// A URL over TCP through something that listens on another port, such as a proxy.
    pub fn url_through(&self, port: u16, database: &str) -> String {
        format!("postgres://{USER}@127.0.0.1:{port}/{database}")
    }

    /// A new empty database.
    pub async fn create_database(&self) -> Database {
        Database::create(&self.url(USER), false).await
    }

    /// What the server has logged since it was last started.
    pub fn log(&self) -> Vec<String> {
        self.server.output().lines()
    }

    /// The postmaster's process number.
    pub fn pid(&self) -> Pid {
        self.server.pid()
    }

    /// Fast shutdown, as an administrator does it; returns when the server is gone.
    pub async fn stop(&mut self) {
        self.server.signal(Signal::INT);
        self.server.ended(PATIENCE).await;
        self.server.kill();
    }

    /// SIGKILL to all its processes; returns when they are gone.
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// Starts the stopped or killed server on the same port and files.
    pub async fn start_again(&mut self) {
        self.kill();
        self.server = launch(self.folder.path(), &self.port, &self.options);
        self.ready().await;
    }

    /// Stops and starts.
    pub async fn restart(&mut self) {
        self.stop().await;
        self.start_again().await;
    }

    /// Freezes all its processes: connections are accepted, nothing is answered.
    pub fn pause(&self) {
        self.server.pause();
    }

    /// Ends [`Postgres::pause`].
    pub fn resume(&self) {
        self.server.resume();
    }

    async fn ready(&self) {
        let ready = "database system is ready to accept connections";
        self.server.printed(ready, 0, PATIENCE).await;
    }
}

/// A new database on the server shared by the tests of this process: the one that
/// `OUTBOX_RELAY_TEST_DATABASE_URL` names, else a private one.
pub async fn database() -> Database {
    static SHARED: OnceCell<Postgres> = OnceCell::const_new();
    if let Ok(url) = std::env::var("OUTBOX_RELAY_TEST_DATABASE_URL") {
        return Database::create(&url, true).await;
    }
    let shared = SHARED.get_or_init(Postgres::start).await;
    shared.create_database().await
}

/// A database of one test.
#[derive(Debug)]
pub struct Database {
    /// Superuser's URL over TCP.
    pub url: String,
    /// Its name.
    pub name: String,
    /// The URL to drop it by, on a server that stays.
    cleaner: Option<String>,
}

impl Database {
    async fn create(server: &str, server_stays: bool) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{}_{number}", std::process::id());
        let admin = connect(server).await;
        admin
            .batch_execute(&format!("CREATE DATABASE {name}"))
            .await
            .unwrap_or_else(|error| panic!("CREATE DATABASE {name}: {error:?}"));
        Self {
            url: with_database(server, &name),
            name,
            cleaner: server_stays.then(|| server.to_owned()),
        }
    }

    /// A new connection.
    pub async fn connect(&self) -> Client {
        connect(&self.url).await
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let Some(server) = self.cleaner.take() else {
            return;
        };
        let drop = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let cleaning = std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime")
                .block_on(async { connect(&server).await.batch_execute(&drop).await })
        });
        if !matches!(cleaning.join(), Ok(Ok(()))) {
            eprintln!("could not drop test database {}", self.name);
        }
    }
}

/// Connects without TLS and drives the connection in a task of its own.
///
/// # Panics
/// If that fails.
pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio::time::timeout(PATIENCE, tokio_postgres::connect(url, NoTls))
        .await
        .expect("PostgreSQL answers in time")
        .unwrap_or_else(|error| panic!("cannot connect to the test database: {error:?}"));
    // Its end is seen by whoever uses the client.
    tokio::spawn(connection);
    client
}

/// The URL with another database in it.
fn with_database(url: &str, database: &str) -> String {
    let (address, parameters) = match url.split_once('?') {
        Some((address, parameters)) => (address, format!("?{parameters}")),
        None => (url, String::new()),
    };
    let (scheme, rest) = address
        .split_once("://")
        .expect("a URL postgres://user@host/database");
    let authority = rest
        .split_once('/')
        .map_or(rest, |(authority, _)| authority);
    format!("{scheme}://{authority}/{database}{parameters}")
}

fn launch(folder: &Path, port: &Port, options: &Options) -> Leashed {
    let places = Places::known();
    let mut settings = vec![
        ("listen_addresses", "127.0.0.1".to_owned()),
        ("port", port.number().to_string()),
        (
            "unix_socket_directories",
            folder.join("socket").display().to_string(),
        ),
        ("max_prepared_transactions", "20".to_owned()),
        ("log_line_prefix", "%m [%p] %a ".to_owned()),
    ];
    if !options.durable {
        settings.push(("fsync", "off".to_owned()));
        settings.push(("full_page_writes", "off".to_owned()));
    }
    settings.extend(options.settings.iter().cloned());
    let postgres = places.postgres_bin.join("postgres");
    let data = folder.join("data");
    let settings: Vec<String> = settings
        .into_iter()
        .map(|(name, value)| format!("--{name}={value}"))
        .collect();
    // Set for the server alone, and not before it has its user.
    let environment = options
        .env
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    let environment: Vec<String> = environment.collect();
    let mut command: Vec<&OsStr> = vec!["env".as_ref()];
    command.extend(environment.iter().map(AsRef::<OsStr>::as_ref));
    command.extend([postgres.as_os_str(), OsStr::new("-D"), data.as_os_str()]);
    command.extend(settings.iter().map(AsRef::<OsStr>::as_ref));
    Leashed::start(&Program {
        name: "PostgreSQL",
        folder,
        unprivileged: is_root(),
        command: &command,
        env: &[],
    })
}

/// A folder with a fresh copy of the template and a place for the socket.
fn prepare_folder() -> Scratch {
    let template = template();
    let folder = Scratch::new("postgres");
    run(Command::new("cp")
        .arg("-a")
        .arg(template)
        .arg(folder.join("data")));
    let socket = folder.join("socket");
    fs::create_dir(&socket).expect("own folder");
    if is_root() {
        let nobody = Some(UNPRIVILEGED);
        std::os::unix::fs::chown(&socket, nobody, nobody).expect("root may chown");
    }
    folder
}

/// The template: made once per PostgreSQL and user, kept in the cache.
fn template() -> PathBuf {
    let places = Places::known();
    let templates = places.cache.join("templates");
    fs::create_dir_all(&templates)
        .unwrap_or_else(|error| panic!("cannot create {}: {error}", templates.display()));
    let version = Command::new(places.postgres_bin.join("postgres"))
        .arg("--version")
        .output()
        .expect("postgres runs");
    let version: String = String::from_utf8_lossy(&version.stdout)
        .chars()
        .filter(|c| c.is_ascii_digit() || *c == '.')
        .collect();
    let template = templates.join(format!("postgres-{version}"));
    let lock = File::create(templates.join("lock")).expect("own folder");
    lock.lock().expect("the file system can lock");
    if !template.exists() {
        let folder = Scratch::new("initdb");
        initialise(places, &folder.join("data"));
        let unfinished = templates.join("unfinished");
        let _ = fs::remove_dir_all(&unfinished);
        run(Command::new("cp")
            .arg("-a")
            .arg(folder.join("data"))
            .arg(&unfinished));
        fs::rename(&unfinished, &template).expect("own folder");
    }
    template
}

fn initialise(places: &Places, folder: &Path) {
    let initdb = places.postgres_bin.join("initdb");
    let mut command = Command::new("setpriv");
    if is_root() {
        let user = UNPRIVILEGED.to_string();
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
        command.arg(initdb);
    } else {
        command = Command::new(initdb);
    }
    command
        .args(["--username", USER, "--auth=trust", "--encoding=UTF8"])
        .args(["--locale=C", "--no-sync", "--no-instructions", "-D"])
        .arg(folder)
        .current_dir("/");
    run(&mut command);
}

/// Runs a command to its end.
fn run(command: &mut Command) {
    let done = command
        .output()
        .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    assert!(
        done.status.success(),
        "{command:?}: {}\n{}{}",
        done.status,
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
}
