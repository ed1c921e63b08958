//! What commands that change many rows have in common: who acts and why, the pace, and stopping
//! between two transactions.

use std::io::Write;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use super::counted::counted;
use super::exit::Misuse;
use crate::config::parse_duration;
use crate::runtime::{Clock, Shutdown};
use crate::store::StoreError;
use crate::store::postgres::operator::{Act, BATCH, Batch};

/// Who acts and why; recorded with every row.
#[derive(Args, Clone, Debug)]
pub struct Signed {
    /// Who acts [default: the login name]
    #[arg(long, value_name = "WHO", value_parser = some_words)]
    by: Option<String>,
    /// Why, for the audit
    #[arg(long, value_name = "WHY", value_parser = some_words)]
    reason: String,
}

impl Signed {
    /// The signature.
    ///
    /// # Errors
    /// [`Misuse`], if nobody knows who acts.
    pub(super) fn act(&self) -> Result<Act, Misuse> {
        let by = self.by.clone().or_else(login_name);
        Ok(Act {
            by: by.ok_or_else(|| Misuse(NOBODY.to_owned()))?,
            reason: self.reason.clone(),
            version: env!("CARGO_PKG_VERSION"),
        })
    }
}

const NOBODY: &str = "--by is needed: neither LOGNAME nor USER nor /etc/passwd tells who you are";

/// As the environment has it, else as the system's list of users does (passwd(5)): a job or a
/// container often has no such variables.
fn login_name() -> Option<String> {
    let names = ["LOGNAME", "USER"].into_iter();
    let mut names = names.filter_map(|name| std::env::var(name).ok());
    names.find(|name| !name.trim().is_empty()).or_else(|| {
        let users = std::fs::read_to_string("/etc/passwd").ok()?;
        name_of(rustix::process::getuid().as_raw(), &users)
    })
}

/// The first name with this number.
fn name_of(user: u32, users: &str) -> Option<String> {
    let name = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.trim().is_empty())?;
        let number: u32 = fields.nth(1)?.parse().ok()?;
        (number == user).then(|| name.to_owned())
    };
    users.lines().find_map(name)
}

/// A text that says something, and that PostgreSQL can store.
pub(super) fn some_words(text: &str) -> Result<String, String> {
    let words = text.trim();
    if words.is_empty() {
        return Err("must not be empty".to_owned());
    }
    Ok(words.to_owned())
}

/// A span of time with its unit, such as `2h`.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    parse_duration(text)
}

/// Rows per span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    rows: u32,
    per: Duration,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (rows, unit) = text.split_once('/').unwrap_or((text, "s"));
        let rows = rows.trim().parse().ok().filter(|rows| *rows > 0);
        let per = match unit.trim() {
            "s" => Some(1),
            "m" | "min" => Some(60),
            "h" => Some(3600),
            _ => None,
        };
        match (rows, per) {
            (Some(rows), Some(per)) => Ok(Self {
                rows,
                per: Duration::from_secs(per),
            }),
            _ => Err("write rows per second, minute or hour, such as 50/s".to_owned()),
        }
    }
}

impl Rate {
    /// How long so many rows take.
    pub(super) fn time_for(self, rows: u64) -> Duration {
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        self.per.saturating_mul(rows) / self.rows
    }

    /// As many as a tenth of a second allows, so that they come evenly.
    fn batch(self) -> i64 {
        let rows = u64::from(self.rows) / self.per.as_secs().max(1) / 10;
        i64::try_from(rows).unwrap_or(BATCH).clamp(1, BATCH)
    }
}

/// How many rows, how fast, and whether at all.
#[derive(Args, Clone, Copy, Debug)]
pub struct Amount {
    /// Rows at the most, lowest ids first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Not faster than this, such as 50/s
    #[arg(long, value_name = "N/s")]
    rate: Option<Rate>,
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// For scripts
    #[arg(long)]
    pub(super) json: bool,
}

impl Amount {
    pub(super) fn pace(&self) -> Pace {
        Pace {
            limit: self.limit,
            rate: self.rate,
        }
    }

