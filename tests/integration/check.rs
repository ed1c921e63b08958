//! `outbox-relay check`: what it finds on real servers, how it tells it, and its exit code.

use std::collections::BTreeMap;

use outbox_relay::store::postgres::facts::{Pooling, pooling};
use outbox_relay::store::postgres::grants::{Roles, grants};
use outbox_relay::store::postgres::ident::Outbox;
use serde_json::Value;
use tokio_postgres::Client;

use crate::outbox::{outbox, relay_session};
use crate::support::ports::Port;
use crate::support::postgres::{Database, database};
use crate::support::queues::Queues;
use crate::support::rabbit::{Rabbit, shared, unique, vhost};
use crate::support::relay::{Settings, run};

/// What `check --json` said.
struct Checked {
    code: i32,
    findings: BTreeMap<String, Vec<Value>>,
}

impl Checked {
    /// State, text and remedy of the only finding of a check.
    fn only(&self, check: &str) -> (&str, &str, &str) {
        let found = self.findings.get(check).unwrap_or_else(|| {
            panic!("no {check} among {:?}", self.findings);
        });
        let [finding] = found.as_slice() else {
            panic!("{check}: {found:?}");
        };
        let text = |name: &str| finding[name].as_str().unwrap_or("");
        (text("state"), text("found"), text("remedy"))
    }

    fn states(&self) -> Vec<(&str, &str)> {
        let each = self.findings.iter().flat_map(|(check, found)| {
            let states = found.iter().map(|one| one["state"].as_str().unwrap_or(""));
            states.map(move |state| (check.as_str(), state))
        });
        each.collect()
    }
}

async fn check(database: &str, broker: &str) -> Checked {
    check_with(&Settings::new(database, broker)).await
}

async fn check_with(settings: &Settings) -> Checked {
    check_by(settings, &["check", "--json"]).await
}

async fn check_by(settings: &Settings, line: &[&str]) -> Checked {
    let (status, lines) = run(settings, line).await;
    let text = lines.join("\n");
    let object: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(object["version"], 1);
    let mut findings: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for one in object["checks"].as_array().expect("a list") {
        let check = one["check"].as_str().expect("a name").to_owned();
        findings.entry(check).or_default().push(one.clone());
    }
    let code = status.code().expect("it exits");
    assert_eq!(object["ok"], code == 0, "{text}");
    Checked { code, findings }
}

/// A URL for a login with exactly the rights that are printed for a relay.
async fn relay_login(database: &Database, admin: &Client) -> String {
    let role = format!("relay_of_{}", database.name);
    let outbox = Outbox::new("outbox", "message").expect("valid names");
    let roles = Roles {
        relay: vec![role.clone()],
        ..Roles::default()
    };
    let sql = grants(&outbox, &roles, &|_| true).expect("a valid name");
    let sql = format!("CREATE ROLE {role} LOGIN; {sql}");
    admin.batch_execute(&sql).await.expect("granted");
    database.url.replacen("postgres@", &format!("{role}@"), 1)
}

async fn broken(database: &Database, admin: &Client, fault: &str) -> Checked {
    admin.batch_execute(fault).await.expect(fault);
    check(&database.url, &vhost().await.url).await
}

#[tokio::test]
async fn a_relay_with_exactly_the_printed_rights_passes() {
    let (database, admin) = outbox().await;
    let login = relay_login(&database, &admin).await;
    let checked = check(&login, &vhost().await.url).await;
    assert_eq!(checked.code, 0, "{:?}", checked.findings);
    for (check, state) in checked.states() {
        // The servers of the tests do not flush to disk, and say so.
        let expected = if check == "durability" {
            "warning"
        } else {
            "ok"
        };
        let expected = if check == "wake" { "warning" } else { expected };
        assert_eq!(state, expected, "{check}: {:?}", checked.findings[check]);
    }
    let (_, found, remedy) = checked.only("wake");
    assert!(
        found.contains("advisory lock 8782946471908019418"),
        "{found}"
    );
    assert!(found.contains("outbox_wake_79e34b483b590cda"), "{found}");
    assert!(found.contains("PREPARE TRANSACTION"), "{found}");
    assert!(remedy.contains("migrate --wake none"), "{remedy}");
}

