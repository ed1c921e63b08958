//! What `check` makes of the server's word about itself. Pure.

use super::finding::Finding;
use crate::config::DatabaseAccess;
use crate::store::postgres::facts::{Right, ServerFacts};
use crate::store::postgres::session::Session;

/// Missing rights told in one finding.
const TOLD: usize = 4;

/// A clock further off than this falsifies what is measured from `created_at`.
const CLOCK_LIMIT_MS: i64 = 1000;

pub(super) fn connected(session: &Session, server: &ServerFacts) -> Finding {
    let ServerFacts {
        version,
        user,
        database,
        ..
    } = server;
    let at = &session.server;
    Finding::ok(
        "database",
        format!("PostgreSQL {version} at {at}, database {database}, login {user}"),
    )
}

pub(super) fn tls(access: &DatabaseAccess, server: Option<&ServerFacts>) -> Vec<Finding> {
    const CHECK: &str = "database_tls";
    let weak = access.weaknesses();
    if weak.is_empty() {
        let seen = server.map(|server| match &server.tls {
            Some(version) => format!("{version}, sslmode {}", access.sslmode.word()),
            None => "not encrypted, on this machine".to_owned(),
        });
        return seen
            .map(|seen| Finding::ok(CHECK, seen))
            .into_iter()
            .collect();
    }
    let remedy = "database.sslmode = \"verify-full\", with database.ca_file if the server's certificate is signed by your own authority";
    weak.into_iter()
        .map(|weakness| Finding::warning(CHECK, weakness, remedy))
        .collect()
}

pub(super) fn rights(server: &ServerFacts, rights: &[Right]) -> Finding {
    const CHECK: &str = "rights";
    let user = &server.user;
    let missing = rights.iter().filter(|right| !right.held);
    let missing: Vec<_> = missing.map(|right| right.grant.as_str()).collect();
    if !missing.is_empty() {
        let mut told = missing[..missing.len().min(TOLD)].join("; ");
        if missing.len() > TOLD {
            told.push_str(&format!("; and {} more", missing.len() - TOLD));
        }
        return Finding::failed(
            CHECK,
            format!("{user} lacks {told}"),
            format!(
                "as the schema's owner run the output of outbox-relay grants --relay {user}; if that is \
                 not the relay's login, check with the one that is"
            ),
        );
    }
    if server.superuser {
        return Finding::warning(
            CHECK,
            format!("{user} is a superuser, and may do far more than a relay should"),
            "a role of its own, with the output of outbox-relay grants --relay ROLE",
        );
    }
    Finding::ok(CHECK, format!("{user} has what a relay needs"))
}

pub(super) fn vacuum(server: &ServerFacts) -> Finding {
    const CHECK: &str = "vacuum";
    if !server.autovacuum {
        return Finding::warning(
            CHECK,
            "autovacuum is off: entries of sent rows are never removed, and reads become ever slower",
            "switch on autovacuum and track_counts",
        );
    }
    if server.reads_all_stats {
        return Finding::ok(CHECK, "autovacuum is on; what holds it back can be named");
    }
    Finding::ok(
        CHECK,
        "autovacuum is on; which session holds it back may not be looked at (optional: GRANT pg_read_all_stats)",
    )
}

pub(super) fn durability(server: &ServerFacts) -> Vec<Finding> {
    const CHECK: &str = "durability";
    let mut findings = Vec::new();
    let mut warn =
        |found: String, remedy: &str| findings.push(Finding::warning(CHECK, found, remedy));
    for (on, name) in [
        (server.fsync, "fsync"),
        (server.full_page_writes, "full_page_writes"),
    ] {
        if !on {
            warn(
                format!(
                    "{name} is off: a crash of the machine can destroy committed rows, sent or not"
                ),
                "switch it on and reload",
            );
        }
    }
    let mut asynchronous = server.asynchronous_roles.clone();
    if server.synchronous_commit == "off" {
        asynchronous.insert(0, server.user.clone());
    }
    if !asynchronous.is_empty() {
        let who = asynchronous.join(", ");
        warn(
            format!(
                "synchronous_commit is off for {who}: a crash can undo a commit whose message went out"
            ),
            "ALTER ROLE … SET synchronous_commit = on, at least for the relay and whoever writes to the outbox",
        );
    }
    let waits = !server.synchronous_standbys.is_empty() && server.synchronous_commit != "local";
    if server.standbys > 0 && !waits {
        let standbys = match server.standbys {
            1 => "a standby follows".to_owned(),
            standbys => format!("{standbys} standbys follow"),
        };
        warn(
            format!(
                "{standbys} asynchronously: a fail-over can undo commits whose messages went out"
            ),
            "name them in synchronous_standby_names, or accept that consumers may see a message whose change was lost",
        );
    }
    if findings.is_empty() {
        let found = "a commit survives a crash (fsync, full_page_writes, synchronous_commit)";
        findings.push(Finding::ok(CHECK, found));
    }
    findings
}

