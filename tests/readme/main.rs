//! The documentation is true: every block marked to be run is run, in order, on private servers
//! with the real program. What the marks mean: `page::Mark`.
//!
//! Blocks without a mark are not run: they speak of servers, drivers or tools of the reader's.

mod commands;
mod links;
mod page;
mod stage;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeSet;

use page::blocks;
use stage::Stage;

async fn play(page: &str) -> Stage {
    let blocks = blocks(page);
    let mut stage = Stage::set().await;
    for block in &blocks {
        stage.play(block).await;
    }
    stage
}

#[tokio::test]
async fn the_readme_leads_to_a_first_message() {
    let stage = play("README.md").await;
    let arrived = stage.arrived().await;
    assert_eq!(
        arrived.first().map(String::as_str),
        Some(r#"{"greeting": "hello"}"#)
    );
    assert_eq!(arrived.len(), stage.sent().await, "{arrived:?}");
    stage.end().await;
}

#[tokio::test]
async fn rows_are_written_as_documented() {
    let stage = play("docs/writing-rows.md").await;
    let arrived = stage.arrived().await;
    assert!(!arrived.is_empty());
    assert_eq!(arrived.len(), stage.sent().await, "{arrived:?}");
    stage.end().await;
}

#[tokio::test]
async fn order_is_kept_as_documented() {
    let stage = play("docs/order.md").await;
    let arrived = stage.arrived().await;
    let steps = [1, 2, 3].map(|step| format!(r#"{{"step" : {step}}}"#));
    let [withdrawn, rest @ ..] = &arrived[..] else {
        panic!("nothing arrived");
    };
    assert_eq!(withdrawn, r#"{"withdrawn": 30}"#);
    assert_eq!(rest, steps);
    stage.end().await;
}

#[tokio::test]
async fn failures_are_mended_as_documented() {
    let stage = play("docs/failures.md").await;
    let arrived = stage.arrived().await;
    let different: BTreeSet<&String> = arrived.iter().collect();
    assert_eq!(different.len(), stage.sent().await, "{different:?}");
    // What is sent again is there twice.
    assert!(arrived.len() > different.len());
    stage.end().await;
}

/// A reader does not begin with an empty database on every page. Pages that make roles, which all
/// databases of a server share, are played alone.
#[tokio::test]
async fn pages_can_be_read_one_after_another() {
    let mut stage = Stage::set().await;
    for page in [
        "README.md",
        "docs/own-table.md",
        "docs/writing-rows.md",
        "docs/order.md",
        "docs/failures.md",
        "docs/runbook.md",
        "docs/upgrading.md",
    ] {
        for block in &blocks(page) {
            stage.play(block).await;
        }
        stage.stop().await;
    }
}

#[tokio::test]
async fn the_relay_is_operated_as_documented() {
    play("docs/operating.md").await.end().await;
}

#[tokio::test]
async fn every_entry_of_the_runbook_can_be_acted_out() {
    play("docs/runbook.md").await.end().await;
}

#[tokio::test]
async fn messages_are_consumed_as_documented() {
    play("docs/consuming.md").await.end().await;
}

#[tokio::test]
async fn a_table_of_ones_own_is_brought_as_documented() {
    play("docs/own-table.md").await.end().await;
}

#[tokio::test]
async fn a_new_version_is_brought_in_as_documented() {
    play("docs/upgrading.md").await.end().await;
}
