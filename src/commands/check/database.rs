//! What `check` looks at in PostgreSQL; judged by `server` and `outbox`.

use std::time::Duration;

use super::finding::{Finding, State};
use super::{hindrances, outbox, own, server};
use crate::config::{Config, DatabaseAccess};
use crate::store::StoreError;
use crate::store::postgres::PgStore;
use crate::store::postgres::connect::resolve;
use crate::store::postgres::facts::{self, Destinations, Pooling, pooler};
use crate::store::postgres::ident::Outbox;
use crate::store::postgres::schema::Catalog;
use crate::store::postgres::session::Session;

/// How long a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// What was found.
#[derive(Default)]
pub(super) struct Database {
    pub(super) findings: Vec<Finding>,
    /// Where pending rows go; `None` if that could not be seen.
    pub(super) destinations: Option<Destinations>,
}

/// Connects and looks at everything.
pub(super) async fn look(store: &PgStore, config: &Config) -> Database {
    let mut found = Database::default();
    let access = match resolve(&store.target).await {
        Ok(access) => access,
        Err(error) => {
            found.findings.push(failure("database", &error));
            return found;
        }
    };
    let session = match facts::open(store).await {
        Ok(session) => session,
        Err(error) => {
            found.findings.push(failure("database", &error));
            found.findings.extend(server::tls(&access, None));
            return found;
        }
    };
    if let Err(error) = found.fill(store, config, &session, &access).await {
        found.findings.push(failure("database", &error));
    }
    session.close(GOODBYE).await;
    found
}

impl Database {
    async fn fill(
        &mut self,
        store: &PgStore,
        config: &Config,
        session: &Session,
        access: &DatabaseAccess,
    ) -> Result<(), StoreError> {
        let names = &store.outbox;
        let about = facts::server(session).await?;
        self.findings.push(server::connected(session, &about));
        self.findings.extend(server::tls(access, Some(&about)));
        self.findings.push(pooler(store, session).await);
        self.findings.extend(server::durability(&about));
        self.findings.push(server::vacuum(&about));
        self.findings.push(server::clock(&about));
        let rights = facts::rights(session, names).await?;
        if !rights.is_empty() {
            self.findings.push(server::rights(&about, &rights));
        }
        let catalog = Catalog::read(&session.client, names).await?;
        self.findings
            .extend(outbox::schema_findings(names, &catalog));
        if !catalog.schema {
            return Ok(());
        }
        if let Some(message) = &catalog.message {
            self.findings
                .extend(own::features(names, message, &config.outbox));
        }
        self.findings
            .push(outbox::wake(names, &catalog, &about, config));
        if let Some(message) = &catalog.message {
            let marked = message.columns.contains_key("sent_at");
            self.look_for_hindrances(session, names, config, marked)
                .await;
            match facts::destinations(session, names).await {
                Ok(seen) => self.destinations = Some(seen),
                Err(error) => self.findings.push(failure("exchanges", &error)),
            }
        }
        Ok(())
    }

    /// A look that could not be had ends no other.
    async fn look_for_hindrances(
        &mut self,
        session: &Session,
        names: &Outbox,
        config: &Config,
        marked: bool,
    ) {
        match facts::hindrances(session, names).await {
            Ok(seen) => {
                self.findings
                    .extend(hindrances::findings(names, &seen, config.outbox.on_sent));
            }
            Err(error) => self.findings.push(failure("triggers", &error)),
        }
        match facts::unread(session, names, marked).await {
            Ok(lowest) => self.findings.extend(hindrances::unread(names, lowest)),
            Err(error) => self.findings.push(failure("ids", &error)),
        }
    }
}

/// A look that could not be had.
fn failure(check: &'static str, error: &StoreError) -> Finding {
    let (state, remedy) = match error {
        StoreError::Unreachable(_) => (
            State::Unreachable,
            "start the server, or correct [database] (outbox-relay config shows where each value comes from)",
        ),
        StoreError::TimedOut(_) => (
            State::Failed,
            "see what keeps the server busy (pg_stat_activity), or raise database.statement_timeout",
        ),
        StoreError::Retryable(_) => (State::Failed, "run it again"),
        StoreError::ReadOnly(_) => (
            State::Failed,
            "connect to the primary; database.host may list all servers, the primary is found among them",
        ),
        StoreError::Denied(_) => (
            State::Failed,
            "correct the login in [database], or run the output of outbox-relay grants",
        ),
        StoreError::Schema(_) => (State::Failed, "outbox-relay migrate"),
        StoreError::Settings(_) => (State::Failed, "correct the setting that is named"),
        StoreError::Other(_) => (State::Failed, "see the server's log"),
    };
    let known = error.fault().remedy.as_deref();
    Finding {
        state,
        ..Finding::failed(check, error.found(), known.unwrap_or(remedy))
    }
}

async fn pooler(store: &PgStore, session: &Session) -> Finding {
    const CHECK: &str = "pooler";
    let looked = async {
        let other = facts::open(store).await?;
        let pooling = facts::pooling(session, &other).await;
        other.close(GOODBYE).await;
        pooling
    };
    match looked.await {
        Ok(Pooling::None) => Finding::ok(
            CHECK,
            "none in transaction mode: each session keeps its server process",
        ),
        Ok(Pooling::Shared(seen)) => {
            Finding::failed(CHECK, pooler::in_the_way(&seen), pooler::REMEDY)
        }
        Err(error) => failure(CHECK, &error),
    }
}
