//! `outbox-relay grants`: prints the least rights for roles that exist already.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::time::Duration;

use clap::{ArgGroup, Args};

use super::exit::Exit;
use super::migrate::database_url;
use crate::config::{Assignment, DatabaseTarget, Needs, Sources};
use crate::store::error::{Fault, StoreError};
use crate::store::postgres::connect::open;
use crate::store::postgres::grants::{RoleError, Roles, grants as script};
use crate::store::postgres::ident::Outbox;
use crate::store::postgres::inbox_grants::{InboxRoles, inbox_grants};
use crate::store::postgres::schema::Catalog;
use crate::store::postgres::session::application_name;

/// How long looking at the catalog and saying goodbye may take.
const LOOK: Duration = Duration::from_secs(30);

/// Print the least rights of each role as SQL.
///
/// The roles must exist; each option may be given several times.
#[derive(Args, Clone, Debug, Default)]
#[command(after_help = "\
Examples:
  outbox-relay grants --relay relay --app shop --app billing | psql \"$OWNER_URL\"
  outbox-relay grants --operator oncall --monitor prometheus
  outbox-relay grants --inbox --consumer billing --operator oncall")]
#[command(group(ArgGroup::new("roles").required(true).multiple(true)))]
pub struct GrantsArgs {
    /// Role of the daemon
    #[arg(long, value_name = "ROLE", group = "roles", conflicts_with = "inbox")]
    pub relay: Vec<String>,
    /// Role of an application that writes messages
    #[arg(long, value_name = "ROLE", group = "roles", conflicts_with = "inbox")]
    pub app: Vec<String>,
    /// Role of an application that consumes messages, with --inbox
    #[arg(long, value_name = "ROLE", group = "roles", requires = "inbox")]
    pub consumer: Vec<String>,
    /// Role of people who replay, discard, resend and pause
    #[arg(long, value_name = "ROLE", group = "roles")]
    pub operator: Vec<String>,
    /// Role that only looks
    #[arg(long, value_name = "ROLE", group = "roles")]
    pub monitor: Vec<String>,
    /// The rights on the consumer half, schema inbox, instead of those on the outbox
    #[arg(long, conflicts_with = "database_url")]
    pub inbox: bool,
    /// Name only columns that the relation has there; without it, those of the usual outbox
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,
}

impl GrantsArgs {
    /// The settings that the flags make.
    #[must_use]
    pub fn assignments(&self) -> Vec<Assignment> {
        database_url(self.database_url.as_deref())
    }

    fn inbox_roles(&self) -> InboxRoles {
        InboxRoles {
            consumer: self.consumer.clone(),
            operator: self.operator.clone(),
            monitor: self.monitor.clone(),
        }
    }

    fn roles(&self) -> Roles {
        Roles {
            relay: self.relay.clone(),
            app: self.app.clone(),
            operator: self.operator.clone(),
            monitor: self.monitor.clone(),
        }
    }
}

/// Runs the command. `sources` holds the flags' [`GrantsArgs::assignments`].
///
/// # Errors
/// Only if `out` or `err` cannot be written to.
pub async fn grants(
    args: &GrantsArgs,
    sources: &Sources,
    out: &mut (dyn Write + Send),
    err: &mut (dyn Write + Send),
) -> io::Result<Exit> {
    let config = match sources.load(Needs::default()) {
        Ok(loaded) => loaded.config,
        Err(faults) => {
            writeln!(err, "outbox-relay: {faults}")?;
            return Ok(Exit::from(&faults));
        }
    };
    if args.inbox {
        return print(&inbox_grants(&args.inbox_roles()), out, err);
    }
    let outbox = match Outbox::new(
        config.outbox.schema.as_str(),
        config.outbox.relation.as_str(),
    ) {
        Ok(outbox) => outbox,
        Err(error) => {
            writeln!(err, "outbox-relay: outbox.schema, outbox.relation: {error}")?;
            return Ok(Exit::Configuration);
        }
    };
    let columns = match &args.database_url {
        None => None,
        Some(_) => match columns(&config.database_target(), &outbox).await {
            Ok(columns) => Some(columns),
            Err(error) => {
                writeln!(err, "outbox-relay: {error}")?;
                return Ok(Exit::from(&error));
            }
        },
    };
    let has = |column: &str| {
        columns
            .as_ref()
            .is_none_or(|columns| columns.contains(column))
    };
    print(&script(&outbox, &args.roles(), &has), out, err)
}

fn print(
    script: &Result<String, RoleError>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<Exit> {
    match script {
        Ok(sql) => {
            write!(out, "{sql}")?;
            Ok(Exit::Done)
        }
        Err(error) => {
            writeln!(err, "outbox-relay: {error}")?;
            Ok(Exit::Usage)
        }
    }
}

/// The columns that the relation has.
async fn columns(target: &DatabaseTarget, outbox: &Outbox) -> Result<BTreeSet<String>, StoreError> {
    const DOING: &str = "look at the columns";
    let name = application_name("grants", &std::process::id().to_string());
    let session = open(target, &name).await?;
    let found = tokio::time::timeout(LOOK, Catalog::read(&session.client, outbox)).await;
    session.close(LOOK).await;
    let found = found.map_err(|_| {
        let reason = format!("no answer within {} s", LOOK.as_secs());
        StoreError::Unreachable(Fault::new(DOING, reason))
    })??;
    match found.message {
        Some(message) => Ok(message.columns.into_keys().collect()),
        None => Err(StoreError::Schema(Fault::new(
            DOING,
            format!("there is no {outbox}: run outbox-relay migrate first"),
        ))),
    }
}
