//! What a newly read configuration changes, and what of it a running relay can take up.
//!
//! Only compares; taking it up is the daemon's work.

use secrecy::ExposeSecret;

use super::{Config, Loaded, Secret};

/// Keys that differ between two configurations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Count at once (log level, retries) or at the next connect (addresses and secrets).
    pub live: Vec<&'static str>,
    /// Count after a restart only.
    pub restart: Vec<&'static str>,
}

impl Changes {
    /// From the configuration that is in effect to the one that was read now.
    #[must_use]
    pub fn between(current: &Loaded, new: &Loaded) -> Self {
        let mut changes = Self::default();
        for (before, after) in current.effective.iter().zip(&new.effective) {
            let same = if before.secret {
                secrets(&current.config, before.key) == secrets(&new.config, after.key)
            } else {
                before.value == after.value
            };
            if same {
                continue;
            }
            if is_live(before.key) {
                changes.live.push(before.key);
            } else {
                changes.restart.push(before.key);
            }
        }
        changes
    }
}

impl Loaded {
    /// Becomes what is in effect after a reload: the new values of live keys, the old ones of
    /// those that need a restart.
    pub fn now_in_effect(&mut self, new: Loaded, changes: &Changes) {
        let (
            old,
            Loaded {
                config, effective, ..
            },
        ) = (&mut self.config, new);
        old.log.level = config.log.level;
        old.retry = config.retry;
        old.database.url = config.database.url;
        old.database.password = config.database.password;
        old.broker.url = config.broker.url;
        old.broker.password = config.broker.password;
        for (before, after) in self.effective.iter_mut().zip(effective) {
            if !changes.restart.contains(&before.key) {
                *before = after;
            }
        }
    }
}

fn is_live(key: &str) -> bool {
    let (section, name) = key.split_once('.').unwrap_or((key, ""));
    match section {
        "retry" => true,
        "log" => name == "level",
        "database" | "broker" => ["url", "url_file", "password", "password_file"].contains(&name),
        _ => false,
    }
}

/// Only values: a file is compared by its name, and its content counts at every connect anyway.
fn secrets<'c>(config: &'c Config, key: &str) -> Vec<Option<&'c str>> {
    let given: Vec<&Secret> = match key {
        "database.url" => config.database.url.iter().collect(),
        "database.password" => config.database.password.iter().collect(),
        "broker.url" => config.broker.url.iter().collect(),
        "broker.password" => config.broker.password.iter().collect(),
        _ => Vec::new(),
    };
    let value = |secret: &&'c Secret| match secret {
        Secret::Value(text) => Some(text.expose_secret()),
        Secret::File(_) => None,
    };
    given.iter().map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::given;

    fn between(before: &str, after: &str) -> Changes {
        let load = |file| {
            given(file, &[])
                .load(crate::config::Needs::default())
                .unwrap()
        };
        Changes::between(&load(before), &load(after))
    }

    #[test]
    fn the_same_settings_change_nothing() {
        let file = "[database]\nurl = 'postgres://u:p@localhost'";
        assert_eq!(between(file, file), Changes::default());
        let defaults = "[retry]\ninitial = '1000ms'";
        assert_eq!(between("", defaults), Changes::default());
    }

    #[test]
    fn a_changed_secret_is_seen_behind_its_mask() {
        let changes = between(
            "[database]\nurl = 'postgres://u:old@localhost'\n[broker]\npassword = 'old'",
            "[database]\nurl = 'postgres://u:new@localhost'\n[broker]\npassword = 'new'",
        );
        assert_eq!(changes.live, ["database.url", "broker.password"]);
        assert!(changes.restart.is_empty());
    }

    #[test]
    fn what_waits_for_a_restart_is_told_again_and_what_was_taken_up_is_not() {
        let load = |file| {
            let needs = crate::config::Needs::default();
            given(file, &[]).load(needs).unwrap()
        };
        let new = "[retry]\nmax_attempts = 3\n[relay]\nbatch_size = 7\n\
             [broker]\nurl = 'amqp://u:new@localhost'";
        let mut current = load("[broker]\nurl = 'amqp://u:old@localhost'");
        let changes = Changes::between(&current, &load(new));
        assert_eq!(changes.live, ["broker.url", "retry.max_attempts"]);
        current.now_in_effect(load(new), &changes);
        let again = Changes::between(&current, &load(new));
        assert_eq!(
            (again.live, again.restart),
            (vec![], vec!["relay.batch_size"])
        );
    }

    #[test]
    fn what_needs_a_restart_is_told_apart() {
        let changes = between(
            "",
            "[retry]\nmax_attempts = 3\n[log]\nlevel = 'debug'\nformat = 'json'\n\
             [relay]\nbatch_size = 7\n[database]\nuser = 'x'",
        );
        assert_eq!(changes.live, ["retry.max_attempts", "log.level"]);
        assert_eq!(
            changes.restart,
            ["database.user", "relay.batch_size", "log.format"]
        );
    }
}