#[tokio::test]
async fn a_login_without_rights_is_told_which() {
    let (database, admin) = outbox().await;
    let login = relay_login(&database, &admin).await;
    let role = format!("relay_of_{}", database.name);
    let revoke = format!(
        "REVOKE SELECT ON outbox.pause FROM {role}; \
         REVOKE UPDATE (sent_at) ON outbox.message FROM {role}"
    );
    admin.batch_execute(&revoke).await.expect("revoked");
    let checked = check(&login, &vhost().await.url).await;
    assert_eq!(checked.code, 1);
    let (state, found, remedy) = checked.only("rights");
    assert_eq!(state, "failed");
    let missing = r#"lacks UPDATE ("sent_at") ON "outbox"."message"; SELECT ON "outbox"."pause""#;
    assert!(found.ends_with(missing), "{found}");
    assert!(remedy.contains("outbox-relay grants --relay"), "{remedy}");
}

#[tokio::test]
async fn row_security_that_applies_to_the_login_is_told() {
    let (database, admin) = outbox().await;
    let login = relay_login(&database, &admin).await;
    let secure = "ALTER TABLE outbox.message ENABLE ROW LEVEL SECURITY";
    admin.batch_execute(secure).await.expect("secured");
    let checked = check(&login, &vhost().await.url).await;
    let (state, found, remedy) = checked.only("row security");
    assert!(
        state == "warning" && found.contains("never sent"),
        "{found}"
    );
    assert!(remedy.contains("BYPASSRLS"), "{remedy}");
    let checked = check(&database.url, &vhost().await.url).await;
    assert!(
        !checked.findings.contains_key("row security"),
        "a superuser"
    );
}

#[tokio::test]
async fn a_database_without_an_outbox_is_to_be_migrated() {
    let checked = check(&database().await.url, &vhost().await.url).await;
    assert_eq!(checked.code, 1);
    let (state, found, remedy) = checked.only("schema");
    assert_eq!(state, "failed");
    assert!(found.starts_with("schema outbox: missing"), "{found}");
    assert!(remedy.starts_with("outbox-relay migrate"), "{remedy}");
    assert!(!checked.findings.contains_key("exchanges"));
}

#[tokio::test]
async fn a_damaged_outbox_is_told_with_the_statement_that_mends_it() {
    let (database, admin) = outbox().await;
    let checked = broken(&database, &admin, "DROP INDEX outbox.message_xid").await;
    let (state, found, remedy) = checked.only("indexes");
    assert_eq!((checked.code, state), (1, "failed"));
    assert_eq!(found, "index message_xid on outbox.message: missing");
    assert!(remedy.starts_with("outbox-relay migrate"), "{remedy}");

    let fault = "ALTER TABLE outbox.message ALTER COLUMN id SET CACHE 20, DROP COLUMN attempts";
    let checked = broken(&database, &admin, fault).await;
    let schema = &checked.findings["schema"];
    for (one, remedy) in [
        (
            &schema[0],
            r#"ALTER TABLE "outbox"."message" ADD COLUMN "attempts" integer NOT NULL DEFAULT 0"#,
        ),
        (
            &schema[1],
            r#"ALTER TABLE "outbox"."message" ALTER COLUMN id SET CACHE 1"#,
        ),
    ] {
        assert_eq!(one["remedy"], remedy, "{schema:?}");
        admin.batch_execute(remedy).await.expect(remedy);
    }
    let fault = "ALTER TABLE outbox.message ALTER COLUMN xid SET DEFAULT pg_current_xact_id()";
    let checked = broken(&database, &admin, fault).await;
    assert_eq!(checked.only("identity").0, "ok");
    let (_, found, _) = checked.only("wake");
    assert!(
        found.starts_with("no gate: rows are found by polling"),
        "{found}"
    );
}

