//! One broker's node: its ports, its files, its environment, and how its programs are started.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::super::leash::{Leashed, Program};
use super::super::places::Places;
use super::super::ports::Port;
use super::super::scratch::Scratch;

/// The file that says which plugins are enabled.
const PLUGINS: &str = "enabled_plugins";

/// Ports, names and files of one broker.
#[derive(Debug)]
pub(super) struct Node {
    folder: Scratch,
    pub(super) amqp: Port,
    pub(super) distribution: Port,
    epmd: Port,
    pub(super) cookie: String,
}

impl Node {
    pub(super) fn prepare() -> Self {
        let folder = Scratch::new("rabbitmq");
        let amqp = Port::take();
        let cookie = format!("COOKIE{}", uuid::Uuid::new_v4().simple());
        let path = folder.join(".erlang.cookie");
        fs::write(&path, &cookie).expect("own folder");
        // Erlang refuses a cookie that others may read.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).expect("own file");
        fs::write(folder.join(PLUGINS), "[].\n").expect("own folder");
        let settings = format!(
            "listeners.tcp.1 = 127.0.0.1:{}\n\
             loopback_users = none\n\
             disk_free_limit.absolute = 10MB\n\
             raft.wal_max_size_bytes = 16000000\n\
             log.console = true\n\
             log.console.level = info\n\
             log.file = false\n",
            amqp.number()
        );
        fs::write(folder.join("rabbitmq.conf"), settings).expect("own folder");
        Self {
            folder,
            amqp,
            distribution: Port::take(),
            epmd: Port::take(),
            cookie,
        }
    }

    /// Names this plugin, and no other, in the file that says which are enabled; its path.
    pub(super) fn enable(&self, plugin: &str) -> String {
        let path = self.folder.join(PLUGINS);
        fs::write(&path, format!("[{plugin}].\n")).expect("own folder");
        path.to_str().expect("our own name").to_owned()
    }

    pub(super) fn start_epmd(&self) -> Leashed {
        let places = Places::known();
        let port = self.epmd.number().to_string();
        let epmd = places.erlang_bin.join("epmd");
        self.start(
            "epmd",
            &[
                epmd.as_ref(),
                "-d".as_ref(),
                "-d".as_ref(),
                "-port".as_ref(),
                port.as_ref(),
                "-address".as_ref(),
                "127.0.0.1".as_ref(),
            ],
        )
    }

    pub(super) fn start_server(&self) -> Leashed {
        let server = Places::known().rabbitmq_sbin.join("rabbitmq-server");
        self.start("RabbitMQ", &[server.as_ref(), "-noinput".as_ref()])
    }

    fn start(&self, name: &str, command: &[&OsStr]) -> Leashed {
        Leashed::start(&Program {
            name,
            folder: self.folder.path(),
            unprivileged: false,
            command,
            env: &self.env(),
        })
    }

    /// A command-line tool of Erlang or RabbitMQ that speaks to this node.
    pub(super) fn command(&self, tool: &str) -> Command {
        let places = Places::known();
        let path = [&places.erlang_bin, &places.rabbitmq_sbin]
            .map(|folder| folder.join(tool))
            .into_iter()
            .find(|path| path.exists())
            .unwrap_or_else(|| panic!("no {tool} beside RabbitMQ or Erlang"));
        let mut command = Command::new(path);
        command
            .env_clear()
            .env("HOME", self.folder.path())
            .env("LC_ALL", "C.UTF-8")
            .envs(self.env());
        command
    }

    fn env(&self) -> Vec<(&'static str, String)> {
        let places = Places::known();
        let file = |name: &str| self.folder.join(name).display().to_string();
        let port = |port: &Port| port.number().to_string();
        // Erlang's own protocol listens on all interfaces unless told otherwise.
        let local = "-kernel inet_dist_use_interface {127,0,0,1}".to_owned();
        let mut env = vec![
            ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", local.clone()),
            ("RABBITMQ_CTL_ERL_ARGS", local),
            ("PATH", search_path(&places.erlang_bin)),
            ("ERL_EPMD_PORT", port(&self.epmd)),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
            (
                "RABBITMQ_NODENAME",
                format!("node{}@localhost", self.amqp.number()),
            ),
            ("RABBITMQ_DIST_PORT", port(&self.distribution)),
            ("RABBITMQ_CONF_ENV_FILE", file("none")),
            ("RABBITMQ_CONFIG_FILE", file("rabbitmq.conf")),
            ("RABBITMQ_ADVANCED_CONFIG_FILE", file("none")),
            ("RABBITMQ_GENERATED_CONFIG_DIR", file("config")),
            ("RABBITMQ_SCHEMA_DIR", file("schema")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", file(PLUGINS)),
            ("RABBITMQ_MNESIA_BASE", file("mnesia")),
            ("RABBITMQ_LOG_BASE", file("log")),
            ("RABBITMQ_PID_FILE", file("pid")),
            ("RABBITMQ_LOGS", "-".to_owned()),
            // The script becomes the Erlang node instead of standing between it and us.
            ("RABBITMQ_ALLOW_INPUT", "1".to_owned()),
        ];
        if !places.rabbitmq_libs.is_empty() {
            env.push(("LD_LIBRARY_PATH", places.rabbitmq_libs.clone()));
        }
        env
    }
}

fn search_path(first: &Path) -> String {
    let rest = std::env::var("PATH").unwrap_or_default();
    format!("{}:{rest}", first.display())
}

/// Runs a tool to its end beside the runtime and returns what it printed.
pub(super) async fn run(mut command: Command, input: String) -> String {
    tokio::task::spawn_blocking(move || {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
        let mut stdin = child.stdin.take().expect("piped");
        stdin
            .write_all(input.as_bytes())
            .expect("the tool reads its input");
        drop(stdin);
        let done = child.wait_with_output().expect("the tool can be awaited");
        let stdout = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(
            done.status.success(),
            "{:?}: {}\n{stdout}{}",
            command.get_program(),
            done.status,
            String::from_utf8_lossy(&done.stderr)
        );
        stdout
    })
    .await
    .expect("the tool failed, see above")
}
