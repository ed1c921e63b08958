//! Secrets are put everywhere, the whole program is used, and everything it says is searched:
//! logs at the finest level, every command, every page, and what it writes into tables.
//!
//! `quarantine show` and `inbox show` tell headers, which is what they are for; they tell no payload
//! unless `--payload` asks for it.

use tokio_postgres::Client;

use crate::support::PATIENCE;
use crate::support::postgres::{Database, connect, database};
use crate::support::queues::Queues;
use crate::support::rabbit::Rabbit;
use crate::support::relay::{Relay, Settings, run};

const DATABASE_PASSWORD: &str = "canary-of-the-database";
const BROKER_PASSWORD: &str = "canary-of-the-broker";
const PAYLOAD: &str = "canary-of-the-payload";
const PAYLOAD_IN_BASE64: &str = "Y2FuYXJ5LW9mLXRoZS1wYXlsb2Fk";
const HEADER: &str = "canary-of-the-header";
const COMMANDS: [&str; 40] = [
    "config",
    "config --json",
    "check",
    "check --json",
    "status",
    "status --json",
    "quarantine list",
    "quarantine list --json",
    "quarantine show 4",
    "quarantine show 4 --json",
    "quarantine show 7",
    "explain sent",
    "explain waiting",
    "explain reserved --json",
    "quarantine replay --id 6 --reason again",
    "quarantine discard --id 5 --reason wrong",
    "resend --since 1h --reason again",
    "pause --exchange nowhere --reason why",
    "resume --exchange nowhere --reason why",
    "migrate --check",
    "migrate --print",
    "completions bash",
    "health",
    "run --no-such-option",
    "health --json",
    "pause --exchange nowhere --reason why --json",
    "resume --exchange nowhere --reason why --json",
    "migrate --inbox --check",
    "migrate --inbox --print",
    "grants --inbox --consumer c --operator o --monitor m",
    "inbox status",
    "inbox status --json",
    "inbox list",
    "inbox list --json",
    "inbox show dead",
    "inbox show dead --json",
    "inbox replay dead --reason again --dry-run --json",
    "inbox replay dead --reason again",
    "inbox discard other --reason wrong",
    "inbox show other --json",
];
const PAGES: [&str; 5] = ["/", "/livez", "/readyz", "/metrics", "/nothing"];

/// Everything that was said, with where it was.
#[derive(Default)]
struct Said(Vec<(String, String)>);

impl Said {
    fn add(&mut self, place: impl Into<String>, text: impl Into<String>) {
        self.0.push((place.into(), text.into()));
    }

    async fn command(&mut self, settings: &Settings, line: &str) {
        let arguments: Vec<_> = line.split(' ').collect();
        let (_, lines) = run(settings, &arguments).await;
        assert!(!lines.is_empty(), "{line} says nothing");
        self.add(line, lines.join("\n"));
    }

    fn holds(&self, text: &str) -> bool {
        self.0.iter().any(|(_, said)| said.contains(text))
    }

    fn assert_silent(&self, canaries: &[&str]) {
        for (place, text) in &self.0 {
            for canary in canaries {
                let shows = ["quarantine show", "inbox show"];
                let shows_headers =
                    *canary == HEADER && shows.iter().any(|command| place.starts_with(command));
                assert!(shows_headers || !text.contains(canary), "{place}:\n{text}");
            }
        }
    }
}

fn with_password(url: &str, user: &str, password: &str) -> String {
    let (scheme, rest) = url.split_once("://").expect("a URL");
    let host = rest.split_once('@').map_or(rest, |(_, host)| host);
    format!("{scheme}://{user}:{password}@{host}")
}

/// The user that a URL names.
fn user(url: &str) -> &str {
    let rest = url.split("://").nth(1).expect("a URL");
    let login = rest.split('@').next().expect("a login");
    login.split(':').next().expect("a user")
}

/// Both passwords are canaries, and the log is as talkative as can be.
async fn with_secrets(rabbit: &Rabbit, database: &Database) -> Settings {
    rabbit.add_user("relay", BROKER_PASSWORD).await;
    rabbit.set_permissions("relay", "/", ["", ".*", ""]).await;
    let database = with_password(&database.url, user(&database.url), DATABASE_PASSWORD);
    let broker = with_password(&rabbit.url(), "relay", BROKER_PASSWORD);
    Settings::new(&database, &broker)
        .with(
            "OUTBOX_RELAY__LOG__LEVEL",
            "trace,lapin::returned_messages=trace",
        )
        .with("OUTBOX_RELAY__RELAY__MAX_MESSAGE_SIZE", "1KiB")
        .with("LOGNAME", "ann")
}

/// One row of each fate: sent, waiting, quarantined for what only its own contents are to blame.
async fn write_rows(client: &Client) {
    let rows = format!(
        "INSERT INTO outbox.message (exchange, routing_key, message_id, payload, headers, properties) VALUES
           ('', 'q', 'sent', '\"{PAYLOAD}\"', '{{\"h\": \"{HEADER}\"}}', NULL),
           ('', 'no-such-queue', 'waiting', '\"{PAYLOAD}\"', '{{\"h\": \"{HEADER}\"}}', NULL),
           ('nowhere', 'k', 'missing', '\"{PAYLOAD}\"', '{{\"h\": \"{HEADER}\"}}', NULL),
           ('', 'q', 'reserved', '\"{PAYLOAD}\"', '{{\"x-outbox-id\": \"{HEADER}\"}}', NULL),
           ('', 'q', 'deep', '\"{PAYLOAD}\"', '[\"{HEADER}\"]', NULL),
           ('', 'q', 'odd', '\"{PAYLOAD}\"', NULL, '{{\"priority\": \"{HEADER}\"}}'),
           ('', 'q', 'large', to_json(repeat('{PAYLOAD}', 100)), NULL, NULL)"
    );
    client.batch_execute(&rows).await.expect("rows");
}