    /// What would be done of so many rows.
    pub(super) fn of(&self, rows: u64) -> Done {
        Done {
            rows: rows.min(self.limit.unwrap_or(u64::MAX)),
            interrupted_at: None,
        }
    }
}

/// How many, how fast.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// Rows at the most.
    pub(super) limit: Option<u64>,
    /// Not faster than this.
    pub(super) rate: Option<Rate>,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Done {
    /// Rows.
    pub(super) rows: u64,
    /// A signal came first; the rows after this id were not looked at.
    pub(super) interrupted_at: Option<i64>,
}

/// Progress is told so often.
const TELL: Duration = Duration::from_secs(1);

/// Runs one transaction after the other, from the lowest id upwards, until nothing is left or a
/// signal asks to stop. Whatever was done stays done. A second signal ends the process at once,
/// and the transaction under way with it.
///
/// # Errors
/// The first error of a transaction, with how far it got.
pub(super) async fn in_batches(
    (done_word, total): (&str, u64),
    pace: Pace,
    err: &mut (dyn Write + Send),
    mut next: impl AsyncFnMut(i64, i64) -> Result<Batch, StoreError>,
) -> anyhow::Result<Done> {
    let stop = Shutdown::listen().context("cannot listen for signals")?;
    let total = pace.limit.map_or(total, |limit| limit.min(total));
    let start = Clock.now();
    let mut told = start;
    let (mut rows, mut cursor) = (0, i64::MIN);
    loop {
        let left = pace
            .limit
            .map_or(u64::MAX, |limit| limit.saturating_sub(rows));
        let most = pace
            .rate
            .map_or(BATCH, Rate::batch)
            .min(i64::try_from(left).unwrap_or(i64::MAX));
        if most == 0 {
            break;
        }
        let batch = next(cursor, most).await;
        let batch = batch.with_context(|| {
            format!(
                "stopped after {} had been {done_word}",
                counted(rows, "row")
            )
        })?;
        rows += batch.rows;
        let Some(reached) = batch.cursor else { break };
        cursor = reached;
        let now = Clock.now();
        if now.since(told) >= TELL {
            told = now;
            writeln!(err, "{rows} of {total} {done_word}")?;
        }
        let due = pace.rate.map_or(now, |rate| start + rate.time_for(rows));
        tokio::select! {
            biased;
            () = stop.drain().cancelled() => {
                return Ok(Done { rows, interrupted_at: Some(cursor) });
            }
            () = tokio::time::sleep(now.until(due)) => {}
        }
    }
    Ok(Done {
        rows,
        interrupted_at: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_rows_per_second_minute_or_hour() {
        let rate = |text: &str| text.parse::<Rate>();
        let seconds = |rate: Rate, rows| rate.time_for(rows).as_secs_f64();
        assert_eq!(rate("50/s").map(|rate| seconds(rate, 100)), Ok(2.0));
        assert_eq!(rate("50").map(|rate| seconds(rate, 100)), Ok(2.0));
        assert_eq!(rate("6/m").map(|rate| seconds(rate, 3)), Ok(30.0));
        assert_eq!(rate("6/h").map(Rate::batch), Ok(1));
        for text in ["0/s", "-1/s", "1/d", "/s", "fast", ""] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_user_is_found_by_his_number() {
        let users = "root:x:0:0:root:/root:/bin/sh\n+::::::\n# note\nann:x:1000:1000:Ann,,:/home/ann:/bin/sh\n\
                     other:x:1000:1000::/:/bin/sh\n:x:7:7::/:\n";
        assert_eq!(name_of(0, users).as_deref(), Some("root"));
        assert_eq!(name_of(1000, users).as_deref(), Some("ann"));
        assert_eq!(name_of(7, users), None);
        assert_eq!(name_of(1, users), None);
    }

    #[test]
    fn rows_come_evenly_and_never_in_more_than_one_batch() {
        for (text, batch) in [("1/s", 1), ("50/s", 5), ("600/m", 1), ("100000/s", BATCH)] {
            let rate: Rate = text.parse().expect("a rate");
            assert_eq!(rate.batch(), batch, "{text}");
        }
    }
}
