//! `quarantine replay` and `quarantine discard`.

use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use serde_json::json;

use super::super::act::{Amount, Done, in_batches};
use super::super::counted::counted;
use super::super::exit::{Exit, Misuse};
use super::super::status::text::span;
use super::list::VERSION;
use super::{Discard, Replay};
use crate::store::postgres::operator::Operator;
use crate::store::postgres::quarantine::{self, Obstacles};

type Output<'a> = &'a mut (dyn Write + Send);

const EVERYTHING: &str = "nothing says which rows: give a filter, or --all for all of quarantine";

pub(super) async fn replay(
    replay: &Replay,
    window: Option<Duration>,
    operator: &Operator,
    out: Output<'_>,
    err: Output<'_>,
) -> anyhow::Result<Exit> {
    let act = replay.signed.act()?;
    let selection = replay.filter.selection();
    let payload = match &replay.payload_file {
        Some(file) => {
            let bytes = tokio::fs::read(file).await;
            Some(bytes.with_context(|| format!("--payload-file: cannot read {}", file.display()))?)
        }
        None => None,
    };
    let edited = payload.is_some();
    let how = quarantine::Replay { window, payload };
    let obstacles = operator.replay_obstacles(&selection, &how).await?;
    let absent = operator.absent(&selection).await?;
    tell_absent(&absent, err)?;
    if edited && obstacles.meant != 1 && absent.is_empty() {
        let fault = format!(
            "--payload-file is for one row, and {} fit: name it by --id",
            obstacles.meant
        );
        return Err(Misuse(fault).into());
    }
    tell_obstacles(obstacles, window, err)?;
    let chosen = Chosen { obstacles, absent };
    let amount = &replay.amount;
    if amount.dry_run {
        let done = amount.of(obstacles.replayable());
        return conclude("would be replayed", done, &chosen, amount, out);
    }
    let step = async |cursor, limit| operator.replay(&selection, &how, &act, cursor, limit).await;
    let total = obstacles.replayable();
    let done = in_batches(("replayed", total), amount.pace(), err, step).await?;
    tell_interruption(done, err)?;
    conclude("replayed", done, &chosen, amount, out)
}

pub(super) async fn discard(
    discard: &Discard,
    operator: &Operator,
    out: Output<'_>,
    err: Output<'_>,
) -> anyhow::Result<Exit> {
    let act = discard.signed.act()?;
    let selection = discard.filter.selection();
    if selection.is_everything() && !discard.all {
        return Err(Misuse(EVERYTHING.to_owned()).into());
    }
    let amount = &discard.amount;
    let meant = operator.count_quarantined(&selection).await?;
    let chosen = Chosen {
        obstacles: Obstacles {
            meant,
            ..Obstacles::default()
        },
        absent: operator.absent(&selection).await?,
    };
    tell_absent(&chosen.absent, err)?;
    if amount.dry_run {
        let done = amount.of(meant);
        return conclude("would be discarded", done, &chosen, amount, out);
    }
    let step = async |cursor, limit| operator.discard(&selection, &act, cursor, limit).await;
    let done = in_batches(("discarded", meant), amount.pace(), err, step).await?;
    tell_interruption(done, err)?;
    conclude("discarded", done, &chosen, amount, out)
}

/// What the command line chose.
struct Chosen {
    obstacles: Obstacles,
    /// What it names, and what is not there.
    absent: Vec<String>,
}

fn tell_absent(absent: &[String], err: Output<'_>) -> anyhow::Result<()> {
    for id in absent {
        writeln!(
            err,
            "{id}: no row in quarantine with this id or message_id fits; `explain {id}` looks further."
        )?;
    }
    Ok(())
}

/// `1 row stays`, `2 rows stay`.
fn stay(rows: u64) -> String {
    let ending = if rows == 1 { "s" } else { "" };
    format!("{} stay{ending}", counted(rows, "row"))
}

fn tell_obstacles(
    obstacles: Obstacles,
    window: Option<Duration>,
    err: Output<'_>,
) -> anyhow::Result<()> {
    let Obstacles {
        beyond_window,
        there_again,
        no_payload,
        ..
    } = obstacles;
    if let (Some(window), 1..) = (window, beyond_window) {
        writeln!(
            err,
            "{}: written more than {} ago (quarantine.replay_window), so that consumers may have \
             forgotten having seen such a message. If a second effect does no harm, add --beyond-window.",
            stay(beyond_window),
            span(window)
        )?;
    }
    if there_again > 0 {
        writeln!(
            err,
            "{}: a row of the same id is in the outbox again. See `explain` for that one; if it is \
             the same message, discard the entry.",
            stay(there_again)
        )?;
    }
    if no_payload > 0 {
        writeln!(
            err,
            "{}: the payload is NULL. Give one by --id and --payload-file, or discard the row.",
            stay(no_payload)
        )?;
    }
    Ok(())
}

fn tell_interruption(done: Done, err: Output<'_>) -> anyhow::Result<()> {
    if done.interrupted_at.is_some() {
        writeln!(err, "Interrupted. Run the same command again to go on.")?;
    }
    Ok(())
}

fn conclude(
    word: &str,
    done: Done,
    chosen: &Chosen,
    amount: &Amount,
    out: Output<'_>,
) -> anyhow::Result<Exit> {
    let Done {
        rows,
        interrupted_at,
    } = done;
    let Chosen { obstacles, absent } = chosen;
    if amount.json {
        let told = json!({
            "version": VERSION,
            "dry_run": amount.dry_run,
            "meant": obstacles.meant,
            "rows": rows,
            "absent": absent,
            "interrupted": interrupted_at.is_some(),
            "stayed": {
                "beyond_window": obstacles.beyond_window,
                "there_again": obstacles.there_again,
                "no_payload": obstacles.no_payload,
            },
        });
        writeln!(out, "{told:#}")?;
    } else {
        writeln!(out, "{} {word}", counted(rows, "row"))?;
        if obstacles.meant == 0 && absent.is_empty() {
            writeln!(
                out,
                "None in quarantine matches; `outbox-relay quarantine list` shows what is there."
            )?;
        }
    }
    let refused = obstacles.meant > obstacles.replayable() || !absent.is_empty();
    Ok(if refused || interrupted_at.is_some() {
        Exit::Failed
    } else {
        Exit::Done
    })
}
