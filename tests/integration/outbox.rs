//! An outbox in a database of its own, and the commands on it, for the tests of this binary.

use std::path::PathBuf;
use std::time::Duration;

use outbox_relay::commands::exit::Exit;
use outbox_relay::commands::migrate::{MigrateArgs, migrate};
use outbox_relay::config::{Assignment, DatabaseSection, DatabaseTarget, Secret, Sources};
use outbox_relay::store::postgres::connect::open;
use outbox_relay::store::postgres::session::Session;
use tokio_postgres::Client;

use crate::support::PATIENCE;
use crate::support::postgres::{Database, database};

/// What a command said and how it ended.
#[derive(Debug)]
pub struct Said {
    pub exit: Exit,
    pub out: String,
    pub err: String,
}

/// Names of schema and relation.
#[derive(Clone, Copy)]
pub struct Names(pub &'static str, pub &'static str);

/// The names without configuration.
pub const USUAL: Names = Names("outbox", "message");

/// How many wake-up gates by the usual names there are.
pub const GATES: &str = "SELECT count(*) FROM pg_attrdef \
     WHERE pg_get_expr(adbin, adrelid) LIKE '%lock_shared(''8782946471908019418''::bigint)%' \
       AND pg_get_expr(adbin, adrelid) LIKE '%pg_notify(''outbox_wake_79e34b483b590cda''::text%'";

/// Settings from flags alone: neither this process's environment nor its machine's files.
pub fn sources(flags: Vec<Assignment>, Names(schema, relation): Names) -> Sources {
    let mut flags = flags;
    for (key, value) in [("outbox.schema", schema), ("outbox.relation", relation)] {
        flags.push(Assignment {
            flag: "--test".to_owned(),
            key: key.to_owned(),
            value: value.to_owned(),
        });
    }
    Sources {
        flags,
        environment: Vec::new(),
        file: None,
        default_file: PathBuf::from("/nonexistent/outbox-relay.toml"),
    }
}

/// Runs `outbox-relay migrate` on an outbox of these names.
pub async fn run_named(names: Names, args: MigrateArgs) -> Said {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let sources = sources(args.assignments(), names);
    let exit = migrate(&args, &sources, &mut out, &mut err)
        .await
        .expect("memory can be written to");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Said {
        exit,
        out: text(out),
        err: text(err),
    }
}

/// Runs `outbox-relay migrate` on the usual outbox.
pub async fn run(args: MigrateArgs) -> Said {
    run_named(USUAL, args).await
}

/// `migrate` with nothing but the URL.
pub fn plain(database: &Database) -> MigrateArgs {
    MigrateArgs {
        database_url: Some(database.url.clone()),
        ..MigrateArgs::default()
    }
}

/// `migrate --check`.
pub fn check(database: &Database) -> MigrateArgs {
    MigrateArgs {
        check: true,
        ..plain(database)
    }
}

/// A database with an outbox, and a superuser's connection to it.
pub async fn outbox() -> (Database, Client) {
    outbox_with(MigrateArgs::default()).await
}

/// The same with choices.
pub async fn outbox_with(choices: MigrateArgs) -> (Database, Client) {
    let database = database().await;
    let said = run(MigrateArgs {
        database_url: Some(database.url.clone()),
        ..choices
    })
    .await;
    assert_eq!(said.exit, Exit::Done, "{said:?}");
    let client = database.connect().await;
    (database, client)
}

/// Where a database is, as the configuration says it.
pub fn target(url: &str) -> DatabaseTarget {
    DatabaseTarget::new(DatabaseSection {
        url: Some(Secret::Value(url.to_owned().into())),
        connect_timeout: Duration::from_secs(30),
        ..DatabaseSection::default()
    })
}

/// A session as the relay opens it.
pub async fn relay_session(database: &Database) -> Session {
    open(&target(&database.url), "outbox-relay/test/1")
        .await
        .expect("a session")
}

/// The SQLSTATE with which a statement is refused.
pub async fn refusal(client: &Client, sql: &str) -> String {
    match client.batch_execute(sql).await {
        Ok(()) => panic!("not refused: {sql}"),
        Err(error) => match error.code() {
            Some(code) => code.code().to_owned(),
            None => panic!("{sql}: {error:?}"),
        },
    }
}

/// One number.
pub async fn number(client: &Client, sql: &str) -> i64 {
    let row = client.query_one(sql, &[]).await;
    row.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
        .get(0)
}

/// Waits until a query answers `true`.
pub async fn until(client: &Client, sql: &str) {
    let asked = async {
        let mut interval = tokio::time::interval(Duration::from_millis(10));
        loop {
            interval.tick().await;
            let row = client.query_one(sql, &[]).await;
            if row
                .unwrap_or_else(|error| panic!("{sql}: {error:?}"))
                .get(0)
            {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, asked)
        .await
        .unwrap_or_else(|_| panic!("never true: {sql}"));
}