/// Two messages that a consumer has given up, and one that it is working on, for `inbox`.
async fn write_entries(client: &Client) {
    let entry = |id: &str, then: &str| {
        format!(
            "SELECT {then} FROM inbox.claim('c', '{id}', '60s', 'canary-of-the-payload'::bytea, \
               '{{\"h\": \"{HEADER}\"}}', '{{\"app_id\": \"a\"}}') AS c;"
        )
    };
    let dead = |id| {
        entry(
            id,
            &format!("inbox.fail('c', '{id}', c.owner, 'permanent', 'no account')"),
        )
    };
    let entries = [dead("dead"), dead("other"), entry("busy", "c.outcome")].concat();
    client.batch_execute(&entries).await.expect("entries");
}

/// What the tables hold, apart from messages themselves.
async fn written(client: &Client) -> String {
    let sql = "SELECT concat_ws(E'\\n',
          (SELECT string_agg(last_error, E'\\n') FROM outbox.message),
          (SELECT string_agg(reason_class || reason, E'\\n') FROM outbox.quarantine),
          (SELECT string_agg(audit::text, E'\\n') FROM outbox.audit AS audit),
          (SELECT string_agg(instance::text, E'\\n') FROM outbox.instance AS instance),
          (SELECT string_agg(audit::text, E'\\n') FROM inbox.audit AS audit),
          (SELECT string_agg(reason, E'\\n') FROM inbox.message))";
    client.query_one(sql, &[]).await.expect("text").get(0)
}

#[tokio::test]
async fn nothing_that_the_program_says_or_writes_holds_a_secret() {
    let rabbit = Rabbit::start().await;
    let queues = Queues::connect(&rabbit.url()).await;
    queues.classic("q").await;
    let database = database().await;
    let client = connect(&database.url).await;
    let settings = with_secrets(&rabbit, &database).await;
    let mut said = Said::default();
    said.command(&settings, "migrate").await;
    said.command(&settings, "migrate --inbox").await;
    write_rows(&client).await;
    write_entries(&client).await;
    let relay = Relay::start(&settings);
    relay.ready().await;
    settled(&client).await;
    for page in PAGES {
        let (_, body) = relay.get(page).await.expect("an answer");
        said.add(page, body);
    }
    for line in COMMANDS {
        said.command(&settings, line).await;
    }
    relay.terminate();
    relay.ended().await;
    said.add("log", relay.output().join("\n"));
    said.add("tables", written(&client).await);
    for word in [
        "DEBUG",
        "***",
        "reserved_header",
        "OUTBOX_RELAY__DATABASE__URL",
        "no account",
        "1 discarded",
    ] {
        assert!(said.holds(word), "nothing tells of {word}");
    }
    let canaries = [
        DATABASE_PASSWORD,
        BROKER_PASSWORD,
        PAYLOAD,
        PAYLOAD_IN_BASE64,
        HEADER,
    ];
    said.assert_silent(&canaries);
    whoever_asks_for_a_payload_gets_it(&settings).await;
    let letters = queues.take_all("q").await;
    assert!(!letters.is_empty(), "the payload has been through it");
}

async fn whoever_asks_for_a_payload_gets_it(settings: &Settings) {
    let mut asked_for = Said::default();
    asked_for
        .command(settings, "quarantine show 7 --payload")
        .await;
    assert!(asked_for.holds(PAYLOAD), "who asks for it gets it");
    asked_for
        .command(settings, "inbox show busy --payload")
        .await;
    assert!(asked_for.holds(PAYLOAD_IN_BASE64), "here, too");
    asked_for.assert_silent(&[DATABASE_PASSWORD, BROKER_PASSWORD]);
}

/// Waits until each row has met its fate.
async fn settled(client: &Client) {
    let sql = "SELECT count(*) FILTER (WHERE sent_at IS NOT NULL OR retry_at IS NOT NULL)
                      + (SELECT count(*) FROM outbox.quarantine) = 7 FROM outbox.message";
    let asking = async {
        while !client
            .query_one(sql, &[])
            .await
            .expect("a count")
            .get::<_, bool>(0)
        {
            // The database is asked: nobody signals a commit.
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asking)
        .await
        .expect("in time");
}

#[tokio::test]
async fn a_refused_login_is_told_without_its_password() {
    let rabbit = Rabbit::start().await;
    rabbit.add_user("relay", "another").await;
    let database = database().await;
    let broker = with_password(&rabbit.url(), "relay", BROKER_PASSWORD);
    let url = with_password(&database.url, "nobody_of_this_name", DATABASE_PASSWORD);
    let settings = Settings::new(&url, &broker).with("OUTBOX_RELAY__LOG__LEVEL", "trace");
    let mut said = Said::default();
    for line in ["check", "status", "migrate"] {
        said.command(&settings, line).await;
    }
    let relay = Relay::start(&settings);
    relay.printed("no connection to the broker").await;
    relay.printed("nobody_of_this_name").await;
    let (_, readyz) = relay.get("/readyz").await.expect("an answer");
    said.add("/readyz", readyz);
    relay.terminate();
    relay.ended().await;
    said.add("log", relay.output().join("\n"));
    assert!(said.holds("ACCESS_REFUSED"), "nothing tells of the refusal");
    said.assert_silent(&[DATABASE_PASSWORD, BROKER_PASSWORD]);
}
