//! Private RabbitMQ brokers that are thrown away: one shared by the tests of a binary, with a
//! virtual host each, and own ones for tests that stop, block, kill or freeze their broker.
//!
//! A broker has its own node name, ports, port mapper (epmd), cookie and folders, so that it
//! meets no other. Administration goes through `erl_call`, which takes milliseconds where
//! `rabbitmqctl` takes a second; the functions called are those that `rabbitmqctl` calls.

mod node;

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal};
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};

use super::PATIENCE;
use super::leash::Leashed;
use node::Node;

/// A broker takes some 100 MB and, while starting, a whole core.
static PRIVATE_BROKERS: Semaphore = Semaphore::const_new(2);

/// A private broker.
#[derive(Debug)]
pub struct Rabbit {
    // The server goes first, then its port mapper, then their folder.
    server: Leashed,
    _epmd: Leashed,
    node: Node,
    _permit: Option<SemaphorePermit<'static>>,
}

impl Rabbit {
    /// Starts a broker; waits while too many private ones run already.
    ///
    /// # Panics
    /// If it does not become ready, with its log.
    pub async fn start() -> Self {
        let permit = PRIVATE_BROKERS.acquire().await.expect("never closed");
        Self::launch(Some(permit)).await
    }

    async fn launch(permit: Option<SemaphorePermit<'static>>) -> Self {
        let node = Node::prepare();
        let epmd = node.start_epmd();
        // It says so at the second level of debugging only.
        epmd.printed("entering the main select() loop", 0, PATIENCE)
            .await;
        let rabbit = Self {
            server: node.start_server(),
            _epmd: epmd,
            node,
            _permit: permit,
        };
        rabbit.ready().await;
        rabbit
    }

    /// 127.0.0.1's AMQP port.
    pub fn port(&self) -> u16 {
        self.node.amqp.number()
    }