pub(super) fn clock(server: &ServerFacts) -> Finding {
    const CHECK: &str = "clock";
    let doubt = i64::try_from(server.clock_doubt.as_millis()).unwrap_or(i64::MAX);
    let off = server.clock_ahead_ms;
    let side = if off < 0 { "behind" } else { "ahead of" };
    let found = format!(
        "the database's clock is {} ms {side} ours (± {doubt} ms)",
        off.abs()
    );
    if off.abs() <= CLOCK_LIMIT_MS + doubt {
        return Finding::ok(CHECK, found);
    }
    Finding::warning(
        CHECK,
        format!("{found}: the relay goes by the database's, so only measured latencies are wrong"),
        "synchronise both machines' clocks (NTP)",
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::finding::State;
    use super::*;

    fn sound() -> ServerFacts {
        ServerFacts {
            version: "17.1".to_owned(),
            user: "relay".to_owned(),
            database: "shop".to_owned(),
            superuser: false,
            reads_all_stats: true,
            tls: None,
            synchronous_commit: "on".to_owned(),
            asynchronous_roles: Vec::new(),
            fsync: true,
            full_page_writes: true,
            synchronous_standbys: String::new(),
            standbys: 0,
            max_prepared_transactions: 0,
            autovacuum: true,
            clock_ahead_ms: 0,
            clock_doubt: Duration::from_millis(1),
        }
    }

    fn warned(server: &ServerFacts) -> Vec<String> {
        let warned = durability(server).into_iter();
        warned
            .filter(|f| f.state == State::Warning)
            .map(|f| f.found)
            .collect()
    }

    #[test]
    fn each_way_to_lose_a_commit_is_told() {
        assert!(warned(&sound()).is_empty());
        for (change, word) in [
            (
                (|s| s.fsync = false) as fn(&mut ServerFacts),
                "fsync is off",
            ),
            (|s| s.full_page_writes = false, "full_page_writes is off"),
            (
                |s| s.synchronous_commit = "off".to_owned(),
                "off for relay:",
            ),
            (
                |s| s.asynchronous_roles = vec!["shop".to_owned()],
                "off for shop:",
            ),
            (|s| s.standbys = 2, "2 standbys follow asynchronously"),
        ] {
            let mut server = sound();
            change(&mut server);
            let warned = warned(&server);
            assert_eq!(warned.len(), 1, "{warned:?}");
            assert!(warned[0].contains(word), "{warned:?}");
        }
    }

    #[test]
    fn standbys_that_commits_wait_for_are_no_risk() {
        let mut server = sound();
        server.standbys = 1;
        server.synchronous_standbys = "*".to_owned();
        assert!(warned(&server).is_empty());
        server.synchronous_commit = "local".to_owned();
        assert_eq!(warned(&server).len(), 1);
    }

    #[test]
    fn a_clock_is_judged_by_what_is_certain() {
        let mut server = sound();
        server.clock_doubt = Duration::from_millis(500);
        for (ahead, state) in [
            (0, State::Ok),
            (-1500, State::Ok),
            (1501, State::Warning),
            (-3_600_000, State::Warning),
        ] {
            server.clock_ahead_ms = ahead;
            assert_eq!(clock(&server).state, state, "{ahead}");
        }
    }

    #[test]
    fn missing_rights_are_named_as_they_are_granted() {
        let right = |grant: &str, held| Right {
            grant: grant.to_owned(),
            held,
        };
        let finding = rights(
            &sound(),
            &[right("SELECT ON a", true), right("UPDATE ON b", false)],
        );
        assert_eq!(finding.state, State::Failed);
        assert_eq!(finding.found, "relay lacks UPDATE ON b");
        assert_eq!(
            rights(&sound(), &[right("SELECT ON a", true)]).state,
            State::Ok
        );
    }
}