#[tokio::test]
async fn what_stands_in_the_way_of_marks_and_removal_is_told() {
    let (database, admin) = outbox().await;
    let harmless = "CREATE TABLE public.copy (id bigint PRIMARY KEY REFERENCES outbox.message ON DELETE CASCADE)";
    let checked = broken(&database, &admin, harmless).await;
    for check in ["references", "triggers", "ids"] {
        assert!(!checked.findings.contains_key(check), "{check}");
    }
    let faults = "CREATE TABLE public.invoice (\"of\" bigint REFERENCES outbox.message);
         CREATE TABLE public.kept (id bigint PRIMARY KEY REFERENCES outbox.message);
         CREATE TABLE public.parted (id bigint CONSTRAINT \"a \"\"b\" REFERENCES outbox.message)
           PARTITION BY RANGE (id);
         CREATE TABLE public.part PARTITION OF public.parted FOR VALUES FROM (1) TO (9);
         CREATE FUNCTION outbox.veto() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
         CREATE TRIGGER veto BEFORE DELETE ON outbox.message FOR EACH ROW EXECUTE FUNCTION outbox.veto();
         CREATE TRIGGER other AFTER INSERT ON outbox.message FOR EACH ROW EXECUTE FUNCTION outbox.veto();
         INSERT INTO outbox.message (id, payload) OVERRIDING SYSTEM VALUE VALUES (-3, '1'), (0, '2')";
    let checked = broken(&database, &admin, faults).await;
    let references = &checked.findings["references"];
    for (one, found, remedy) in [
        (
            &references[0],
            "public.invoice refers",
            "an index: CREATE INDEX CONCURRENTLY ON public.invoice (of)",
        ),
        (&references[1], "public.kept refers", "ON DELETE CASCADE"),
        (
            &references[2],
            "public.parted refers",
            "ALTER TABLE public.parted DROP CONSTRAINT \"a \"\"b\", or make",
        ),
    ] {
        assert_eq!(one["state"], "warning", "{references:?}");
        assert!(
            one["found"].as_str().expect("text").starts_with(found),
            "{one}"
        );
        assert!(
            one["remedy"].as_str().expect("text").contains(remedy),
            "{one}"
        );
    }
    let (state, found, _) = checked.only("triggers");
    assert!(state == "warning" && found.ends_with(": veto"), "{found}");
    let (state, found, remedy) = checked.only("ids");
    assert!(state == "failed" && found.contains("from -3 on"), "{found}");
    assert!(remedy.contains("without an id"), "{remedy}");
}

#[tokio::test]
async fn exchanges_of_pending_rows_are_looked_for() {
    let (database, admin) = outbox().await;
    let rows = "INSERT INTO outbox.message (exchange, routing_key, payload) VALUES \
         ('', 'q', '1'), ('amq.topic', 'q', '1'), ('nowhere', 'q', '1'), ('secret', 'q', '1'); \
         UPDATE outbox.message SET sent_at = now() WHERE exchange = 'secret'";
    let checked = broken(&database, &admin, rows).await;
    assert_eq!(checked.code, 1);
    let (state, found, _) = checked.only("exchanges");
    assert_eq!(state, "failed");
    assert!(
        found.contains("do not exist: \"nowhere\" (looked at all 3 pending rows"),
        "{found}"
    );

    let settings = Settings::new(&database.url, &vhost().await.url)
        .with("OUTBOX_RELAY__RELAY__ALLOWED_EXCHANGES", "amq.*,nowhere");
    let both = &check_with(&settings).await.findings["exchanges"];
    assert_eq!(both.len(), 2, "{both:?}");
    let forbidden = both[1]["found"].as_str().expect("a sentence");
    assert!(
        forbidden.contains("outside relay.allowed_exchanges: \"\" ("),
        "{forbidden}"
    );

    let sent = "UPDATE outbox.message SET sent_at = now() WHERE exchange = 'nowhere'";
    let checked = broken(&database, &admin, sent).await;
    assert_eq!((checked.code, checked.only("exchanges").0), (0, "ok"));
}

#[tokio::test]
async fn servers_that_do_not_answer_are_told_from_those_that_refuse() {
    let (database, _admin) = outbox().await;
    let nobody = Port::take();
    let dead = format!("postgres://postgres@127.0.0.1:{}/x", nobody.number());
    let checked = check(&dead, &vhost().await.url).await;
    assert_eq!(
        (checked.code, checked.only("database").0),
        (75, "unreachable")
    );
    assert_eq!(checked.only("publishing").0, "ok");

    let away = database.url.rsplit_once('/').expect("a URL").0.to_owned() + "/nowhere";
    let checked = check(&away, &vhost().await.url).await;
    let (state, _, remedy) = checked.only("database");
    assert_eq!((checked.code, state), (1, "failed"));
    assert!(remedy.contains("database.dbname"), "{remedy}");

    let dead = format!("amqp://guest:guest@127.0.0.1:{}", nobody.number());
    let checked = check(&database.url, &dead).await;
    assert_eq!(
        (checked.code, checked.only("broker").0),
        (75, "unreachable")
    );
    assert_eq!(checked.only("schema").0, "ok");

    let wrong = vhost().await.url.replacen("guest:guest", "guest:canary", 1);
    let checked = check(&database.url, &wrong).await;
    let (state, found, remedy) = checked.only("broker");
    assert_eq!((checked.code, state), (1, "failed"));
    assert!(found.contains("ACCESS_REFUSED"), "{found}");
    assert!(remedy.contains("password"), "{remedy}");
    assert!(!format!("{:?}", checked.findings).contains("canary"));
}

/// RabbitMQ's plain port stands for every broker that TLS cannot be had from.
#[tokio::test]
async fn a_broker_is_called_verified_only_once_it_is() {
    let (database, _admin) = outbox().await;
    let broker = vhost().await.url;
    let checked = check(&database.url, &broker).await;
    assert_eq!(checked.only("broker_tls").0, "ok");

    let encrypted = broker.replacen("amqp://", "amqps://", 1);
    let checked = check(&database.url, &encrypted).await;
    let (state, found, remedy) = checked.only("broker");
    assert_eq!((checked.code, state), (75, "unreachable"));
    assert!(found.contains("TLS handshake"), "{found}");
    assert!(remedy.contains("does not speak TLS"), "{remedy}");
    assert!(remedy.contains("amqp://"), "{remedy}");
    assert!(!checked.findings.contains_key("broker_tls"));

    let unusable = Settings::new(&database.url, &encrypted)
        .with("OUTBOX_RELAY__BROKER__CA_FILE", "/nonexistent/ca.pem");
    let checked = check_with(&unusable).await;
    let (state, found, remedy) = checked.only("broker");
    assert_eq!((checked.code, state), (1, "failed"));
    assert!(found.contains("unusable settings"), "{found}");
    assert!(found.contains("broker.ca_file"), "{found}");
    assert_eq!(remedy, "correct the setting that is named");
}

#[tokio::test]
async fn a_broker_with_an_alarm_blocks_publishers_and_says_so() {
    let (database, _admin) = outbox().await;
    let rabbit = Rabbit::start().await;
    rabbit.raise_memory_alarm().await;
    let checked = check(&database.url, &rabbit.url()).await;
    let (state, found, _) = checked.only("publishing");
    assert_eq!((checked.code, state), (1, "failed"));
    assert!(found.starts_with("the broker blocks publishers"), "{found}");
    rabbit.clear_memory_alarm().await;
    assert_eq!(check(&database.url, &rabbit.url()).await.code, 0);
}

/// Two sessions that are one to the server are what a pooler in transaction mode makes of two.
#[tokio::test]
async fn sessions_that_share_a_server_process_are_seen() {
    let database = database().await;
    let (one, other) = (
        relay_session(&database).await,
        relay_session(&database).await,
    );
    assert_eq!(pooling(&one, &other).await, Ok(Pooling::None));
    let shared = pooling(&one, &one).await.expect("answers");
    assert!(matches!(shared, Pooling::Shared(_)), "{shared:?}");
    let begin = "BEGIN; ROLLBACK";
    assert!(one.client.batch_execute(begin).await.is_ok());
}

/// A quorum queue of RabbitMQ 4 drops what came back 20 times, unless it knows where to put it.
#[tokio::test]
async fn consumers_queues_that_would_drop_messages_are_told_and_none_is_made() {
    let (database, _client) = outbox().await;
    let vhost = vhost().await;
    let queues = Queues::connect(&vhost.url).await;
    queues.classic("classic").await;
    queues.quorum("bare").await;
    queues.quorum_with_dead_letters("kept", "dead").await;
    queues.limited("full", 5).await;
    let line = |queue: &'static str| ["check", "--json", "--queue", queue];
    let settings = Settings::new(&database.url, &vhost.url);
    for (queue, state, words) in [
        ("classic", "ok", "no quorum queue"),
        ("full", "warning", "if it is a quorum queue"),
        ("kept", "ok", "dead-letter exchange"),
        ("bare", "warning", "without a dead-letter exchange"),
        ("missing", "warning", "does not exist"),
    ] {
        let checked = check_by(&settings, &line(queue)).await;
        let (found, text, _) = checked.only("queue");
        assert_eq!(found, state, "{queue}: {text}");
        assert!(text.contains(words), "{queue}: {text}");
        assert_eq!(checked.code, 0);
    }
    // Asking for it did not make it.
    let again = check_by(&settings, &line("missing")).await;
    assert!(again.only("queue").1.contains("does not exist"));
    let (user, shared) = (unique("writer").replace('-', "_"), shared().await);
    shared.add_user(&user, "secret").await;
    shared
        .set_permissions(&user, &vhost.name, ["^$", ".*", "^$"])
        .await;
    let url = vhost.url.replace("guest:guest", &format!("{user}:secret"));
    let checked = check_by(&Settings::new(&database.url, &url), &line("bare")).await;
    let (state, text, _) = checked.only("queue");
    assert_eq!(state, "ok");
    assert!(text.contains("may not declare"), "{text}");
}
