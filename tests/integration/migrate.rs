//! `outbox-relay migrate` on outboxes that nobody uses meanwhile.

use std::io::{Seek, Write};
use std::path::PathBuf;
use std::process::Command;

use outbox_relay::commands::exit::Exit;
use outbox_relay::commands::migrate::MigrateArgs;
use outbox_relay::store::postgres::schema::{Payload, Wake};
use tokio_postgres::Client;

use crate::outbox::{
    GATES, Names, check, number, outbox, outbox_with, plain, refusal, run, run_named,
};
use crate::support::places::Places;
use crate::support::ports::Port;
use crate::support::postgres::{Database, database};

/// Names that end every kind of quotes they could be put into.
const HOSTILE: [Names; 2] = [
    Names("we\"ird; drop", "mess'age$outbox$"),
    Names("{{message}}\n--", "back\\slash \"$outbox1$\""),
];

const WRITE: &str =
    "INSERT INTO outbox.message (routing_key, payload) VALUES ('q', '{}') RETURNING id";

/// Everything that a migration makes, with its identity: two runs must show the same.
pub async fn objects(client: &Client) -> Vec<String> {
    let sql = "SELECT 'relation ' || oid || relname || relfilenode FROM pg_class \
               WHERE relnamespace = 'outbox'::regnamespace \
               UNION ALL SELECT 'function ' || oid || proname || xmin FROM pg_proc \
               WHERE pronamespace = 'outbox'::regnamespace \
               UNION ALL SELECT 'trigger ' || oid || tgname FROM pg_trigger \
               UNION ALL SELECT 'lease ' || partition || xmin FROM outbox.lease \
               UNION ALL SELECT 'version ' || version || xmin FROM outbox.schema_version \
               ORDER BY 1";
    let rows = client.query(sql, &[]).await.expect("the catalog");
    rows.iter().map(|row| row.get(0)).collect()
}

fn psql(database: &Database, sql: &str) {
    let told = psql_with(database, sql, &[]);
    assert_eq!(told, "", "nothing but errors would be said");
}

