//! Commands run as the operator's role, with the rights that `grants` prints and no others.

use outbox_relay::commands::exit::Exit;
use outbox_relay::commands::grants::{GrantsArgs, grants};
use serde_json::Value;
use tokio_postgres::Client;

use crate::outbox::{USUAL, sources};
use crate::support::postgres::Database;
use crate::support::relay::{Settings, run};

/// Makes a role with the operator's rights; settings with which programs log in as it.
pub async fn operator(database: &Database, admin: &Client) -> Settings {
    let role = format!("operator_{}", database.name);
    let create = format!("CREATE ROLE \"{role}\" LOGIN");
    admin.batch_execute(&create).await.expect("a role");
    let args = GrantsArgs {
        operator: vec![role.clone()],
        ..GrantsArgs::default()
    };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let granted = grants(
        &args,
        &sources(args.assignments(), USUAL),
        &mut out,
        &mut err,
    )
    .await;
    assert_eq!(granted.expect("memory can be written to"), Exit::Done);
    let sql = String::from_utf8(out).expect("UTF-8");
    admin.batch_execute(&sql).await.expect("rights");
    let (scheme, rest) = database.url.split_once("://").expect("a URL");
    let host = rest.split_once('@').map_or(rest, |(_, host)| host);
    // For a machine that does other things: a command does not try again.
    Settings::new(&format!("{scheme}://{role}@{host}"), "amqp://localhost")
        .with("LOGNAME", "ann")
        .with("OUTBOX_RELAY__DATABASE__CONNECT_TIMEOUT", "60s")
        .with("OUTBOX_RELAY__DATABASE__STATEMENT_TIMEOUT", "60s")
}

/// Runs a command: its exit code and everything it said.
pub async fn said(settings: &Settings, arguments: &[&str]) -> (i32, String) {
    let (status, lines) = run(settings, arguments).await;
    (status.code().expect("an exit code"), lines.join("\n"))
}

/// Runs a command with `--json`: its exit code and the object it printed.
pub async fn json(settings: &Settings, arguments: &[&str]) -> (i32, Value) {
    let arguments = [arguments, &["--json"]].concat();
    let (code, text) = said(settings, &arguments).await;
    let object = text.find('{').zip(text.rfind('}'));
    let (from, to) = object.unwrap_or_else(|| panic!("no JSON: {text}"));
    let object: Value = serde_json::from_str(&text[from..=to]).expect("JSON");
    assert_eq!(object["version"], 1);
    (code, object)
}

/// Everything a query answers, one line for each row.
pub async fn lines(client: &Client, sql: &str) -> Vec<String> {
    let rows = client.query(sql, &[]).await;
    let rows = rows.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}
