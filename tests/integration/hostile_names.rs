//! Names in the configuration that are made to be run as SQL: they are names, and nothing else.

use crate::operator::said;
use crate::support::postgres::{Database, connect, database};
use crate::support::queues::Queues;
use crate::support::rabbit::vhost;
use crate::support::relay::{Relay, Settings};

/// A table that some of the names try to drop.
const VICTIM: &str = "CREATE TABLE public.victim ()";

/// Schema and relation. Quotes of every kind, ends of comments and of bodies, what our own
/// templates replace, words of SQL, and letters beyond ASCII.
const NAMES: [(&str, &str); 5] = [
    (r#"a"; DROP TABLE public.victim; --"#, "message"),
    ("a'; DROP TABLE public.victim; --", r#"b"c"#),
    (r"\'; DROP TABLE public.victim; --", "*/ b /*"),
    ("{{payload}} {{tag}}", "$outbox$; $$"),
    ("Größe mit Ünïcode", "select"),
];

struct Attempt {
    database: Database,
    settings: Settings,
    queue: String,
}

impl Attempt {
    async fn with((schema, relation): (&str, &str)) -> Self {
        let (database, vhost) = (database().await, vhost().await);
        let client = connect(&database.url).await;
        client.batch_execute(VICTIM).await.expect("a table");
        let queue = "q".to_owned();
        let queues = Queues::connect(&vhost.url).await;
        queues.classic(&queue).await;
        let settings = Settings::new(&database.url, &vhost.url)
            .with("OUTBOX_RELAY__OUTBOX__SCHEMA", schema)
            .with("OUTBOX_RELAY__OUTBOX__RELATION", relation)
            .with("LOGNAME", "ann");
        Self {
            database,
            settings,
            queue,
        }
    }

    /// Runs a command, which must succeed.
    async fn does(&self, arguments: &[&str]) -> String {
        let (code, text) = said(&self.settings, arguments).await;
        assert_eq!(code, 0, "{arguments:?}: {text}");
        text
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

async fn everything_works_with((schema, relation): (&str, &str)) {
    let attempt = Attempt::with((schema, relation)).await;
    attempt.does(&["migrate"]).await;
    attempt.does(&["migrate", "--check"]).await;
    attempt.does(&["migrate", "--print"]).await;
    let client = connect(&attempt.database.url).await;
    let enqueue = format!(
        "SELECT {}.enqueue(payload => '1', routing_key => $1)",
        quoted(schema)
    );
    let row = client.query_one(&enqueue, &[&attempt.queue]).await;
    let id: String = row.expect("enqueue").get(0);
    attempt.does(&["check"]).await;
    let relay = Relay::start_with(&attempt.settings, &["run", "--until-empty"]);
    let status = relay.ended().await;
    assert!(status.success(), "{}", relay.output().join("\n"));
    let told = attempt.does(&["explain", &id]).await;
    assert!(told.contains("was sent"), "{told}");
    let role = format!("r\"'\\ {}", attempt.database.name);
    let create = format!("CREATE ROLE {}", quoted(&role));
    client.batch_execute(&create).await.expect("a role");
    let [relay, app, operator, monitor] = ["--relay", "--app", "--operator", "--monitor"];
    let roles = [relay, &role, app, &role, operator, &role, monitor, &role];
    let rights = attempt.does(&[&["grants"], &roles[..]].concat()).await;
    client.batch_execute(&rights).await.expect("rights");
    for command in [
        &["status"][..],
        &["quarantine", "list"],
        &["pause", "--reason", "'; --"],
        &["resume", "--reason", "'; --"],
        &["resend", "--since", "1h", "--reason", "'; --"],
    ] {
        attempt.does(command).await;
    }
    let drop = format!("DROP OWNED BY {0}; DROP ROLE {0}", quoted(&role));
    client.batch_execute(&drop).await.expect("no role");
    let victim = client.query("SELECT FROM public.victim", &[]).await;
    victim.expect("the table is still there");
}

#[tokio::test]
async fn names_are_never_run() {
    for names in NAMES {
        everything_works_with(names).await;
    }
}

#[tokio::test]
async fn a_name_that_postgresql_would_change_is_refused_by_its_key() {
    let long = "é".repeat(32);
    for name in ["", &long] {
        let settings = Settings::new("postgres://relay:none@127.0.0.1:1/shop", "amqp://localhost")
            .with("OUTBOX_RELAY__OUTBOX__SCHEMA", name);
        for command in ["migrate", "run", "check", "status"] {
            let (code, text) = said(&settings, &[command]).await;
            assert_eq!(code, 78, "{command} {name:?}: {text}");
            assert!(text.contains("outbox.schema"), "{command}: {text}");
        }
    }
}
