//! `outbox-relay migrate`: makes the outbox, brings it up to date, prints it or checks it.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::exit::Exit;
use crate::config::{Assignment, DatabaseTarget, Needs, SessionKind, Sources};
use crate::store::error::StoreError;
use crate::store::postgres::connect::{connect, resolve};
use crate::store::postgres::ident::Outbox;
use crate::store::postgres::schema::{
    self, Definition, MigrateError, Migrated, Payload, Subject, Wake, Wanted,
};
use crate::store::postgres::session::{Session, SessionSettings, application_name};

/// How long saying goodbye may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// Create the outbox or bring it up to date.
///
/// Safe to run again, by two processes at once, and while applications use the table.
#[derive(Args, Clone, Debug, Default)]
#[command(after_help = "\
Examples:
  outbox-relay migrate --database-url postgres://owner@db/shop
  outbox-relay migrate --check
  outbox-relay migrate --print --payload jsonb > V7__outbox.sql
  outbox-relay migrate --inbox --database-url postgres://owner@db/billing
  outbox-relay migrate --wake none     # the application uses PREPARE TRANSACTION")]
pub struct MigrateArgs {
    /// Print the SQL instead of running it; needs no database
    #[arg(long, conflicts_with = "check")]
    pub print: bool,
    /// List what is pending, change nothing; exit 1 if anything is
    #[arg(long)]
    pub check: bool,
    /// The consumer half: schema inbox, in the database of section `database`
    #[arg(long, conflicts_with_all = ["payload", "wake"])]
    pub inbox: bool,
    /// Type of the column payload: json, jsonb, text or bytea [default: as it is, else json]
    #[arg(long, value_name = "TYPE")]
    pub payload: Option<Payload>,
    /// Wake the relay by NOTIFY or by polling alone: notify or none [default: as it is, else notify]
    #[arg(long, value_name = "MODE")]
    pub wake: Option<Wake>,
    /// Connect here instead of where the configuration says, e.g. as the schema's owner
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,
    /// For scripts
    #[arg(long, requires = "check")]
    pub json: bool,
}

/// Of the JSON output; raised when a field changes its meaning or goes.
const VERSION: u32 = 1;

impl MigrateArgs {
    /// The settings that the flags make.
    #[must_use]
    pub fn assignments(&self) -> Vec<Assignment> {
        database_url(self.database_url.as_deref())
    }

    fn subject(&self, outbox: &Outbox) -> Subject {
        if self.inbox {
            return Subject::inbox();
        }
        let wanted = Wanted {
            payload: self.payload,
            wake: self.wake,
        };
        Subject::outbox(outbox, wanted)
    }
}

/// `--database-url` as a setting.
pub(super) fn database_url(url: Option<&str>) -> Vec<Assignment> {
    let assignment = |url: &str| Assignment {
        flag: "--database-url".to_owned(),
        key: "database.url".to_owned(),
        value: url.to_owned(),
    };
    url.map(assignment).into_iter().collect()
}

/// Runs the command. `sources` holds the flags' [`MigrateArgs::assignments`].
///
/// # Errors
/// Only if `out` or `err` cannot be written to.
pub async fn migrate(
    args: &MigrateArgs,
    sources: &Sources,
    out: &mut (dyn Write + Send),
    err: &mut (dyn Write + Send),
) -> io::Result<Exit> {
    let needs = Needs {
        database: !args.print,
        broker: false,
    };
    let config = match sources.load(needs) {
        Ok(loaded) => loaded.config,
        Err(faults) => {
            writeln!(err, "outbox-relay: {faults}")?;
            return Ok(Exit::from(&faults));
        }
    };
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
    if args.print {
        write!(out, "{}", printed(args, outbox))?;
        return Ok(Exit::Done);
    }
    let subject = args.subject(&outbox);
    let result = match enter(&config.database_target(), args.check).await {
        Ok(session) => {
            let result = on(&session, args, &subject, out).await;
            session.close(GOODBYE).await;
            result
        }
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(exit) => exit,
        Err(error) => {
            writeln!(err, "outbox-relay: {error}")?;
            Ok(match &error {
                MigrateError::Store(error) => Exit::from(error),
                MigrateError::Refused(_) => Exit::Configuration,
                MigrateError::ByHand(_) => Exit::Failed,
            })
        }
    }
}

fn printed(args: &MigrateArgs, outbox: Outbox) -> String {
    if args.inbox {
        return schema::inbox_script();
    }
    schema::script(&Definition {
        outbox,
        payload: args.payload.unwrap_or_default(),
        wake: args.wake.unwrap_or_default(),
        keeps_polling: args.wake.is_none(),
    })
}

async fn enter(target: &DatabaseTarget, only_looking: bool) -> Result<Session, StoreError> {
    let mut access = resolve(target).await?;
    if !only_looking && access.session == SessionKind::Any {
        access.session = SessionKind::ReadWrite;
    }
    let name = application_name("migrate", &std::process::id().to_string());
    connect(
        &access,
        &SessionSettings::new(name, access.statement_timeout),
    )
    .await
}

async fn on(
    session: &Session,
    args: &MigrateArgs,
    subject: &Subject,
    out: &mut (dyn Write + Send),
) -> Result<io::Result<Exit>, MigrateError> {
    if args.check {
        let pending = schema::check_subject(session, subject).await?;
        return Ok(tell_pending(subject.names(), &pending, args.json, out));
    }
    let mut broken_pipe = Ok(());
    let mut say = |step: &str| {
        let said = writeln!(out, "{step}").and_then(|()| out.flush());
        if broken_pipe.is_ok() {
            broken_pipe = said;
        }
    };
    let migrated = schema::migrate_subject(session, subject, &mut say).await?;
    Ok(broken_pipe.and_then(|()| tell(subject.names(), &migrated, out)))
}

fn tell_pending(
    outbox: &Outbox,
    pending: &[schema::Pending],
    json: bool,
    out: &mut dyn Write,
) -> io::Result<Exit> {
    if json {
        let told = json!({
            "version": VERSION,
            "relation": outbox.to_string(),
            "pending": pending.iter().map(ToString::to_string).collect::<Vec<_>>(),
        });
        writeln!(out, "{told:#}")?;
    } else if pending.is_empty() {
        writeln!(out, "{outbox}: up to date")?;
    } else {
        writeln!(out, "{outbox}: {} pending", pending.len())?;
        for one in pending {
            writeln!(out, "  {one}")?;
        }
    }
    Ok(if pending.is_empty() {
        Exit::Done
    } else {
        Exit::Failed
    })
}

fn tell(outbox: &Outbox, migrated: &Migrated, out: &mut dyn Write) -> io::Result<Exit> {
    match migrated {
        Migrated::Nothing => writeln!(out, "{outbox}: up to date, nothing to do")?,
        Migrated::Done(done) => writeln!(out, "{outbox}: up to date, {} changed", done.len())?,
        Migrated::Newer(version) => writeln!(
            out,
            "{outbox}: made by a newer outbox-relay (version {version} of the schema), which this \
             one can use: nothing to do"
        )?,
    }
    Ok(Exit::Done)
}