    /// The URL of the default virtual host `/`.
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port())
    }

    /// The URL of the default virtual host through something that listens on another port.
    pub fn url_through(&self, port: u16) -> String {
        format!("amqp://guest:guest@127.0.0.1:{port}/%2f")
    }

    /// A new virtual host in which `guest` may do everything.
    pub async fn create_vhost(&self) -> Vhost {
        let name = unique("test");
        self.eval(&format!("rabbit_vhost:add(<<\"{name}\">>, <<\"test\">>)"))
            .await;
        self.set_permissions("guest", &name, [".*", ".*", ".*"])
            .await;
        Vhost {
            url: format!("amqp://guest:guest@127.0.0.1:{}/{name}", self.port()),
            name,
        }
    }

    /// What the broker has logged since it was last started.
    pub fn log(&self) -> Vec<String> {
        self.server.output().lines()
    }

    /// The Erlang node's process number.
    pub fn pid(&self) -> Pid {
        self.server.pid()
    }

    /// Orderly shutdown; returns when the broker is gone.
    pub async fn stop(&mut self) {
        self.server.signal(Signal::TERM);
        self.server.ended(PATIENCE).await;
        self.server.kill();
    }

    /// SIGKILL to all its processes; returns when they are gone.
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// Starts the stopped or killed broker on the same port and files.
    pub async fn start_again(&mut self) {
        self.kill();
        self.server = self.node.start_server();
        self.ready().await;
    }

    /// Stops and starts.
    pub async fn restart(&mut self) {
        self.stop().await;
        self.start_again().await;
    }

    /// Freezes it: connections are accepted by the kernel, nothing is answered.
    pub fn pause(&self) {
        self.server.pause();
    }

    /// Ends [`Rabbit::pause`].
    pub fn resume(&self) {
        self.server.resume();
    }

    /// Raises the memory alarm: publishing connections are blocked.
    pub async fn raise_memory_alarm(&self) {
        self.eval("vm_memory_monitor:set_vm_memory_high_watermark(0.0000001)")
            .await;
    }

    /// Clears the memory alarm.
    pub async fn clear_memory_alarm(&self) {
        self.eval("vm_memory_monitor:set_vm_memory_high_watermark(0.4)")
            .await;
    }

    /// From now on this queue refuses what goes beyond so many messages.
    pub async fn limit(&self, vhost: &str, queue: &str, length: u32) {
        let (vhost, pattern) = (binary(vhost), binary(&format!("^{queue}$")));
        self.eval(&format!(
            "rabbit_policy:set({vhost}, <<\"limit\">>, {pattern}, [{{<<\"max-length\">>, {length}}}, \
             {{<<\"overflow\">>, <<\"reject-publish\">>}}], 0, <<\"queues\">>, <<\"test\">>)"
        ))
        .await;
    }

    /// Takes the limit away again. Channels that were refused are not told (RabbitMQ issue 12206);
    /// they are if it is raised.
    pub async fn take_limit_away(&self, vhost: &str) {
        let vhost = binary(vhost);
        self.eval(&format!(
            "rabbit_policy:delete({vhost}, <<\"limit\">>, <<\"test\">>)"
        ))
        .await;
    }

    /// Writes down which queues there are, quorum queues above all. RabbitMQ 3.10 does so by itself only after
    /// three minutes (`auto_save` of dets), and one that is killed before forgets them: they
    /// are listed then, have no leader, and never confirm anything.
    pub async fn remember_queues(&self) {
        self.eval("mnesia:sync_log(), [dets:sync(Table) || Table <- dets:all()]")
            .await;
    }

    /// How many client connections there are.
    pub async fn connections(&self) -> usize {
        let count = self.eval("length(rabbit_networking:connections())").await;
        count.parse().expect("a length is a number")
    }

    /// Closes every client connection from the broker's side (320, CONNECTION_FORCED).
    pub async fn close_all_connections(&self) {
        self.eval(
            "lists:foreach(fun (C) -> catch rabbit_networking:close_connection(C, \"test\") end, \
             rabbit_networking:connections())",
        )
        .await;
    }

    /// Adds a user without any permission.
    pub async fn add_user(&self, user: &str, password: &str) {
        let (user, password) = (binary(user), binary(password));
        self.eval(&format!(
            "rabbit_auth_backend_internal:add_user({user}, {password}, <<\"test\">>)"
        ))
        .await;
    }

    /// Changes a user's password.
    pub async fn change_password(&self, user: &str, password: &str) {
        let (user, password) = (binary(user), binary(password));
        self.eval(&format!(
            "rabbit_auth_backend_internal:change_password({user}, {password}, <<\"test\">>)"
        ))
        .await;
    }

    /// Sets what a user may configure, write and read in a virtual host (regular expressions).
    pub async fn set_permissions(&self, user: &str, vhost: &str, rights: [&str; 3]) {
        let (user, vhost) = (binary(user), binary(vhost));
        let [configure, write, read] = rights.map(binary);
        self.eval(&format!(
            "rabbit_auth_backend_internal:set_permissions({user}, {vhost}, {configure}, {write}, \
             {read}, <<\"test\">>)"
        ))
        .await;
    }

    /// Evaluates Erlang expressions in the broker and returns the last one's value as text.
    ///
    /// # Panics
    /// If they fail, or return an `{error, …}`.
    pub async fn eval(&self, expressions: &str) -> String {
        let mut call = self.node.command("erl_call");
        // `-r` makes up the caller's name from the time of day, so that two calls at once collide.
        call.args([
            "-h",
            &unique("call"),
            "-timeout",
            "30",
            "-c",
            &self.node.cookie,
            "-address",
        ])
        .arg(format!("127.0.0.1:{}", self.node.distribution.number()))
        .arg("-e");
        let answer = node::run(call, format!("{expressions}.\n")).await;
        let value = answer
            .trim()
            .strip_prefix("{ok, ")
            .and_then(|rest| rest.strip_suffix('}'))
            .unwrap_or_else(|| panic!("{expressions}: {answer}"));
        assert!(!value.starts_with("{error"), "{expressions}: {value}");
        value.to_owned()
    }

    /// Runs the real `rabbitmqctl`, for what has no function above. Takes a second or two.
    ///
    /// # Panics
    /// If it fails.
    pub async fn ctl(&self, arguments: &[&str]) -> String {
        let mut command = self.node.command("rabbitmqctl");
        command.arg("--quiet").args(arguments);
        node::run(command, String::new()).await
    }

    /// Enables a plugin that comes with RabbitMQ.
    pub async fn enable(&self, plugin: &str) {
        let file = self.node.enable(plugin);
        self.eval(&format!("rabbit_plugins:ensure(\"{file}\")"))
            .await;
    }

    async fn ready(&self) {
        let ready = "Server startup complete";
        self.server.printed(ready, 0, PATIENCE).await;
    }
}

/// A virtual host on the broker shared by the tests of this process: a new one on a private
/// broker, or the one that `OUTBOX_RELAY_TEST_BROKER_URL` names, where tests must keep apart
/// by the names they choose ([`unique`]).
pub async fn vhost() -> Vhost {
    if let Ok(url) = std::env::var("OUTBOX_RELAY_TEST_BROKER_URL") {
        let name = url.rsplit('/').next().unwrap_or_default().to_owned();
        return Vhost { url, name };
    }
    shared().await.create_vhost().await
}

/// The private broker shared by the tests of this process, for those that administer it.
pub async fn shared() -> &'static Rabbit {
    static SHARED: OnceCell<Rabbit> = OnceCell::const_new();
    SHARED.get_or_init(|| Rabbit::launch(None)).await
}

/// A virtual host of one test.
#[derive(Debug, Clone)]
pub struct Vhost {
    /// URL with user, password and virtual host.
    pub url: String,
    /// Its name.
    pub name: String,
}

/// A name that no other test uses, for queues and exchanges.
pub fn unique(base: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("{base}-{}-{number}", std::process::id())
}

/// An Erlang binary; quoting is not needed for what tests say.
fn binary(text: &str) -> String {
    assert!(
        !text.contains(['"', '\\']) && text.is_ascii(),
        "{text:?} would need quoting"
    );
    format!("<<\"{text}\">>")
}