fn psql_with(database: &Database, sql: &str, options: &[&str]) -> String {
    let mut script = tempfile::tempfile().expect("a temporary file");
    script.write_all(sql.as_bytes()).expect("written");
    script.rewind().expect("rewound");
    let done = Command::new(client_program("psql"))
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-"])
        .args(options)
        .arg(&database.url)
        .stdin(script)
        .output()
        .expect("psql (Debian package postgresql-client)");
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && errors.is_empty(), "{errors}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// PostgreSQL's own client programs (Debian package postgresql-client).
fn client_program(name: &str) -> PathBuf {
    let own = Places::known().postgres_bin.join(name);
    if own.exists() { own } else { name.into() }
}

#[tokio::test]
async fn a_second_run_changes_nothing() {
    let database = database().await;
    let said = run(check(&database)).await;
    assert_eq!(said.exit, Exit::Failed);
    assert!(
        said.out.contains("table outbox.message: missing"),
        "{said:?}"
    );

    let said = run(plain(&database)).await;
    assert_eq!(said.exit, Exit::Done, "{said:?}");
    let client = database.connect().await;
    let before = objects(&client).await;
    assert_eq!(
        number(&client, "SELECT count(*) FROM outbox.lease").await,
        256
    );

    let said = run(plain(&database)).await;
    assert_eq!((said.exit, said.err.as_str()), (Exit::Done, ""));
    assert_eq!(said.out, "outbox.message: up to date, nothing to do\n");
    assert_eq!(objects(&client).await, before);
    let said = run(check(&database)).await;
    assert_eq!(
        (said.exit, said.out.as_str()),
        (Exit::Done, "outbox.message: up to date\n")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_at_once_make_one_outbox() {
    let database = database().await;
    let runs: Vec<_> = (0..8)
        .map(|_| tokio::spawn(run(plain(&database))))
        .collect();
    let mut changed = 0;
    for one in runs {
        let said = one.await.expect("no panic");
        assert_eq!(said.exit, Exit::Done, "{said:?}");
        changed += usize::from(said.out.contains("changed"));
    }
    assert_eq!(changed, 1, "only one of them made it");
    assert_eq!(run(check(&database)).await.exit, Exit::Done);
}

#[tokio::test]
async fn printed_sql_is_what_psql_takes_as_it_stands() {
    for payload in Payload::ALL {
        let database = database().await;
        let print = MigrateArgs {
            print: true,
            payload: Some(payload),
            ..MigrateArgs::default()
        };
        let said = run(print).await;
        assert_eq!(said.exit, Exit::Done);
        psql(&database, &said.out);
        let client = database.connect().await;
        let before = objects(&client).await.len();
        psql(&database, &said.out);
        assert_eq!(objects(&client).await.len(), before);
        assert_eq!(run(check(&database)).await.exit, Exit::Done, "{payload}");
        let said = run(plain(&database)).await;
        assert_eq!(said.out, "outbox.message: up to date, nothing to do\n");
    }
}

#[tokio::test]
async fn hostile_names_stay_names() {
    for (schema, relation) in HOSTILE.map(|names| (names.0, names.1)) {
        let names = Names(schema, relation);
        let database = database().await;
        let said = run_named(names, plain(&database)).await;
        assert_eq!(said.exit, Exit::Done, "{said:?}");
        let client = database.connect().await;
        let call = "SELECT quote_ident($1) || '.enqueue'";
        let enqueue: String = client
            .query_one(call, &[&schema])
            .await
            .expect("quoted")
            .get(0);
        let sql = format!("SELECT {enqueue}(payload => '1', message_id => 'm')");
        let id: String = client.query_one(&sql, &[]).await.expect("enqueued").get(0);
        assert_eq!(id, "m");
        assert_eq!(run_named(names, check(&database)).await.exit, Exit::Done);

        let print = MigrateArgs {
            print: true,
            ..MigrateArgs::default()
        };
        let sql = run_named(names, print).await.out;
        psql(&database, &sql);
        let other = crate::support::postgres::database().await;
        psql(&other, &sql);
        assert_eq!(run_named(names, check(&other)).await.exit, Exit::Done);
    }
}

#[tokio::test]
async fn each_payload_type_keeps_its_bytes() {
    for (payload, written, stored) in [
        (
            Payload::Json,
            "'{ \"a\":1.0 , \"a\":2}'",
            "{ \"a\":1.0 , \"a\":2}",
        ),
        (Payload::Jsonb, "'{ \"a\":1.0 , \"a\":2}'", "{\"a\": 2}"),
        (Payload::Text, "'any text'", "any text"),
        (Payload::Bytea, r"'\x00ff'", r"\x00ff"),
    ] {
        let choices = MigrateArgs {
            payload: Some(payload),
            ..MigrateArgs::default()
        };
        let (_database, client) = outbox_with(choices).await;
        let sql = format!("SELECT outbox.enqueue({written}, routing_key => 'q')");
        client.batch_execute(&sql).await.expect("enqueued");
        let sql = "SELECT payload::text FROM outbox.message";
        let text: String = client.query_one(sql, &[]).await.expect("a row").get(0);
        assert_eq!(text, stored, "{payload}");
    }
}

#[tokio::test]
async fn another_payload_type_is_refused_in_a_sentence() {
    let (database, client) = outbox().await;
    let before = objects(&client).await;
    for check in [false, true] {
        let said = run(MigrateArgs {
            check,
            payload: Some(Payload::Bytea),
            ..plain(&database)
        })
        .await;
        assert_eq!(said.exit, Exit::Configuration);
        assert!(
            said.err
                .contains("outbox.message.payload is json, not bytea"),
            "{said:?}"
        );
    }
    assert_eq!(objects(&client).await, before);
    let printed = run(MigrateArgs {
        print: true,
        payload: Some(Payload::Bytea),
        ..MigrateArgs::default()
    })
    .await;
    assert_eq!(refusal(&client, &printed.out).await, "P0001");
    client.batch_execute("ROLLBACK").await.expect("still alive");
    assert_eq!(objects(&client).await, before);
}

#[tokio::test]
async fn the_way_of_waking_may_be_changed_and_stays_as_chosen() {
    let (database, client) = outbox().await;
    for (wake, expected, exit_of_check) in [
        (None, 1, Exit::Done),
        (Some(Wake::None), 0, Exit::Failed),
        (None, 0, Exit::Done),
        (Some(Wake::Notify), 1, Exit::Failed),
        (Some(Wake::Notify), 1, Exit::Done),
    ] {
        let said = run(MigrateArgs {
            wake,
            ..check(&database)
        })
        .await;
        assert_eq!(said.exit, exit_of_check, "{wake:?} {said:?}");
        let said = run(MigrateArgs {
            wake,
            ..plain(&database)
        })
        .await;
        assert_eq!(said.exit, Exit::Done, "{said:?}");
        assert_eq!(number(&client, GATES).await, expected, "{wake:?}");
    }
}

#[tokio::test]
async fn an_owner_who_may_not_create_schemas_can_migrate_a_given_one() {
    let database = database().await;
    let client = database.connect().await;
    let owner = format!("owner_{}", database.name);
    client
        .batch_execute(&format!(
            "CREATE ROLE {owner} LOGIN; CREATE SCHEMA outbox AUTHORIZATION {owner}"
        ))
        .await
        .expect("a schema for the owner");
    let as_owner = |args: MigrateArgs| MigrateArgs {
        database_url: Some(database.url.replacen("postgres@", &format!("{owner}@"), 1)),
        ..args
    };
    for args in [plain(&database), plain(&database), check(&database)] {
        let said = run(as_owner(args)).await;
        assert_eq!(said.exit, Exit::Done, "{said:?}");
    }
    let sql = "SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'outbox.lease'::regclass";
    let found: String = client.query_one(sql, &[]).await.expect("a table").get(0);
    assert_eq!(found, owner);
}

#[tokio::test]
async fn a_view_of_the_users_own_is_left_to_the_user() {
    let database = database().await;
    let client = database.connect().await;
    client
        .batch_execute(
            "CREATE SCHEMA outbox; \
             CREATE TABLE own (id bigint PRIMARY KEY, body text, sent_at timestamptz); \
             CREATE VIEW outbox.message AS SELECT id, body AS payload, sent_at FROM own",
        )
        .await
        .expect("a view");
    let said = run(plain(&database)).await;
    assert_eq!(said.exit, Exit::Done, "{said:?}");
    assert_eq!(run(check(&database)).await.exit, Exit::Done);
    let sql = "SELECT atttypid::regtype::text FROM pg_attribute \
               WHERE attrelid = 'outbox.quarantine'::regclass AND attname = 'payload'";
    let found: String = client.query_one(sql, &[]).await.expect("a column").get(0);
    assert_eq!(found, "text", "quarantine takes what the view holds");
}

#[tokio::test]
async fn exit_codes_tell_an_outage_from_a_mistake() {
    let database = database().await;
    let nobody = Port::take();
    let to = |url: String| MigrateArgs {
        database_url: Some(url),
        ..MigrateArgs::default()
    };
    let unknown_user = database.url.replacen("postgres@", "no_such_role@", 1);
    let unknown_database = database.url.replacen(&database.name, "no_such_database", 1);
    let closed = format!("postgres://postgres@127.0.0.1:{}/x", nobody.number());
    for (args, exit, word) in [
        (to(closed), Exit::Unreachable, "refused"),
        (to(unknown_user), Exit::Configuration, "no_such_role"),
        (
            to(unknown_database),
            Exit::Configuration,
            "no_such_database",
        ),
        (
            to("postgres://".to_owned() + "host:nonsense/x"),
            Exit::Configuration,
            "--database-url",
        ),
        (MigrateArgs::default(), Exit::Configuration, "database.url"),
    ] {
        let said = run(args).await;
        assert_eq!(said.exit, exit, "{said:?}");
        assert!(said.err.contains(word), "{said:?}");
    }
    let too_long: &'static str = Box::leak("x".repeat(64).into_boxed_str());
    let said = run_named(Names(too_long, "message"), plain(&database)).await;
    assert_eq!(said.exit, Exit::Configuration);
    assert!(said.err.contains("63 bytes"), "{said:?}");
}

#[tokio::test]
async fn a_dump_restored_elsewhere_is_an_outbox_as_before() {
    let (database, client) = outbox().await;
    let row = "SELECT outbox.enqueue('{}', routing_key => 'q', message_id => 'kept')";
    client.batch_execute(row).await.expect("a row");
    let dump = Command::new(client_program("pg_dump"))
        .args(["--dbname", &database.url])
        .output()
        .expect("pg_dump");
    assert!(dump.status.success(), "{dump:?}");
    let dump = String::from_utf8(dump.stdout).expect("UTF-8");
    let other = crate::support::postgres::database().await;
    psql_with(&other, &dump, &["-o", "/dev/null"]);
    assert_eq!(run(check(&other)).await.exit, Exit::Done);

    let client = other.connect().await;
    assert_eq!(number(&client, GATES).await, 1);
    client
        .batch_execute(WRITE)
        .await
        .expect("the identity goes on");
    let rows = "SELECT count(DISTINCT id) FROM outbox.message";
    assert_eq!(number(&client, rows).await, 2);
}
